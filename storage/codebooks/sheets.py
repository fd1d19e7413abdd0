"""Codebooks that are sheets: a row for each column of a table, or for each of its codes.

Headings are found by their words, below a title too; REDCap's dictionary has rules of its own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from storage.codebooks.variables import (
    Levels,
    Variable,
    codebook_refusal,
    levels_in,
    range_in,
    text_of,
    variable,
)
from storage.schema.columns import raw_text

HEADINGS = {
    "name": "variable, variable name, name, column, column name, field, field name, "
    "spalte, merkmal",
    "kind": "type, kind, data type, field type, typ, datentyp",
    "levels": "levels, values, codes, choices, categories, allowed values, coding, code, value",
    "level_meaning": "value label, value meaning, value description, code label, code meaning",
    "lower": "minimum, min, lower, lower bound",
    "upper": "maximum, max, upper, upper bound",
    "range": "range, valid range, bounds",
    "missing": "missing, missing codes, missing values, missing code, fehlend, fehlwerte",
    "unit": "unit, units, einheit, unité",
    "meaning": "description, label, meaning, variable label, field label, definition, question, "
    "bedeutung, beschreibung",
    "required": "required, mandatory",
    "identifier": "identifier",
    "derived": "derived from, derivation, calculation, calculated from, computed from, formula, "
    "algorithm, berechnung, abgeleitet aus",
}
"""Accepted headings by the content of their column; case, blanks and signs are ignored."""

_REDCAP = {
    "Variable / Field Name": "name",
    "Form Name": "form",
    "Choices, Calculations, OR Slider Labels": "levels",
    "Text Validation Type OR Show Slider Number": "validation",
    "Text Validation Min": "lower",
    "Text Validation Max": "upper",
    "Branching Logic (Show field only if...)": "branching",
    "Required Field?": "required",
}
_REDCAP_COLUMNS = (
    "redcap_event_name", "redcap_repeat_instrument", "redcap_repeat_instance",
    "redcap_data_access_group", "redcap_survey_identifier",
)  # fmt: skip
_COMPLETE: Levels = (("0", "Incomplete"), ("1", "Unverified"), ("2", "Complete"))
_DECIMAL_PLACES = re.compile(r"number_(\d)dp")
_MAX_TITLE_LINES = 20
_YES = frozenset({"y", "yes", "true", "1", "x"})
_CODES: dict[str, Levels] = {
    "yesno": (("1", "Yes"), ("0", "No")),
    "truefalse": (("1", "True"), ("0", "False")),
}

Row = Sequence[object]
_Cells = dict[str, str]


def _plain(heading: object) -> str:
    return re.sub(r"[^a-z]", "", text_of(heading).lower())


_MEANT = {
    _plain(heading): key for key, listed in HEADINGS.items() for heading in listed.split(", ")
} | {_plain(heading): key for heading, key in _REDCAP.items()}


def sheet_variables(rows: Iterable[Row]) -> tuple[Variable, ...] | None:
    """Return the variables of a sheet; None if no line has the headings of a codebook."""
    lines = iter(enumerate(rows, start=1))
    for _, row in islice(lines, _MAX_TITLE_LINES):
        headings = [_MEANT.get(_plain(heading)) for heading in row]
        places = {key: headings.index(key) for key in headings if key is not None}
        if "name" in places and len(places) > 1:
            is_redcap = "variablefieldname" in map(_plain, row)
            found = _by_name(lines, places)
            variables = [
                one
                for name, (number, cells) in found.items()
                for one in (_redcap if is_redcap else _described)(name, _place(number), cells)
            ]
            if is_redcap:
                forms = (cells[0].get("form", "") for _, cells in found.values())
                return (*variables, *_of_export(dict.fromkeys(filter(None, forms))))
            known = zip(row, headings, strict=True)
            unread = tuple(filter(None, (text_of(one) for one, key in known if key is None)))
            return tuple(replace(one, unread=unread) for one in variables)
    return None


def _by_name(
    lines: Iterable[tuple[int, Row]], places: dict[str, int]
) -> dict[str, tuple[int, list[_Cells]]]:
    """Group the rows of each column, as its codes may stand below each other."""
    found: dict[str, tuple[int, list[_Cells]]] = {}
    last = ""
    for number, row in lines:
        texts = ["" if cell is None else raw_text(cell) for cell in row]
        cells = {key: texts[at] for key, at in places.items() if at < len(texts)}
        name = text_of(cells.get("name"))
        if name and name != last:
            if name in found:
                raise codebook_refusal(
                    "DUPLICATE",
                    f"{_place(number)}: expected each column once, or its rows below each other",
                )
            found[name] = number, []
            last = name
        if last and any(cells.values()):
            found[last][1].append(cells)
    return found


def _described(name: str, place: str, rows: list[_Cells]) -> Iterator[Variable]:
    first = rows[0]
    levels: Levels = ()
    ends = range_in(first.get("range", "")) or ("", "")
    for cells in rows:
        text = cells.get("levels", "")
        if cells.get("level_meaning"):
            levels += ((text.strip("\"'"), text_of(cells["level_meaning"])),)
        elif range_in(text) is None:
            levels += levels_in(text)
        else:
            ends = range_in(text) or ends
    is_unused = first.get("identifier", "").lower() in _YES
    required = first.get("required", "")
    yield variable(
        place,
        name,
        kind="identifier" if is_unused else first.get("kind", ""),
        levels=levels or _CODES.get(_plain(first.get("kind")), ()),
        bounds=(first.get("lower") or ends[0], first.get("upper") or ends[1]),
        missing=tuple(code for code, _ in levels_in(first.get("missing", ""))),
        unit=first.get("unit"),
        meaning=first.get("meaning"),
        required=required.lower() in _YES if required else None,
        decimals=int(first["decimals"]) if "decimals" in first else None,
        derived=first.get("derived"),
    )


def _place(number: int) -> str:
    return f"row {number} of the codebook"


def _redcap(name: str, place: str, rows: list[_Cells]) -> Iterator[Variable]:
    """Convert a field: a checkbox to a column per choice; one that logic may hide may be empty."""
    if len(rows) > 1:
        raise codebook_refusal("DUPLICATE", f"{place}: expected each variable once, in one row")
    is_shown = not rows[0].get("branching")
    cells = rows[0] | {"required": (is_shown and rows[0].get("required")) or "n"}
    kind = _plain(cells.get("kind"))
    listed = cells.pop("levels", "")
    choices = levels_in(listed, comma=True)
    cells |= {"derived": listed} if kind == "calc" else {}
    if kind == "checkbox":
        for code, means in choices:
            meant = {"kind": "truefalse", "meaning": f"{cells.get('meaning', '')}: {means}"}
            # An export writes a sign of a code, such as a minus, as an underscore.
            column = f"{name}___{re.sub('[^a-z0-9]', '_', code.lower())}"
            yield from _described(column, place, [cells | meant])
        return
    if kind == "descriptive":  # a text on a form
        return
    if kind == "text":
        validation = cells.get("validation", "").lower()
        cells["kind"] = next((k for k in ("integer", "number", "date") if k in validation), "")
        if places := _DECIMAL_PLACES.match(validation):
            cells["decimals"] = places[1]
        for bound in ("lower", "upper"):
            text = cells.get(bound, "")
            if "comma" in validation:
                text = text.replace(",", ".")
            # Piped from another field, so that it differs from record to record.
            cells[bound] = "" if "[" in text else text
    coded = [
        cells | {"levels": code, "level_meaning": means or code}
        for code, means in choices
        if kind not in ("calc", "slider")  # a formula, or the words beside a scale
    ]
    yield from _described(name, place, coded or [cells])


def _of_export(forms: Iterable[str]) -> Iterator[Variable]:
    """Describe the columns that an export adds to those of a dictionary."""
    for form in forms:
        yield Variable(
            name=f"{form}_complete",
            kind="categorical",
            levels=_COMPLETE,
            meaning=f"status of the form {text_of(form)}",
            required=True,
            optional=True,
        )
    for name in _REDCAP_COLUMNS:
        yield Variable(name=name, kind="ignore", meaning="added by REDCap", optional=True)
