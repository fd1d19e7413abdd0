"""The import rules of the four packages, as a table, and a few rules of the source text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flows", "tasks", "privacy", "storage")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

ORCHESTRATION = {"prefect", "dask", "distributed"}
# Path prefix -> top-level modules or dotted prefixes that nothing below it may import.
FORBIDDEN = {
    "privacy/": ORCHESTRATION | {"flows", "tasks", "storage", "pandas"},
    "storage/": ORCHESTRATION | {"flows", "tasks"},
    "tasks/": {"flows"},
    "tasks/synthesizers/": ORCHESTRATION | {"storage", "pandas"},
    "tasks/metrics/": ORCHESTRATION,
    "tasks/audit/": ORCHESTRATION | {"storage", "pandas"},
    "tasks/reporting/": ORCHESTRATION,
    "tasks/encoding.py": ORCHESTRATION,
    "tasks/contributions.py": ORCHESTRATION,
    "tasks/expectations.py": ORCHESTRATION,
    "tasks/violations.py": ORCHESTRATION,
    "tasks/shards.py": ORCHESTRATION,
}
# Imported in these files alone.
ONLY_IN = {
    "neural_tangents": {"tasks/synthesizers/clustmix/ntk.py"},
    "opendp": {"privacy/randomness.py"},
}
EVERYWHERE = {"pickle", "cloudpickle", "dill", "joblib", "random"}
NUMPY_RANDOM_TYPES = {"Generator", "default_rng", "PCG64", "SeedSequence", "BitGenerator"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def matches(module: str, rule: str) -> bool:
    return module == rule or module.startswith(rule + ".")


def test_every_package_is_read() -> None:
    assert {relative(path).split("/")[0] for path in SOURCES} == set(PACKAGES)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_down(path: Path) -> None:
    name = relative(path)
    forbidden = set(EVERYWHERE).union(
        *(rules for prefix, rules in FORBIDDEN.items() if name.startswith(prefix)),
        (module for module, files in ONLY_IN.items() if name not in files),
    )
    modules = list(imported_modules(ast.parse(path.read_text(encoding="utf-8"))))
    found = {m for m in modules for rule in forbidden if matches(m, rule)}
    assert not found, f"{name} may not import {sorted(found)}"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_source_text_rules(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called != "print", f"line {node.lineno}: print"
            assert called.split(".")[-1] != "read_pickle", f"line {node.lineno}: read_pickle"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False", f"line {node.value.lineno}: allow_pickle"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
            "np.random",
            "numpy.random",
        ):
            assert node.attr in NUMPY_RANDOM_TYPES, f"line {node.lineno}: np.random.{node.attr}"
