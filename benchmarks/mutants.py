"""Do the tests of the guarantee notice a fault? A fixed sample of mutants, run against them.

A mutant is the source with one small fault: a comparison or an operator exchanged, a constant moved
by one, a condition negated, a statement left out. Each is run against the tests that execute its
line, in a child process of its own, and is killed when one of them fails:

    python -m benchmarks.mutants OUT.json [--count 1000] [--only BEFORE.json] [TEST ...]

`--only` runs again the mutants that an earlier run killed; what then survives was lost by a change
of the tests between the two. OUT.json is written as the run goes on, and a run that was stopped
goes on from it.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

ROOT = Path.cwd()
SOURCES = ("privacy/**/*.py", "tasks/encoding.py", "tasks/synthesizers/curator.py")
TESTS = (
    "tests/privacy",
    "tests/tasks/test_encoding.py",
    "tests/tasks/synthesizers/test_curator.py",
)
SEED = 20_260_101
# Imported once, in the process that the children are copies of; nothing of this project is.
PRELOADED = (
    "numpy.random", "pandas", "pyarrow.parquet", "scipy.stats", "scipy.special", "mpmath", "psutil",
    "opendp.prelude", "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp",
    "hypothesis.extra.numpy", "pydantic", "yaml",
)  # fmt: skip
SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NOT_MUTATED = {"annotation", "returns", "decorator_list"}
ARGUMENTS = (
    "-q", "--confcutdir=tests/privacy", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip


def slots(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every place of a tree that holds a node: parent, field, position in a list, node."""
    for field, value in ast.iter_fields(node):
        if field in NOT_MUTATED or isinstance(node, ast.JoinedStr):
            continue
        for position, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield node, field, position, child
                yield from slots(child)


def faults(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What can stand in place of a node, by the name of the fault."""
    changed = copy.deepcopy(node)
    match node, changed:
        case (ast.Compare(ops=[first, *_]), ast.Compare()) if type(first) in SWAPPED:
            changed.ops[0] = SWAPPED[type(first)]()
            yield f"{type(first).__name__} swapped", changed
        case (ast.BinOp(), ast.BinOp()) | (ast.BoolOp(), ast.BoolOp()) | (
            ast.AugAssign(),
            ast.AugAssign(),
        ) if type(node.op) in SWAPPED:
            changed.op = SWAPPED[type(node.op)]()
            yield f"{type(node.op).__name__} swapped", changed
        case ast.Constant(value=bool(value)), _:
            yield "constant negated", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value), _:
            yield "constant + 1", ast.Constant(value + 1)
            yield "constant - 1", ast.Constant(value - 1)
        case ast.UnaryOp(op=ast.Not()), _:
            yield "not dropped", node.operand
        case (ast.If(), ast.If()) | (ast.IfExp(), ast.IfExp()) | (ast.While(), ast.While()):
            changed.test = ast.UnaryOp(ast.Not(), changed.test)
            yield "condition negated", changed
        case ast.Return(value=ast.AST()), _:
            yield "return None", ast.Return(ast.Constant(None))
    if isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "statement dropped", ast.Pass()


def mutants(path: Path) -> Iterator[tuple[str, int, ast.Module]]:
    """Every mutant of a file: its id, its line and its tree, which is good until the next one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(ROOT).as_posix()
    for parent, field, position, node in list(slots(tree)):
        for kind, replacement in faults(node):
            ast.copy_location(replacement, node)
            held = getattr(parent, field) if position is not None else vars(parent)
            at = field if position is None else position
            held[at] = replacement
            ast.fix_missing_locations(tree)
            place = f"{node.lineno}:{node.col_offset}-{node.end_lineno}:{node.end_col_offset}"
            yield f"{name}:{place} {kind}", node.lineno, tree
            held[at] = node


class Contexts:
    """Note for each test the lines that it executes, and its processor seconds."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.measured.switch_context(item.nodeid)
        start = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - start
        return result


def covered(tests: list[str], out: Path) -> None:
    """Run every test once and write which lines each executes (lines of imports: no test)."""
    measured = coverage.Coverage(data_file=None, include=[str(ROOT / s) for s in SOURCES])
    contexts = Contexts(measured)
    measured.start()
    failed = pytest.main([*ARGUMENTS, *tests], plugins=[contexts])
    measured.stop()
    data = measured.get_data()
    lines = {
        Path(file).relative_to(ROOT).as_posix(): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    out.write_text(json.dumps({"lines": lines, "seconds": contexts.seconds, "exit": int(failed)}))


def in_child(work: object, seconds: float, *arguments: object) -> int:
    """Exit status of a function in a copy of this process, with a limit of processor time."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1), os.dup2(silent, 2)
            os._exit(int(work(*arguments) or 0))
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(path: Path, tree: ast.Module, tests: list[str]) -> int:
    """Pytest's status of the tests when the module of a file is a mutant."""
    module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    code = compile(tree, str(path), "exec")

    class Mutated(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> object:
            return code

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            loader = Mutated(name, str(path))
            return importlib.util.spec_from_loader(name, loader) if name == module else None

    sys.meta_path.insert(0, Finder)
    return int(pytest.main([*ARGUMENTS, "-x", *tests]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", type=Path)
    parser.add_argument("tests", nargs="*", default=TESTS)
    chosen = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    from hypothesis import settings

    settings.register_profile("mutants", deadline=None, derandomize=True, database=None)
    settings.load_profile("mutants")
    coverage_file = chosen.out.with_suffix(".coverage.json")
    if not coverage_file.exists():
        in_child(covered, 7200, list(chosen.tests), coverage_file)
    known = json.loads(coverage_file.read_text())
    files = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    ids = [identity for path in files for identity, _, _ in mutants(path)]
    sample = random.Random(SEED).sample(ids, min(chosen.count, len(ids)))  # noqa: S311
    if chosen.only:
        before = json.loads(chosen.only.read_text())
        sample = [identity for identity in sample if before.get(identity) == "killed"]
    if known["exit"] != 0:
        raise SystemExit("expected tests that pass on the source as it is; run them and mend them")
    found = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    for identity in sample:
        if identity in found:
            continue
        path = ROOT / identity.split(":")[0]
        line, tree = next((at, tree) for name, at, tree in mutants(path) if name == identity)
        lines = known["lines"].get(identity.split(":")[0], {})
        tests = {test for test in lines.get(str(line), []) if test}
        if "" in lines.get(str(line), [""]) or not tests:  # executed by an import
            tests = {test for by_line in lines.values() for test in by_line if test}
        ordered = sorted(tests, key=lambda test: known["seconds"][test])
        limit = 20 + 3 * sum(known["seconds"][test] for test in ordered)
        survived = not ordered or in_child(outcome, limit, path, tree, ordered) == 0
        found[identity] = "survived" if survived else "killed"
        chosen.out.write_text(json.dumps(found, indent=1))
    killed = sum(found[identity] == "killed" for identity in sample)
    print(f"{killed} of {len(sample)} mutants killed ({len(ids)} in all, seed {SEED})")


if __name__ == "__main__":
    main()
