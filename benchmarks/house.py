"""Measures of the structure: lines, arrows between folders, reach of a release, long functions.

``make house`` prints every measure; ``benchmarks/house_limits.toml`` holds the limits, which
``tests/test_house.py`` compares with the measures and with those of the last version. Only files
that git lists are read, and none is imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMITS = "benchmarks/house_limits.toml"

NO_PRODUCT = ("tests", "benchmarks", "examples", "docs", "audits")
"""Folders at the top whose Python is no part of the product."""

RELEASE = "flows/release.py"
"""The module from which the reach of a release is counted."""

MAX_LINES, MAX_FUNCTION_LINES, MAX_POSITIONAL = 400, 60, 4

WHOLE = frozenset({"SiteFile", "ReleaseJob", "Site"})
"""Types that say everything about a release or an installation."""

STORES = frozenset({"ArrivalStore", "KeyStore", "LedgerDatabase", "MeasurementStore",
                    "PendingBundles", "ReleaseStore"})  # fmt: skip
"""A class that shows three of these to everybody is an installation by another name."""

QUESTION = r"(What|Who|How|Where|Whether)\b"
WORDS = {
    "lines of an earlier version": r"\b(?:earlier (?:program|version)s?|former(?:ly)?)\b",
    "tell, tells, told": r"\b(?:tell|tells|told)\b",
}
"""Prose of the product that is hard to read."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class House:
    """The Python files of a checkout in a folder."""

    root: Path = ROOT

    @cached_property
    def lines(self) -> dict[str, int]:
        """Lines of each file that git knows, empty ones and comments included."""
        return {path: (self.root / path).read_bytes().count(b"\n") for path in self._listed("*.py")}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Syntax tree of each file of the product."""
        product = (path for path in self.lines if path.split("/")[0] not in NO_PRODUCT)
        return {path: ast.parse((self.root / path).read_bytes()) for path in product}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Files of the product that each of them imports, also inside functions."""
        endings = (path.removesuffix(".py").removesuffix("/__init__") for path in self.trees)
        modules = dict(zip((one.replace("/", ".") for one in endings), self.trees, strict=True))
        found: dict[str, set[str]] = {path: set() for path in self.trees}
        for path, node in self.nodes(ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [package + alias.name for alias in node.names]
            names = [one if one in modules else one.rpartition(".")[0] for one in names]
            found[path] |= {modules[one] for one in names if one in modules}
        return found

    def nodes(self, kind: Any) -> Iterator[tuple[str, Any]]:
        """Yield the nodes of a kind in the product, each with the path of its file."""
        for path, tree in self.trees.items():
            yield from ((path, node) for node in ast.walk(tree) if isinstance(node, kind))

    def arrows_up(self) -> list[tuple[str, str]]:
        """Return arrows against the order of the layers, and those of a circle of folders.

        A package at the top that no layer names is above all of them.
        """
        settings = tomllib.loads((self.root / "pyproject.toml").read_text("utf-8"))
        contracts = settings["tool"]["importlinter"]["contracts"]
        layers = next(one["layers"] for one in contracts if one["type"] == "layers")
        rank = {name: place for place, one in enumerate(layers) for name in one.split(" | ")}
        beyond: dict[str, set[str]] = {}
        for path, targets in self.imports.items():
            own = _folder(path)
            beyond.setdefault(own, set()).update({_folder(one) for one in targets} - {own})
        return sorted(
            (start, end)
            for start, ends in beyond.items()
            for end in ends
            if rank.get(start.split("/")[0], -1) > rank.get(end.split("/")[0], -1)
            or start in _reached(end, beyond)
        )

    def functions(self, counts: Callable[[Any], bool]) -> list[str]:
        """Return the functions for which something is true, as ``file:name``."""
        return [f"{path}:{one.name}" for path, one in self.nodes(Function) if counts(one)]

    def takers_of_whole(self) -> list[str]:
        """Return the functions that take a site, a site file or a job whole, as ``file:name``.

        A parameter counts by its type, whatever its name; by its name where it has no type, or one
        that may be anything. A class that has a field of such a type is such a type, and so is one
        that gives three stores away.
        """
        whole, before = set(WHOLE), set[str]()
        shown = {node.name: _shown_types(node) for _, node in self.nodes(ast.ClassDef)}
        while whole != before:
            before = set(whole)
            whole |= {n for n, types in shown.items() if types & whole or len(types & STORES) >= 3}
        return self.functions(lambda one: any(_is_whole(each, whole) for each in _parameters(one)))

    def prose(self) -> dict[str, list[str]]:
        """Return the places of riddles in the files of the product, templates included."""
        found = {
            "docstrings that open with a question word": [
                f"{path}:{node.lineno}"
                for path, node in self.nodes(ast.Expr)
                if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
                and re.match(QUESTION, node.value.value.lstrip())
            ]
        }  # fmt: skip
        paths = self._listed(*sorted({f"{path.split('/')[0]}/*" for path in self.trees}))
        lines = [
            (f"{path}:{number}", line)
            for path in paths
            for number, line in enumerate((self.root / path).read_text("utf-8").split("\n"), 1)
        ]
        for name, words in WORDS.items():
            found[name] = [
                place for place, line in lines for _ in re.findall(words, line, re.IGNORECASE)
            ]
        return found

    def lists(self) -> dict[str, list[str]]:
        """Return what is counted, by the name of the measure; each measure is a length."""
        reached = sorted(_reached(RELEASE, self.imports)) if RELEASE in self.trees else []
        classes = [
            (path, f"{path}:{node.name}")
            for path, node in self.nodes(ast.ClassDef)
            if not node.name.startswith("_")
        ]
        privacy = [name for path, name in classes if path.startswith("privacy/")]
        made_up = [
            f"{path}:{node.lineno}"
            for path, node in self.nodes(ast.FunctionDef | ast.Call)
            if path.startswith("clustmix/") and _makes_names(node)
        ]
        names = Counter(Path(path).name for path in self.trees)
        common = {name for name, n in names.items() if n > 1 and not name.startswith("__")}
        shared = [path for path in self.trees if Path(path).name in common]
        long = [path for path in self.trees if self.lines[path] > MAX_LINES]
        return {
            f"modules over {MAX_LINES} lines": long,
            "folder arrows that run up": [" -> ".join(arrow) for arrow in self.arrows_up()],
            "functions that take a site or a job whole": self.takers_of_whole(),
            "functions that take Settings": self.functions(
                lambda one: any("Settings" in _names(each.annotation) for each in _parameters(one))
            ),
            "modules reached from a release": reached,
            "public classes reached from a release": [n for path, n in classes if path in reached],
            "event classes": [one for one in privacy if one.startswith("privacy/events.py:")],
            "accountants": [one for one in privacy if one.endswith("Accountant")],
            f"functions over {MAX_FUNCTION_LINES} lines": self.functions(
                lambda one: (one.end_lineno or 0) - one.lineno >= MAX_FUNCTION_LINES
            ),
            f"functions with over {MAX_POSITIONAL} positional parameters": self.functions(
                lambda one: (
                    len({"self", "cls", *(a.arg for a in one.args.posonlyargs + one.args.args)})
                    > MAX_POSITIONAL + 2
                )
            ),
            "modules that share a file name": shared,
            "classes and names made at run time in clustmix": made_up,
            **self.prose(),
        }

    def measures(self) -> dict[str, int]:
        """Return all measures by name."""
        folders: Counter[str] = Counter()
        for path in self.trees:
            folders[_folder(path)] += self.lines[path]
        tests = (n for path, n in self.lines.items() if path.startswith("tests/"))
        return {
            "product lines": folders.total(),
            "test lines": sum(tests),
            "most lines in one folder's own files": max(folders.values()),
            **{name: len(found) for name, found in self.lists().items()},
            "words of README.md": self._words("README.md"),
            "words of docs": self._words("docs/*.md"),
        }

    def _listed(self, *patterns: str) -> tuple[str, ...]:
        kinds = ("--cached", "--others", "--exclude-standard")
        listed = _git(self.root, "ls-files", *kinds, "--", *patterns).split("\n")
        return tuple(sorted(path for path in listed if path and (self.root / path).is_file()))

    def _words(self, pattern: str) -> int:
        return sum(len(path.read_text("utf-8").split()) for path in self.root.glob(pattern))


def limits(text: str) -> dict[str, int]:
    return dict(tomllib.loads(text)["limits"])


def granted(text: str) -> dict[str, int]:
    """Return by how much issues allow to raise limits since the last version."""
    return {name: sum(lines.values()) for name, lines in tomllib.loads(text)["granted"].items()}


def limits_of_last_version(root: Path = ROOT) -> dict[str, int]:
    """Return the limits as of the last change of the version; empty before there were limits."""
    version = _git(root, "log", "-1", "--format=%H", "-G", "^version = ", "--", "pyproject.toml")
    listed = _git(root, "ls-tree", "--name-only", version, LIMITS)
    return limits(_git(root, "show", f"{version}:{LIMITS}")) if listed else {}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603
    return ran.stdout.strip()


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _reached(start: str, beyond: Mapping[str, set[str]]) -> set[str]:
    found, ahead = {start}, [start]
    while ahead:
        new = beyond.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def _makes_names(node: ast.FunctionDef | ast.Call) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "__getattr__"
    return isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 3


def _parameters(function: Function) -> list[ast.arg]:
    return [node for node in ast.walk(function.args) if isinstance(node, ast.arg)]


def _names(annotation: ast.AST | None) -> set[str]:
    """Return the last part of every name in a type, written as text or not."""
    names = set[str]()
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Name | ast.Attribute):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            with suppress(SyntaxError):  # the text of an annotation, not a type
                names |= _names(ast.parse(node.value, mode="eval"))
    return names


def _shown_types(node: ast.ClassDef) -> set[str]:
    types = set[str]()
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            types |= set() if member.target.id.startswith("_") else _names(member.annotation)
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            decorators = {name for one in member.decorator_list for name in _names(one)}
            if any(name.endswith("property") for name in decorators):
                types |= _names(member.returns)
    return types


def _is_whole(parameter: ast.arg, whole: set[str]) -> bool:
    names = _names(parameter.annotation)
    anything = not names & {"Path", "str"} or bool(names & {"Mapping", "dict", "Any"})
    return bool(names & whole) or (parameter.arg in ("site", "job") and anything)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--list", action="store_true", help="also list what is counted")
    listed = parser.parse_args().list
    house, allowed = House(), limits((ROOT / LIMITS).read_text("utf-8"))
    for measure, value in house.measures().items():
        print(f"{measure:50} {value:7,} of {allowed[measure]:7,}")
    for measure, found in house.lists().items() if listed else ():
        if "reached from" not in measure:
            for text in found:
                print(f"{measure}: {text}")
