"""Reader of codebook files of every supported kind: sheets and schemas."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from privacy.errors import extra
from storage.codebooks.sheets import sheet_variables
from storage.codebooks.variables import Levels, Variable, codebook_refusal, text_of, variable
from storage.schema.columns import raw_text
from storage.schema.plain_yaml import constructed

MAX_BYTES = 20_000_000
"""Largest codebook."""

_DELIMITERS = ",;\t|"
_Found = tuple[Variable, ...] | None


def read_codebook(path: Path) -> Mapping[str, Variable]:
    """Return the variables of a codebook by column name.

    Accepted are sheets (``.csv``, ``.tsv``, ``.txt``, ``.xlsx``) with a line of headings
    (`storage.codebooks.sheets.HEADINGS`), including REDCap data dictionaries, and schemas
    (``.json``, ``.yaml``) of Frictionless, JSON Schema and LinkML. Anything else is a
    ConfigurationError of one line that repeats no cell of a sheet.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise codebook_refusal(
            "KIND",
            f"{path.name}: expected a codebook as {', '.join(_READERS)}; save it as one of these",
        )
    content = _content(path)
    found: _Found = None
    problem = False
    try:
        found = read(content)
    except (ValueError, csv.Error, yaml.YAMLError, RecursionError):
        problem = True  # raised outside this block, as their text may repeat the file
    if problem:
        raise codebook_refusal(
            "UNREADABLE",
            f"{path.name}: expected a whole {path.suffix} file, text in UTF-8; save it anew",
        )
    if not found:
        raise codebook_refusal(
            "UNKNOWN",
            f"{path.name}: expected a line of headings with a column for names (name, variable, "
            "field) and others (type, minimum, maximum, levels, unit, missing, description), a "
            "REDCap dictionary, or a schema of Frictionless, JSON Schema or LinkML",
        )
    by_name = {one.name: one for one in found}
    if len(by_name) < len(found):
        raise codebook_refusal("DUPLICATE", f"{path.name}: expected each column once")
    return by_name


def _content(path: Path) -> bytes:
    content = b""
    if path.is_file():
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
    if not 0 < len(content) <= MAX_BYTES:
        raise codebook_refusal(
            "MISSING", f"expected a codebook of 1 to {MAX_BYTES:,} bytes at {path}; check the path"
        )
    return content


def _text_sheet(content: bytes) -> _Found:
    text = content.decode("utf-8-sig")
    sheets = (csv.reader(io.StringIO(text, newline=""), delimiter=mark) for mark in _DELIMITERS)
    return next(filter(None, map(sheet_variables, sheets)), None)


def _workbook(content: bytes) -> _Found:
    with extra("hospital"):
        import openpyxl
    try:
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        rows = [list(sheet.iter_rows(values_only=True)) for sheet in book]
    except Exception as error:  # openpyxl has no class for a broken archive
        raise ValueError from error
    return next(filter(None, map(sheet_variables, rows)), None)


_READERS: dict[str, Callable[[bytes], _Found]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _text_sheet),
    ".xlsx": _workbook,
    ".json": lambda content: schema_variables(json.loads(content)),
    **dict.fromkeys((".yaml", ".yml"), lambda content: schema_variables(constructed(content))),
}


_Part = Mapping[str, Any]


def schema_variables(data: object) -> tuple[Variable, ...] | None:
    """Return the variables of a schema; None if its kind is unknown.

    A package of several tables is ambiguous and refused (ConfigurationError).
    """
    root = _mapping(data)
    if isinstance(root.get("resources"), Sequence):
        schemas = [_mapping(_mapping(one).get("schema")) for one in root["resources"]]
        schemas = [schema for schema in schemas if "fields" in schema]
        if len(schemas) != 1:
            raise codebook_refusal(
                "TABLES",
                f"codebook: expected the schema of one table, found {len(schemas)}; give a file "
                "with that of yours alone",
            )
        return schema_variables(schemas[0])
    if isinstance(root.get("fields"), Sequence):
        return tuple(_frictionless(root))
    if "classes" in root or "slots" in root:
        return tuple(_linkml(root))
    table = _resolved(root, root)
    table = _resolved(table.get("items"), root) if "items" in table else table
    return tuple(_json_schema(table, root)) if _mapping(table.get("properties")) else None


