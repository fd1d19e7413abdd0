"""Reader of small, plain YAML; a refusal is one printable line.

Plain means mappings, lists, text, numbers and null. Tags, loops and repeated keys are refused, so
that nothing in a file runs, expands or hides. A level is the text that stands in the file: ``1:40``
is no number of base 60, ``010`` no octal one, and ``No`` is not false.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from privacy.errors import ConfigurationError
from storage.schema.columns import raw_text

PLACEHOLDER = "FILL_IN"
"""Stands in a template or a draft where a person has to decide; no release takes it."""

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
"""Largest number of YAML nodes once every alias is written out."""
MAX_LEVELS = 40
"""Deepest nesting."""
MAX_LINE = 2_400
"""Most characters of a message; a longer one loses its middle."""

_PREFIX = "tag:yaml.org,2002:"
_TEXT, _NULL = _PREFIX + "str", _PREFIX + "null"
_PLAIN = {
    _PREFIX + kind
    for kind in ("null", "bool", "int", "float", "timestamp", "str", "seq", "map", "merge")
}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def read_mapping(path: Path) -> dict[Any, Any]:
    """Read a YAML mapping, small and plain; the ConfigurationError is one printable line."""
    return _parse(_read(path), path)


def constructed(text: str | bytes) -> Any:
    """Return the data of a YAML text, each scalar as it is written; errors are those of PyYAML."""
    return _Loader(text).get_single_data()


def refusal(code: str, text: str) -> ConfigurationError:
    """Return an error of one printable line, whatever text the file contributes."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    if len(line) > MAX_LINE:
        line = f"{line[: MAX_LINE // 2]} [...] {line[-MAX_LINE // 3 :]}"
    return ConfigurationError(code, line)


def one_line(error: ValidationError, data: dict[Any, Any]) -> str:
    """Return the faults of a mapping that a model has refused: each key with its first fault."""
    known = {"missing": "expected this key, found none", "extra_forbidden": "unknown key"}
    faults: dict[str, str] = {}
    wholes: set[tuple[str | int, ...]] = set()
    for one in error.errors(include_url=False, include_input=False):
        if one["loc"] in wholes:  # its fault follows from that of a part
            continue
        wholes.update(one["loc"][:end] for end in range(len(one["loc"])))
        message = known.get(one["type"]) or _in_our_words(one["msg"], one.get("ctx", {}))
        where = key_path(one["loc"], data, last_may_be_absent=one["type"] in known)
        faults.setdefault(where, " ".join(f"{where}: {message}".removeprefix(": ").split()))
    return "; and ".join(faults.values())


def _in_our_words(message: str, context: dict[str, Any]) -> str:
    """Reword a message of a model for the author of a file."""
    if "expected_tags" in context:
        found = f", found {context['tag']!r}"
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
    ):
        message = re.sub(theirs, ours, message)
    return message


def key_path(loc: tuple[str | int, ...], data: object, *, last_may_be_absent: bool = False) -> str:
    """Write a location as keys of the file, without the additions of pydantic for unions."""
    path = ""
    for position, key in enumerate(loc):
        is_last = position == len(loc) - 1
        if isinstance(data, dict) and key in data:
            data = data[key]
            path += f".{key}" if path else str(key)
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
            name = data.get("name") if isinstance(data, dict) else None
            path += f"[{key}]" + (f" ({name})" if isinstance(name, str) else "")
        elif is_last and last_may_be_absent:
            path += f".{key}" if path else str(key)
    return path


def require_filled_in(code: str, data: object, of: str) -> None:
    """Refuse a declaration in which a person has left a placeholder; every place is named."""
    places = ", ".join(key_path(loc, data) for loc in _placeholders(data, ()))
    if places:
        raise refusal(
            code,
            f"{of}: expected a value instead of {PLACEHOLDER} at {places}; take bounds, bins and "
            "levels from a codebook or a clinical range, never from the records",
        )


