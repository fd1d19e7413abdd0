"""Reader of small, plain YAML; a refusal is one printable line.

Plain means mappings, lists, text, numbers and null. Tags, loops and repeated keys are refused, so
that nothing in a file runs, expands or hides. A level is the text that stands in the file: ``1:40``
is no number of base 60, ``010`` no octal one, and ``No`` is not false.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from privacy.errors import ConfigurationError
from storage.schema.columns import SEPARATOR, raw_text

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
    return read_nodes(path)[1]()


def read_nodes(path: Path) -> tuple[yaml.Node, Callable[[], dict[Any, Any]]]:
    """Read the nodes of a mapping, with their marks, and a function that makes the mapping."""
    return _parse(_read(path), path)


def constructed(text: str | bytes) -> Any:
    """Return the data of a YAML text, each scalar as it is written; errors are those of PyYAML."""
    return _Loader(text).get_single_data()


def refusal(code: str, text: str, faults: Sequence[str] = ()) -> ConfigurationError:
    """Return an error of one printable line (or a line for each fault), whatever the file holds."""
    error = ConfigurationError(code, _printable(text + SEPARATOR.join(faults)))
    if len(faults) > 1:
        error.faults = tuple(map(_printable, faults))
    return error


def _printable(text: str) -> str:
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    if len(line) > MAX_LINE:
        line = f"{line[: MAX_LINE // 2]} [...] {line[-MAX_LINE // 3 :]}"
    return line


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
    text = f"{path.name}: expected text in UTF-8; save it in that encoding"
    raise refusal("SITE_UNREADABLE", text)


def _parse(text: str, path: Path) -> tuple[yaml.Node, Callable[[], dict[Any, Any]]]:
    data = problem = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        # Aliases are shared objects; walking nested ones takes exponential time.
        n_nodes = 0 if node is None else _NodeCount(loader).count(node)
        if node is not None and n_nodes <= MAX_NODES:
            data = loader.construct_document(node)
    except Exception as error:
        # PyYAML raises nearly everything: KeyError for !!bool "x", IndexError for !!int "", etc.
        problem = f"{path.name}: expected plain YAML, found an error{_problem(error)}"
    if problem is not None:
        raise refusal("SITE_UNREADABLE", problem)
    if n_nodes > MAX_NODES:
        raise refusal(
            "SITE_TOO_LARGE",
            f"{path.name}: expected at most {MAX_NODES} YAML nodes with aliases written out; "
            "shorten the file",
        )
    if node is None or not isinstance(data, dict):
        raise refusal(
            "SITE_UNREADABLE", f"{path.name}: expected a mapping of keys; see clustmix init"
        )
    return node, lambda: loader.construct_document(node)


def _problem(error: Exception) -> str:
    mark, start = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    where = f" at {place_of(mark)}" if mark is not None else ""
    text = f"{where}: {getattr(error, 'problem', None) or 'not plain YAML'}"
    return (
        text if start is None else f"{text}, {getattr(error, 'context', '')} from {place_of(start)}"
    )


def place_of(mark: yaml.Mark) -> str:
    """Return a place in a file in words."""
    return f"line {mark.line + 1}, column {mark.column + 1}"


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
            inside = (*above, id(node))
            parts = (self.count(part, inside) for part in self._parts(node))
            self._sizes[id(node)] = 1 + sum(parts)
        return self._sizes[id(node)]

    def _parts(self, node: yaml.Node) -> list[yaml.Node]:
        if node.tag not in _PLAIN:
            name = node.tag.removeprefix(_PREFIX)
            raise _at(node, f"the tag {name!r}; write plain values, and text in quotes")
        if isinstance(node, yaml.ScalarNode):
            if any("\ud800" <= character <= "\udfff" for character in node.value):
                raise _at(node, "half of a character; write the whole one")
            return []
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _at(key, "a key that is a list or a mapping; write text")
            # The schema compares levels in this form: 1, 0x1, 1.0 and "1" are equal.
            merges = key.tag == _PREFIX + "merge"
            text = key.value if merges else raw_text(self._loader.construct_object(key))
            if text in seen:
                raise _at(key, f"the key {key.value!r} is given twice")
            seen.add(text)
        return [part for pair in node.value for part in pair]


def _at(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
