"""Codebooks that are sheets: a row for each column of a table, or for each of its codes.

The line of headings is found by its words, and may follow a title. REDCap's data dictionary is a
sheet with fixed headings and rules of its own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
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
    "name": "variable, variable name, name, column, column name, field, field name",
    "kind": "type, kind, data type, field type",
    "levels": "levels, values, codes, choices, categories, allowed values, coding, code, value",
    "level_meaning": "value label, value meaning, value description, code label, code meaning",
    "lower": "minimum, min, lower, lower bound",
    "upper": "maximum, max, upper, upper bound",
    "range": "range, valid range, bounds",
    "missing": "missing, missing codes, missing values, missing code",
    "unit": "unit, units",
    "meaning": "description, label, meaning, variable label, field label, definition, question",
    "required": "required, mandatory",
    "identifier": "identifier",
}
"""Accepted headings by the content of their column; case, blanks and signs are ignored."""

_REDCAP = {
    "Variable / Field Name": "name",
    "Choices, Calculations, OR Slider Labels": "levels",
    "Text Validation Type OR Show Slider Number": "validation",
    "Text Validation Min": "lower",
    "Text Validation Max": "upper",
    "Required Field?": "required",
}
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
            described = _redcap if "variablefieldname" in map(_plain, row) else _described
            return tuple(
                one
                for name, (number, cells) in _by_name(lines, places).items()
                for one in described(name, f"row {number} of the codebook", cells)
            )
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
                    f"row {number} of the codebook: expected each column once, or its rows below "
                    "each other",
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
    )


def _redcap(name: str, place: str, rows: list[_Cells]) -> Iterator[Variable]:
    """Convert a field: a checkbox becomes a column for each choice; a text has a validation."""
    cells = rows[0] | {"required": rows[0].get("required") or "n"}
    kind = _plain(cells.get("kind"))
    choices = levels_in(cells.pop("levels", ""), comma=True)
    if kind == "checkbox":
        for code, means in choices:
            meant = {"kind": "truefalse", "meaning": f"{cells.get('meaning', '')}: {means}"}
            yield from _described(f"{name}___{code.lower()}", place, [cells | meant])
        return
    if kind == "descriptive":  # a text on a form
        return
    if kind == "text":
        validation = cells.get("validation", "").lower()
        cells["kind"] = next((k for k in ("integer", "number", "date") if k in validation), "")
    coded = [
        cells | {"levels": code, "level_meaning": means or code}
        for code, means in choices
        if kind not in ("calc", "slider")  # a formula, or the words beside a scale
    ]
    yield from _described(name, place, coded or [cells])
