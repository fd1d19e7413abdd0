"""The faults of a declared file, all at once, each in words with its line and column."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from storage.schema.columns import SEPARATOR, did_you_mean, near
from storage.schema.plain_yaml import PLACEHOLDER, place_of, read_nodes, refusal

MOST_FAULTS = 100
"""Most faults that a refusal lists."""

Location = tuple[str | int, ...]
"""Keys and indices on the way to a part of a file."""

_Model = TypeVar("_Model", bound=BaseModel)
_KNOWN = {"missing": "expected this key, found none", "extra_forbidden": "unknown key"}
_CHOICES = {"union_tag_invalid": "expected_tags", "literal_error": "expected", "enum": "expected"}
_NAMED = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)(?:: |, )")
_TO_FILL = f"expected a value instead of {PLACEHOLDER}"
_FROM = "take bounds, bins and levels from a codebook or a clinical range, never from the records"


def read_declared(path: Path, model: type[_Model], *, code: str) -> _Model:
    """Read a YAML mapping and check it by a model.

    The ConfigurationError, whose code begins with `code`, lists every fault in the order of the
    file; faults between parts appear once the parts are valid. A misspelt word is read as the
    closest known word, so that the content below it is checked too.
    """
    root, anew = read_nodes(path)
    data = anew()
    empty = [*_placeholders(data, ())]
    faults = [(_mark(root, loc), f"{located(loc, data)[1]}: {_TO_FILL}") for loc in empty]
    while True:
        data, declared, found = anew(), None, []
        try:
            declared = model.model_validate(data, by_name=False, by_alias=True)
        except ValidationError as error:
            for loc, text, one in islice(faults_of(error, data), MOST_FAULTS):
                found.append((_mark(root, loc, one["type"]), loc, text, one))
        hints = [_mend(root, loc, one, model) for _, loc, _, one in found]
        if len(faults) >= MOST_FAULTS or all(hint is None for hint in hints):
            break
        mended = zip(found, hints, strict=True)
        faults += [(mark, text + hint) for (mark, _, text, _), hint in mended if hint is not None]
    faults += [
        (mark, text)
        for mark, loc, text, _ in found
        # A part that holds a placeholder may be faulty for that reason alone.
        if loc not in empty and not any(loc[1:] and part[: len(loc)] == loc for part in empty)
    ]
    if declared is not None and not faults:
        return declared
    faults.sort(key=lambda fault: (fault[0].line, fault[0].column))
    lines = [*dict.fromkeys(f"{place_of(mark)}: {text}" for mark, text in faults)][:MOST_FAULTS]
    code += "_INCOMPLETE" if len(empty) == len(lines) else "_INVALID"
    raise refusal(code, f"{path.name}: {_FROM + ': ' if empty else ''}", lines)


def one_line(error: ValidationError, data: dict[Any, Any]) -> str:
    """Return the faults of a mapping that a model has refused: each key with its first fault."""
    return SEPARATOR.join(text for _, text, _ in faults_of(error, data))


def faults_of(error: ValidationError, data: dict[Any, Any]) -> Iterator[tuple[Location, str, Any]]:
    """Yield each fault with its location in the file, its text and pydantic's own words."""
    seen: set[Location] = set()
    wholes: set[Location] = set()
    for one in error.errors(include_url=False):
        if one["loc"] in wholes:  # its fault follows from that of a part
            continue
        wholes.update(one["loc"][:end] for end in range(len(one["loc"])))
        loc, where = located(one["loc"], data, last_may_be_absent=one["type"] in _KNOWN)
        if loc in seen:
            continue
        seen.add(loc)
        for message in (_KNOWN.get(one["type"]) or _in_our_words(one)).split(SEPARATOR):
            text = " ".join(f"{where}: {message}".removeprefix(": ").split())
            named = _NAMED.match(message)
            tag = one.get("ctx", {}).get("discriminator", "").strip("'")
            yield (*loc, *(named[1].split(".") if named else [tag] * bool(tag))), text, one


def _in_our_words(fault: Any) -> str:
    """Reword a message of a model for the author of a file."""
    message: str = fault["msg"]
    context = fault.get("ctx", {})
    hint = did_you_mean(context.get("tag", fault["input"]), _choices(fault))
    if "expected_tags" in context:
        found = f", found {context['tag']!r}{hint}"
        return f"expected {context['discriminator']} to be one of {context['expected_tags']}{found}"
    if "discriminator" in context:
        return f"expected the key {context['discriminator']}, found none"
    message = message.removeprefix("Value error, ").replace(" after validation", "")
    for theirs, ours in (
        ("Input should be ", "expected "),
        ("String should have ", "expected text with "),
        ("Tuple should have ", "expected a list with "),
        ("expected (greater|less) ", r"expected a number \1 "),
        ("a valid (number|integer), .*", r"a valid \1"),
        ("a valid dictionary( or .*)?", "a mapping of keys"),
        ("a valid (tuple|list)", "a list"),
        ("Keys should be strings", "expected keys that are words (a decimal has a point: 1.5)"),
    ):
        message = re.sub(theirs, ours, message)
    return message + hint