def _placeholders(value: Any, above: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from _placeholders(one, (*above, key))
    elif value == PLACEHOLDER:
        yield above


def _read(path: Path) -> str:
    found = ""
    try:
        if path.is_dir():
            found = ", found a folder; name a file in it"
        elif path.exists() and not path.is_file():
            # Reading a pipe would block.
            found = ", found a pipe or a device; write it to a file"
        else:
            with path.open("rb") as handle:
                content = handle.read(MAX_BYTES + 1)
    except PermissionError:
        found = " that may be read; mend its permissions"
    except (OSError, ValueError):  # ValueError: a path with a null character
        found = "; check the path, or run clustmix init"
    if found:
        raise refusal("SITE_MISSING", f"expected a site file at {path}{found}")
    if len(content) > MAX_BYTES:
        raise refusal(
            "SITE_TOO_LARGE", f"{path.name}: expected at most {MAX_BYTES} bytes; shorten the file"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    raise refusal(
        "SITE_UNREADABLE", f"{path.name}: expected text in UTF-8; save it in that encoding"
    )


def _parse(text: str, path: Path) -> dict[Any, Any]:
    data: Any = None
    problem = ""
    n_nodes = 0
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            # Aliases are shared objects; walking nested ones takes exponential time.
            n_nodes = _NodeCount(loader).count(node)
            if n_nodes <= MAX_NODES:
                data = loader.construct_document(node)
    except Exception as error:
        # The constructors of PyYAML raise nearly everything: KeyError for !!bool "x", IndexError
        # for !!int "", OverflowError for a character beyond Unicode.
        problem = _problem(error)
    if problem:
        raise refusal(
            "SITE_UNREADABLE", f"{path.name}: expected plain YAML, found an error{problem}"
        )
    if n_nodes > MAX_NODES:
        raise refusal(
            "SITE_TOO_LARGE",
            f"{path.name}: expected at most {MAX_NODES} YAML nodes with aliases written out; "
            "shorten the file",
        )
    if not isinstance(data, dict):
        raise refusal(
            "SITE_UNREADABLE", f"{path.name}: expected a mapping of keys; see clustmix init"
        )
    return data


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{where}: {getattr(error, 'problem', None) or 'not plain YAML'}"


class _Loader(yaml.SafeLoader):
    """Reads a scalar without quotes as text, unless it is null, true, false or a plain number.

    A number is plain if Python writes it so. A key that wants a date or a number reads the text.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node, as the parser asks for it."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is not yaml.ScalarNode or tag in (_TEXT, _NULL, _PREFIX + "merge"):
            return tag
        if tag == _PREFIX + "bool" and value in ("true", "false"):
            return tag
        if not _NUMBER.fullmatch(value):
            return _TEXT
        written = repr(float(value)) if "." in value else str(int(value))
        return tag if written == value and not value.endswith(".0") else _TEXT


class _NodeCount:
    """Counts nodes with aliases expanded; refuses YAML that is not plain."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._sizes: dict[int, int] = {}

    def count(self, node: yaml.Node, above: tuple[int, ...] = ()) -> int:
        if id(node) in above:
            raise _at(node, "an alias inside its own anchor")
        if len(above) >= MAX_LEVELS:
            raise _at(node, f"more than {MAX_LEVELS} levels")
        if id(node) not in self._sizes:
            children = self._children(node)
            inside = (*above, id(node))
            self._sizes[id(node)] = 1 + sum(self.count(child, inside) for child in children)
        return self._sizes[id(node)]

    def _children(self, node: yaml.Node) -> list[yaml.Node]:
        if node.tag not in _PLAIN:
            name = node.tag.removeprefix(_PREFIX)
            raise _at(node, f"the tag {name!r}; write plain values, and text in quotes")
        if isinstance(node, yaml.MappingNode):
            self._refuse_twice([key for key, _ in node.value])
            return [child for pair in node.value for child in pair]
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise _at(node, "half of a character; write the whole one")
        return []

    def _refuse_twice(self, keys: list[yaml.Node]) -> None:
        seen: set[str] = set()
        for key in keys:
            if not isinstance(key, yaml.ScalarNode):
                raise _at(key, "a key that is a list or a mapping; write text")
            # The schema compares levels in this form: 1, 0x1, 1.0 and "1" are equal.
            merges = key.tag == _PREFIX + "merge"
            text = key.value if merges else raw_text(self._loader.construct_object(key))
            if text in seen:
                raise _at(key, f"the key {key.value!r} is given twice")
            seen.add(text)


def _at(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
