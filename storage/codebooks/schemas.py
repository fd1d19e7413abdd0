"""Codebooks that are schemas: a Frictionless table schema or package, JSON Schema, LinkML."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from storage.codebooks.variables import Variable, codebook_refusal, text_of, variable
from storage.schema.columns import raw_text

_MAX_REFERENCES = 20


def schema_variables(data: object) -> tuple[Variable, ...] | None:
    """Return what a schema says about its columns; None if it is none of the known kinds.

    A schema of several tables is refused (ConfigurationError), for nobody can say which is meant.
    """
    if not isinstance(data, Mapping):
        return None
    if isinstance(data.get("resources"), Sequence):
        schemas = [_mapping(_mapping(one).get("schema")) for one in data["resources"]]
        return schema_variables(_only([one for one in schemas if "fields" in one]))
    if isinstance(data.get("fields"), Sequence):
        shared = _list(data.get("missingValues", [""]))
        return tuple(_frictionless(_mapping(one), shared) for one in data["fields"])
    if "classes" in data or "slots" in data:
        return tuple(_linkml(data))
    table = _resolved(data, data)
    table = _resolved(table.get("items"), data) if "items" in table else table
    if isinstance(table.get("properties"), Mapping):
        return tuple(_json_schema(table, data))
    return None


def _frictionless(field: Mapping[str, Any], shared: Sequence[Any]) -> Variable:
    limits = _mapping(field.get("constraints"))
    missing = _texts(field.get("missingValues", shared))
    listed = field.get("categories") or limits.get("enum") or ()
    return variable(
        *_named(field.get("name")),
        kind=text_of(field.get("type")),
        levels=_pairs(listed, "value", "label"),
        bounds=_ends(limits, "minimum", "maximum"),
        missing=tuple(code for code in missing if code),
        unit=field.get("unit"),
        meaning=field.get("title") or field.get("description"),
        # Without a missing value, an empty cell is no value of any type but text.
        required=limits.get("required") is True or "" not in missing,
    )


def _json_schema(table: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Variable]:
    required = _texts(table.get("required", ()))
    for name, given in table["properties"].items():
        field = _resolved(given, root)
        options = _list(field.get("oneOf") or field.get("anyOf") or ())
        kinds = _texts(field.get("type", ()))
        kinds += [kind for one in options for kind in _texts(_mapping(one).get("type", ()))]
        named = [one for one in options if "const" in _mapping(one)]
        listed = [value for value in _list(field.get("enum", ())) if value is not None]
        yield variable(
            *_named(name),
            kind=next((kind for kind in kinds if kind != "null"), ""),
            levels=_pairs(named or listed, "const", "title"),
            bounds=_ends(field, "minimum", "maximum"),
            unit=field.get("unit"),
            meaning=field.get("title") or field.get("description"),
            required=name in required and "null" not in kinds,
        )


def _linkml(data: Mapping[str, Any]) -> Iterator[Variable]:
    slots = dict(_mapping(data.get("slots")))
    for one in _mapping(data.get("classes")).values():
        slots |= _mapping(_mapping(one).get("attributes"))
    enums = _mapping(data.get("enums"))
    for name, given in slots.items():
        slot = _mapping(given)
        unit = _mapping(slot.get("unit"))
        listed = _mapping(_mapping(enums.get(text_of(slot.get("range")))).get("permissible_values"))
        yield variable(
            *_named(name),
            kind="identifier" if slot.get("identifier") is True else text_of(slot.get("range")),
            levels=tuple(
                (raw_text(code), text_of(_mapping(value).get("description")))
                for code, value in listed.items()
            ),
            bounds=_ends(slot, "minimum_value", "maximum_value"),
            unit=unit.get("ucum_code") or unit.get("symbol"),
            meaning=slot.get("title") or slot.get("description"),
            required=slot.get("required") is True,
        )


def _named(name: object) -> tuple[str, str]:
    """Return where to look for a column, and its name."""
    text = text_of(name)
    if not text:
        raise codebook_refusal("NAME", "codebook: expected a name of every column, found none")
    return f"column {text[:80]} of the codebook", text


def _ends(field: Mapping[str, Any], lower: str, upper: str) -> tuple[object, object]:
    return field.get(lower), field.get(upper)


def _pairs(listed: Sequence[Any], code: str, meaning: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (raw_text(one[code]), text_of(one.get(meaning)))
        if isinstance(one, Mapping) and code in one
        else (raw_text(one), "")
        for one in listed
    )


def _resolved(value: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references within a JSON Schema; what they do not find is empty."""
    found = _mapping(value)
    for _ in range(_MAX_REFERENCES):
        if "$ref" not in found:
            return found
        place: Any = root
        for key in str(found["$ref"]).removeprefix("#/").split("/"):
            place = _mapping(place).get(key)
        found = _mapping(place)
    return {}


def _only(schemas: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(schemas) != 1:
        raise codebook_refusal(
            "TABLES",
            f"codebook: expected the schema of one table, found {len(schemas)}; give a file with "
            "that of yours alone",
        )
    return schemas[0]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    if isinstance(value, str | int | float) or not isinstance(value, Sequence):
        return [] if value is None else [value]
    return value


def _texts(value: object) -> list[str]:
    return [raw_text(one) for one in _list(value)]