def _choices(fault: Any) -> list[str]:
    return re.findall("'([^']*)'", str(fault.get("ctx", {}).get(_CHOICES.get(fault["type"]))))


def _mend(root: yaml.Node, loc: Location, fault: Any, model: type[BaseModel]) -> str | None:
    """Replace a misspelt word, or drop an unknown key; return the hint, None if nothing changed."""
    way = [(root, root), *_way(root, loc)]
    key, value = way[-1]
    if len(way) == len(loc) + 1 and fault["type"] == "extra_forbidden":
        pairs = way[-2][1].value
        known = _known_keys(model, fault["loc"][:-1]) - {one.value for one, _ in pairs}
        hint = did_you_mean(key.value, known)
        if guess := near(key.value, known):
            key.tag, key.value = "tag:yaml.org,2002:str", guess
        else:
            pairs[:] = [pair for pair in pairs if pair[0] is not key]
        return hint
    if fault["type"] == "union_tag_not_found" and isinstance(value, yaml.MappingNode):
        keys = {one.value: one for one, _ in value.value}
        if word := near(loc[-1], keys):
            keys[word].value = str(loc[-1])
            return f"; did you mean {loc[-1]} by {word}?"
    guess = near(value.value, _choices(fault)) if isinstance(value, yaml.ScalarNode) else None
    value.value = guess or value.value
    return "" if guess else None


def _known_keys(model: type[BaseModel], loc: Location) -> set[str]:
    """Return the keys of a part of a model; its location has pydantic's tags of unions."""
    here = {model}
    for step in loc:
        fields = [(name, one) for each in here for name, one in each.model_fields.items()]
        inner = [_models(one.annotation) for name, one in fields if step == (one.alias or name)]
        kinds = {each: each.model_fields.get("kind") for each in here}
        tagged = {
            each for each, kind in kinds.items() if kind and step in get_args(kind.annotation)
        }
        here = set().union(*inner) or tagged or here
    return {one.alias or name for each in here for name, one in each.model_fields.items()}


def _models(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return set[type[BaseModel]]().union(*map(_models, get_args(annotation)))


def _way(node: yaml.Node, loc: Location) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield the nodes of keys and values on the path to a location, up to the last that exists."""
    for step in loc:
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = parts if isinstance(node, yaml.MappingNode) else [(one, one) for one in parts]
        names = [key.value for key, _ in pairs] if pairs is parts else range(len(parts))
        found = [pair for name, pair in zip(names, pairs, strict=True) if str(name) == str(step)]
        if not found:
            return
        yield found[-1]
        node = found[-1][1]


def _mark(root: yaml.Node, loc: Location, kind: str = "") -> yaml.Mark:
    """Return the mark of a scalar value, else of its key; for an absent key, of the part above."""
    *_, (key, value) = ((root, root), *_way(root, loc))
    one = value if isinstance(value, yaml.ScalarNode) and kind not in _KNOWN else key
    return one.start_mark


def located(
    loc: Location, data: object, *, last_may_be_absent: bool = False
) -> tuple[Location, str]:
    """Return a location without pydantic's additions for unions, and in words."""
    steps: list[str | int] = []
    path = ""
    for position, key in enumerate(loc):
        if isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
            name = data.get("name") if isinstance(data, dict) else None
            path += f"[{key}]" + (f" ({name})" if isinstance(name, str) else "")
        elif isinstance(data, dict) and key in data:
            data = data[key]
            path += f".{key}" if path else str(key)
        elif last_may_be_absent and position == len(loc) - 1:
            path += f".{key}" if path else str(key)
        else:
            continue
        steps.append(key)
    return tuple(steps), path


def require_filled_in(code: str, data: object, of: str) -> None:
    """Refuse a declaration in which a person has left a placeholder; every place is named."""
    places = ", ".join(located(loc, data)[1] for loc in _placeholders(data, ()))
    if places:
        raise refusal(code, f"{of}: {_TO_FILL} at {places}; {_FROM}")


def _placeholders(value: Any, above: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from _placeholders(one, (*above, key))
    elif value == PLACEHOLDER:
        yield above
