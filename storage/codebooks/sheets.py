"""Codebooks that are sheets: a row for each column of a table, or for each of its codes.

The line of headings is found by its words, below a title if there is one. REDCap's data dictionary
is such a sheet with fixed headings and rules of its own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from storage.codebooks.variables import (
    Variable,
    codebook_refusal,
    kind_of,
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
"""Headings that are understood, by what their column says; case, blanks and signs do not count."""

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
_YES_NO = (("1", "Yes"), ("0", "No"))
_CODES = {"yesno": _YES_NO, "truefalse": (("1", "True"), ("0", "False"))}


def _plain(heading: object) -> str:
    return re.sub(r"[^a-z]", "", text_of(heading).lower())


_MEANT = {
    _plain(heading): key for key, listed in HEADINGS.items() for heading in listed.split(", ")
} | {_plain(heading): key for heading, key in _REDCAP.items()}

Row = Sequence[object]


def sheet_variables(rows: Iterable[Row]) -> tuple[Variable, ...] | None:
    """Return what the rows of a sheet say; None if no line of it has the headings of a codebook."""
    lines = iter(enumerate(rows, start=1))
    for number, row in lines:
        columns = _columns(row)
        if columns is not None:
            is_redcap = "variablefieldname" in map(_plain, row)
            return tuple(_variables(lines, columns, is_redcap=is_redcap))
        if number == _MAX_TITLE_LINES:
            break
    return None


def _columns(row: Row) -> dict[str, int] | None:
    """Return the place of each heading if the row has that of a name and one more."""
    found: dict[str, int] = {}
    for place, heading in enumerate(row):
        key = _MEANT.get(_plain(heading))
        if key is not None:
            found.setdefault(key, place)
    return found if "name" in found and len(found) > 1 else None


def _variables(
    lines: Iterator[tuple[int, Row]], columns: dict[str, int], *, is_redcap: bool
) -> Iterator[Variable]:
    """Join the rows of one column: its codes may stand below each other."""
    started: dict[str, str] = {}
    listed: list[tuple[str, str]] = []
    first = 0
    seen: set[str] = set()
    for number, row in lines:
        cells = {key: text_of(row[at]) for key, at in columns.items() if at < len(row)}
        # Line ends separate levels; one line of text has none.
        raw = raw_text(row[columns["levels"]]) if cells.get("levels") else ""
        name = cells.get("name", "")
        if name and name != started.get("name"):
            if started:
                yield from _described(started, tuple(listed), first, is_redcap=is_redcap)
            started, listed, first = cells, [], number
            if name in seen:
                raise codebook_refusal(
                    "DUPLICATE",
                    f"row {number} of the codebook: expected each column once, or its rows below "
                    "each other",
                )
            seen.add(name)
        elif not any(cells.values()) or not started:
            continue
        if "level_meaning" in cells:
            code = text_of(raw).strip("\"'")
            listed += [(code, cells["level_meaning"])] if code else []
        elif raw and range_in(raw) is None:
            listed += levels_in(raw, comma=is_redcap)
        elif raw:
            started["range"] = raw
    if started:
        yield from _described(started, tuple(listed), first, is_redcap=is_redcap)


def _described(
    cells: dict[str, str], levels: tuple[tuple[str, str], ...], row: int, *, is_redcap: bool
) -> Iterator[Variable]:
    name, kind, place = cells["name"], cells.get("kind", ""), f"row {row} of the codebook"
    word, validation = _plain(kind), cells.get("validation", "").lower()
    if word == "descriptive":  # a text on a form of REDCap
        return
    required = cells["required"].lower() in _YES if cells.get("required") or is_redcap else None
    if is_redcap and word == "checkbox":
        for code, means in levels:
            meaning = f"{cells.get('meaning', '')}: {means}"
            column = f"{name}___{code.lower()}"
            yield variable(
                place, name=column, levels=_CODES["truefalse"], meaning=meaning, required=required
            )
        return
    if is_redcap and word in ("calc", "slider"):  # a formula, or the words beside a scale
        levels = ()
    if is_redcap and word == "text":
        kind = next((k for k in ("integer", "number", "date") if k in validation), "")
    if cells.get("identifier", "").lower() in _YES:
        kind = "identifier"
    ends = range_in(cells.get("range", "")) or ("", "")
    if kind_of(kind) == "ignore":
        ends = ("", "")
    bounds = (cells.get("lower") or ends[0], cells.get("upper") or ends[1])
    yield variable(
        place,
        name=name,
        kind=kind,
        levels=levels or _CODES.get(word, ()),
        bounds=(None, None) if kind_of(kind) == "ignore" else bounds,
        missing=tuple(code for code, _ in levels_in(cells.get("missing", ""))),
        unit=cells.get("unit"),
        meaning=cells.get("meaning"),
        required=required,
    )
