"""Measures of the structure: lines, arrows between folders, reach of a release, long functions.

``make house`` prints every measure; ``benchmarks/house_limits.toml`` holds the limits, which
``tests/test_house.py`` compares with the measures and with those of the last version. Only files
that git lists are read, and none is imported.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.prose import prose_measures
from benchmarks.syntax import (
    Function,
    functions,
    imported,
    names_in,
    parameters,
    positional,
    shown_types,
)

ROOT = Path(__file__).resolve().parents[1]
LIMITS = "benchmarks/house_limits.toml"

NO_PRODUCT = ("tests", "benchmarks", "examples", "docs", "audits")
"""Folders at the top whose Python is no part of the product."""

RELEASE = "flows/release.py"
"""The module from which the reach of a release is counted."""

MAX_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 4

WHOLE = frozenset({"SiteFile", "ReleaseJob", "Site"})
"""Types that say everything about a release or an installation."""

STORES = frozenset(
    {
        "ArrivalStore",
        "KeyStore",
        "LedgerDatabase",
        "MeasurementStore",
        "PendingBundles",
        "ReleaseStore",
    }
)
"""A class that shows three of these to everybody is an installation by another name."""


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
        return self._listed("*.py")

    @cached_property
    def product(self) -> tuple[str, ...]:
        """Those of the product."""
        return tuple(path for path in self.files if path.split("/")[0] not in NO_PRODUCT)

    @cached_property
    def product_texts(self) -> tuple[str, ...]:
        """All files of the product's packages: Python, lists and templates."""
        return self._listed(*sorted({f"{path.split('/')[0]}/*" for path in self.product}))

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
            for name in imported(tree):
                target = modules.get(name) or modules.get(name.rpartition(".")[0])
                if target is not None and _folder(target) != _folder(path):
                    found[_folder(path), _folder(target)].add(path)
        return {arrow: tuple(sorted(paths)) for arrow, paths in sorted(found.items())}

    def own_lines(self, folder: str) -> int:
        """Return the lines of the product's files in a folder, without folders below it."""
        return sum(self.lines[path] for path in self.product if _folder(path) == folder)

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
            for function in functions(tree)
            if any(_is_whole(parameter, whole) for parameter in parameters(function))
        ]

    def takers_of_settings(self) -> list[str]:
        """Return the functions with a parameter of the type `Settings`, as ``file:name``."""
        return [
            f"{path}:{function.name}"
            for path, function in self._all_functions()
            if any("Settings" in names_in(each.annotation) for each in parameters(function))
        ]

    def long_functions(self) -> list[str]:
        """Return the functions of more than `MAX_FUNCTION_LINES`, docstring included."""
        return [
            f"{path}:{function.name}"
            for path, function in self._all_functions()
            if (function.end_lineno or 0) - function.lineno >= MAX_FUNCTION_LINES
        ]

    def takers_by_position(self) -> list[str]:
        """Return the functions with more than `MAX_POSITIONAL` positional parameters."""
        return [
            f"{path}:{function.name}"
            for path, function in self._all_functions()
            if len(positional(function)) > MAX_POSITIONAL
        ]

    def reached_from_release(self) -> list[str]:
        """Return the modules that a release imports, directly or not, also inside functions."""
        modules = {_module(path): path for path in self.product}
        beyond = {
            path: {
                target
                for name in imported(tree)
                if (target := modules.get(name) or modules.get(name.rpartition(".")[0]))
            }
            for path, tree in self.trees.items()
        }
        return sorted(_reached(RELEASE, beyond)) if RELEASE in self.trees else []

    def shared_names(self) -> list[str]:
        """Return the modules whose file name another module has too."""
        names = {path: path.rpartition("/")[2] for path in self.product}
        count = Counter(names.values())
        return [
            path
            for path, name in names.items()
            if count[name] > 1 and name not in ("__init__.py", "__main__.py")
        ]

    def public_classes(self, paths: Iterable[str]) -> list[str]:
        """Return the classes of some modules whose names begin with no underscore."""
        return [
            f"{path}:{node.name}"
            for path in paths
            for node in ast.walk(self.trees[path])
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]

    def made_up_classes(self) -> list[str]:
        """Return the places of the front door that make classes or names at run time."""
        return [
            f"{path}:{node.lineno}"
            for path, tree in self.trees.items()
            if path.startswith("clustmix/")
            for node in ast.walk(tree)
            if (isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "type"
                and len(node.args) == 3
            )
        ]

    def lists(self) -> dict[str, list[str]]:
        """Return what is counted, by the name of the measure; each measure is a length."""
        reached = self.reached_from_release()
        events = self.public_classes(p for p in self.product if p == "privacy/events.py")
        accountants = self.public_classes(p for p in self.product if p.startswith("privacy/"))
        return {
            f"modules over {MAX_LINES} lines": list(self.long_modules()),
            "folder arrows that run up": [" -> ".join(arrow) for arrow in self.arrows_up()],
            "functions that take a site or a job whole": self.takers_of_whole(),
            "functions that take Settings": self.takers_of_settings(),
            "modules reached from a release": reached,
            "public classes reached from a release": self.public_classes(reached),
            "event classes": events,
            "accountants": [name for name in accountants if name.endswith("Accountant")],
            f"functions over {MAX_FUNCTION_LINES} lines": self.long_functions(),
            f"functions with over {MAX_POSITIONAL} positional parameters": (
                self.takers_by_position()
            ),
            "modules that share a file name": self.shared_names(),
            "classes and names made at run time in clustmix": self.made_up_classes(),
            **prose_measures(self.root, self.product_texts),
        }

    def measures(self) -> dict[str, int]:
        """Return all measures by name."""
        folders = {_folder(path) for path in self.product}
        tests = (n for path, n in self.lines.items() if path.startswith("tests/"))
        return {
            "product lines": sum(self.lines[path] for path in self.product),
            "test lines": sum(tests),
            "most lines in one folder's own files": max(map(self.own_lines, folders)),
            **{name: len(found) for name, found in self.lists().items()},
            "words of README.md": self._words("README.md"),
            "words of docs": self._words("docs/*.md"),
        }

    def _listed(self, *patterns: str) -> tuple[str, ...]:
        listed = _git(
            self.root, "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns
        )
        return tuple(
            sorted(path for path in listed.split("\n") if path and (self.root / path).is_file())
        )

    def _words(self, pattern: str) -> int:
        return sum(len(path.read_text("utf-8").split()) for path in self.root.glob(pattern))

    def _all_functions(self) -> Iterator[tuple[str, Function]]:
        for path, tree in self.trees.items():
            for function in functions(tree):
                yield path, function

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
            for name, types in [(node.name, shown_types(node))]
        }
        while whole != before:
            before = set(whole)
            whole |= {
                name for name, types in shown.items() if types & whole or len(types & STORES) >= 3
            }
        return frozenset(whole)