def _frictionless(root: _Part) -> Iterator[Variable]:
    for field in map(_mapping, root["fields"]):
        limits = _mapping(field.get("constraints"))
        missing = _texts(field.get("missingValues", root.get("missingValues", "")))
        yield variable(
            *_named(field.get("name")),
            kind=text_of(field.get("type")),
            levels=_levels(field.get("categories") or limits.get("enum"), "value", "label"),
            bounds=(limits.get("minimum"), limits.get("maximum")),
            missing=tuple(filter(None, missing)),
            unit=field.get("unit"),
            meaning=field.get("title") or field.get("description"),
            # Without a missing value, only a text column may have an empty cell.
            required=limits.get("required") is True or "" not in missing,
        )


def _json_schema(table: _Part, root: _Part) -> Iterator[Variable]:
    for name, given in table["properties"].items():
        field = _resolved(given, root)
        options = [_mapping(one) for one in _list(field.get("oneOf") or field.get("anyOf"))]
        kinds = [kind for one in (field, *options) for kind in _texts(one.get("type"))]
        kinds = ["date"] if text_of(field.get("format")).startswith("date") else kinds
        yield variable(
            *_named(name),
            kind=next((kind for kind in kinds if kind != "null"), ""),
            levels=_levels([one for one in options if "const" in one], "const", "title")
            or _levels([one for one in _list(field.get("enum")) if one is not None]),
            bounds=(field.get("minimum"), field.get("maximum")),
            unit=field.get("unit"),
            meaning=field.get("title") or field.get("description"),
            required=name in _texts(table.get("required")) and "null" not in kinds,
        )


def _linkml(root: _Part) -> Iterator[Variable]:
    slots = dict(_mapping(root.get("slots")))
    for one in map(_mapping, _mapping(root.get("classes")).values()):
        slots |= _mapping(one.get("attributes"))
    for name, slot in ((name, _mapping(given)) for name, given in slots.items()):
        unit, kind = _mapping(slot.get("unit")), text_of(slot.get("range"))
        enum = _mapping(_mapping(root.get("enums")).get(kind))
        listed = _mapping(enum.get("permissible_values"))
        yield variable(
            *_named(name),
            kind="identifier" if slot.get("identifier") is True else kind,
            levels=_levels([{"code": code, **_mapping(one)} for code, one in listed.items()]),
            bounds=(slot.get("minimum_value"), slot.get("maximum_value")),
            unit=unit.get("ucum_code") or unit.get("symbol"),
            meaning=slot.get("title") or slot.get("description"),
            required=slot.get("required") is True,
            derived=slot.get("equals_expression"),
        )


def _named(name: object) -> tuple[str, str]:
    """Return the place of a column for messages, and its name."""
    text = text_of(name)
    if not text:
        raise codebook_refusal("NAME", "codebook: expected a name of every column, found none")
    return f"column {text[:80]} of the codebook", text


def _levels(listed: object, code: str = "code", meaning: str = "description") -> Levels:
    pairs = [one if isinstance(one, Mapping) else {code: one} for one in _list(listed)]
    return tuple((raw_text(one.get(code, "")), text_of(one.get(meaning))) for one in pairs)


def _resolved(value: object, root: _Part) -> _Part:
    """Follow a reference within a JSON Schema; an unknown one is empty."""
    found = _mapping(value)
    if "$ref" not in found:
        return found
    keys = str(found["$ref"]).removeprefix("#/").split("/")
    return reduce(lambda place, key: _mapping(place.get(key)), keys, root)


def _mapping(value: object) -> _Part:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value
    return [] if value is None else [value]


def _texts(value: object) -> list[str]:
    return [raw_text(one) for one in _list(value)]
