"""Whether the code is still a house: its lines, arrows between folders, what is handed on whole.

``make house`` prints every measure; ``tests/test_house.py`` holds the limits. Only files that git
knows of are read, and none is imported.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

NO_PRODUCT = ("tests", "benchmarks", "examples", "docs")
"""Folders at the top whose Python is no part of the product."""

METHODS = ("tasks/synthesizers/", "tasks/papers/")
CATALOGUE = "tasks/synthesizers/registry.py"
"""Names every method, which is what it is for; its imports are no arrows among the methods."""

MAX_LINES = 400

WHOLE = frozenset({"SiteFile", "ReleaseJob", "Site"})
"""Types that say everything about a release or an installation."""

STORES = frozenset(
    {
        "ArrivalStore",
        "CheckpointStore",
        "KeyStore",
        "LedgerDatabase",
        "MeasurementStore",
        "PendingBundles",
        "ReleaseStore",
    }
)
"""A class that shows three of these to everybody is an installation by another name."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class House:
    """The Python files of a checkout.

    Parameters
    ----------
    root
        Folder of the checkout.
    """

    root: Path = ROOT

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Paths of all Python files that git knows, relative to the root."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],  # noqa: S607
            cwd=self.root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\n")
        return tuple(sorted(path for path in listed if path and (self.root / path).exists()))

    @cached_property
    def product(self) -> tuple[str, ...]:
        """Those of the product."""
        return tuple(path for path in self.files if path.split("/")[0] not in NO_PRODUCT)

    @cached_property
    def lines(self) -> dict[str, int]:
        """Lines of each file, empty ones and comments included."""
        return {path: (self.root / path).read_bytes().count(b"\n") for path in self.files}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Syntax tree of each file of the product."""
        return {path: ast.parse((self.root / path).read_bytes()) for path in self.product}

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Packages at the top, the highest first, as the import contract states them.

        Those of one layer stand in one text, as ``"clustmix | flows"``.
        """
        settings = tomllib.loads((self.root / "pyproject.toml").read_text("utf-8"))
        for contract in settings["tool"]["importlinter"]["contracts"]:
            if contract["type"] == "layers":
                return tuple(contract["layers"])
        raise ValueError("expected a contract of type layers in pyproject.toml, found none")

    @cached_property
    def arrows(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Imports from folder to folder, by (from, to), and the files that make each."""
        modules = {_module(path): path for path in self.product}
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for path, tree in self.trees.items():
            for name in _imported(tree):
                target = modules.get(name) or modules.get(name.rpartition(".")[0])
                if target is not None and _folder(target) != _folder(path):
                    found[_folder(path), _folder(target)].add(path)
        return {arrow: tuple(sorted(paths)) for arrow, paths in sorted(found.items())}

    def own_lines(self, folder: str) -> int:
        """Return the lines of the product's files in a folder, without folders below it."""
        return sum(self.lines[path] for path in self.product if _folder(path) == folder)

    def lines_below(self, folder: str) -> int:
        """Return the lines of a folder with all that is below it."""
        return sum(n for path, n in self.lines.items() if path.startswith(f"{folder}/"))

    def long_modules(self) -> dict[str, int]:
        """Return the modules of the product that have more than `MAX_LINES`."""
        return {path: self.lines[path] for path in self.product if self.lines[path] > MAX_LINES}

    def arrows_up(self) -> list[tuple[str, str]]:
        """Return arrows against the order of the layers, and those of a circle of folders.

        A package at the top that no layer names is above all of them.
        """
        rank = {
            name: place for place, beside in enumerate(self.layers) for name in beside.split(" | ")
        }
        above = {
            (start, end)
            for start, end in self.arrows
            if rank.get(start.split("/")[0], -1) > rank.get(end.split("/")[0], -1)
        }
        return sorted(above | self._back_arrows())

    def arrows_among_methods(self) -> list[tuple[str, str]]:
        """Return the arrows between two folders of the methods."""
        return [
            arrow
            for arrow, paths in self.arrows.items()
            if all(f"{folder}/".startswith(METHODS) for folder in arrow) and {*paths} - {CATALOGUE}
        ]

    def takers_of_whole(self) -> list[str]:
        """Return the functions that take a site, a site file or a job whole, as ``file:name``.

        A parameter counts by its type, whatever its name; by its name where it has no type, or one
        that may be anything. A class that has a field of such a type is such a type, and so is one
        that gives three stores away.
        """
        whole = self._whole_types()
        return [
            f"{path}:{function.name}"
            for path, tree in self.trees.items()
            for function in _functions(tree)
            if any(_is_whole(parameter, whole) for parameter in _parameters(function))
        ]

    def measures(self) -> dict[str, int]:
        """Return all measures by name."""
        folders = {_folder(path) for path in self.product}
        tests = (n for path, n in self.lines.items() if path.startswith("tests/"))
        return {
            "product lines": sum(self.lines[path] for path in self.product),
            "test lines": sum(tests),
            f"modules over {MAX_LINES} lines": len(self.long_modules()),
            "folder arrows that run up": len(self.arrows_up()),
            "arrows among the methods": len(self.arrows_among_methods()),
            "most lines in one folder's own files": max(map(self.own_lines, folders)),
            "lines of tasks/synthesizers": self.lines_below("tasks/synthesizers"),
            "functions that take a site or a job whole": len(self.takers_of_whole()),
        }

    def _back_arrows(self) -> set[tuple[str, str]]:
        """Return the arrows that lead from a folder to one that leads back to it."""
        beyond = defaultdict(set)
        for start, end in self.arrows:
            beyond[start].add(end)
        return {(start, end) for start, end in self.arrows if start in _reached(end, beyond)}

    def _whole_types(self) -> frozenset[str]:
        whole, before = set(WHOLE), set[str]()
        shown = {
            name: types
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for name, types in [(node.name, _shown_types(node))]
        }
        while whole != before:
            before = set(whole)
            whole |= {
                name for name, types in shown.items() if types & whole or len(types & STORES) >= 3
            }
        return frozenset(whole)


def main() -> None:
    """Print the measures, and what each counts where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--list", action="store_true", help="also list what is counted")
    listed = parser.parse_args().list
    house = House()
    for name, value in house.measures().items():
        print(f"{name:45} {value:7,}")
    if listed:
        for start, end in house.arrows_up():
            print(f"up: {start} -> {end} in {', '.join(house.arrows[start, end])}")
        for start, end in house.arrows_among_methods():
            print(f"among the methods: {start} -> {end}")
        for text in house.takers_of_whole():
            print(f"takes it whole: {text}")


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports, anywhere in it: modules, and names of modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _reached(start: str, beyond: Mapping[str, set[str]]) -> set[str]:
    found, ahead = {start}, [start]
    while ahead:
        new = beyond.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def _functions(tree: ast.AST) -> Iterator[_Function]:
    return (node for node in ast.walk(tree) if isinstance(node, _Function))


def _parameters(function: _Function) -> Iterator[ast.arg]:
    arguments = function.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None)


def _names_in(annotation: ast.expr | None) -> set[str]:
    """Return the last part of every name in a type, written as text or not."""
    if annotation is None:
        return set()
    names = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= _names_in_text(node.value)
    return names


def _names_in_text(text: str) -> set[str]:
    try:
        return _names_in(ast.parse(text, mode="eval").body)
    except SyntaxError:  # the text of an annotation, not a type
        return set()


def _is_whole(parameter: ast.arg, whole: Iterable[str]) -> bool:
    names = _names_in(parameter.annotation)
    if names & set(whole):
        return True
    if parameter.arg not in ("site", "job"):
        return False
    return not names & {"Path", "str"} or bool(names & {"Mapping", "dict", "Any"})


def _shown_types(node: ast.ClassDef) -> set[str]:
    """Return the types of a class's public fields and properties."""
    types = set[str]()
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if not member.target.id.startswith("_"):
                types |= _names_in(member.annotation)
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            if any(
                name.endswith("property") for d in member.decorator_list for name in _names_in(d)
            ):
                types |= _names_in(member.returns)
    return types


if __name__ == "__main__":
    main()