def limits(text: str) -> dict[str, int]:
    """Return the limits of a ``house_limits.toml`` by the name of the measure."""
    return dict(tomllib.loads(text)["limits"])


def granted(text: str) -> dict[str, int]:
    """Return by how much issues allow to raise limits since the last version."""
    return {name: sum(lines.values()) for name, lines in tomllib.loads(text)["granted"].items()}


def limits_of_last_version(root: Path = ROOT) -> dict[str, int]:
    """Return the limits as they stood when the version of ``pyproject.toml`` was last changed.

    Empty before the first version that had limits.
    """
    version = _git(root, "log", "-1", "--format=%H", "-G", "^version = ", "--", "pyproject.toml")
    listed = _git(root, "ls-tree", "--name-only", version, LIMITS)
    return limits(_git(root, "show", f"{version}:{LIMITS}")) if listed else {}


def _git(root: Path, *arguments: str) -> str:
    ran = subprocess.run(  # noqa: S603
        ["git", *arguments],  # noqa: S607
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def main() -> None:
    """Print the measures beside their limits, and what each counts where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--list", action="store_true", help="also list what is counted")
    listed = parser.parse_args().list
    house, allowed = House(), limits((ROOT / LIMITS).read_text("utf-8"))
    for name, value in house.measures().items():
        print(f"{name:50} {value:7,} of {allowed[name]:7,}")
    if listed:
        for name, found in house.lists().items():
            if "reached from" not in name:
                for text in found:
                    print(f"{name}: {text}")


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _reached(start: str, beyond: Mapping[str, set[str]]) -> set[str]:
    found, ahead = {start}, [start]
    while ahead:
        new = beyond.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def _is_whole(parameter: ast.arg, whole: Iterable[str]) -> bool:
    names = names_in(parameter.annotation)
    if names & set(whole):
        return True
    if parameter.arg not in ("site", "job"):
        return False
    return not names & {"Path", "str"} or bool(names & {"Mapping", "dict", "Any"})


if __name__ == "__main__":
    main()
