"""Do the tests of the guarantee notice a fault? A fixed sample of mutants, run against them.

A mutant is the source with one small fault: a comparison or an operator exchanged, a constant moved
by one, a condition negated, a statement left out. Each is run against the tests that execute its
line, in a child process of its own, and is killed when one of them fails:

    python -m benchmarks.mutants OUT.json [--count 1000] [--seconds 60] [--only BEFORE.json]

Of the tests that execute the line the quickest run, those that take `--seconds` together. OUT.json
names for each mutant the test that killed it, or null; a run that was stopped goes on from it.
`--only` runs again the mutants that an earlier run killed, each first against the test that did so;
what then survives was lost by a change of the tests between the two.
"""

import argparse
import ast
import bisect
import contextlib
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import random
import resource
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest

ROOT = Path.cwd()
SOURCES = ("privacy/**/*.py", "tasks/ingest/encoding.py", "tasks/measurement/curator.py")
TESTS = ("privacy", "tasks/test_encoding.py", "tasks/methods/test_curator.py")
SEED = 20_260_101
# Seconds that may pass for each of processor time.
PATIENCE = 4
# Imported once, in the process that the children are copies of; nothing of this project is.
PRELOADED = (
    "numpy.random", "pandas", "pyarrow.parquet", "scipy.stats", "scipy.special", "mpmath", "psutil",
    "opendp.prelude", "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp",
    "hypothesis.extra.numpy", "pydantic", "yaml",
)  # fmt: skip
SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NOT_MUTATED = {"annotation", "returns", "decorator_list"}
ARGUMENTS = (
    "-q", "--confcutdir=tests/privacy", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-W", "ignore::pytest.PytestAssertRewriteWarning", "--timeout=3600",
)  # fmt: skip


def slots(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, Any]]:
    """Every place of a tree that holds a node: parent, field, position in a list, node."""
    for field, value in ast.iter_fields(node):
        if field in NOT_MUTATED or isinstance(node, ast.JoinedStr):
            continue
        for position, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield node, field, position, child
                yield from slots(child)


def faults(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what can stand in place of a node, by the name of the fault."""
    changed: Any = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[first, *_]) if type(first) in SWAPPED:
            changed.ops = [SWAPPED[type(first)](), *changed.ops[1:]]
            yield "comparison swapped", changed
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            changed.op = SWAPPED[type(op)]()
            yield "operator swapped", changed
        case ast.Constant(value=bool(value)):
            yield "constant negated", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant + 1", ast.Constant(value + 1)
            yield "constant - 1", ast.Constant(value - 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not dropped", operand
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            changed.test = ast.UnaryOp(ast.Not(), test)
            yield "condition negated", changed
        case ast.Return(value=ast.AST()):
            yield "return None", ast.Return(ast.Constant(None))
        case ast.AugAssign() | ast.Raise() | ast.Expr(value=ast.Call()):
            yield "statement dropped", ast.Pass()


def mutants(path: Path) -> Iterator[tuple[str, int, ast.Module]]:
    """Every mutant of a file: its id, its line and its tree, which is good until the next one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for parent, field, position, node in list(slots(tree)):
        held: Any = vars(parent) if position is None else getattr(parent, field)
        at: Any = field if position is None else position
        for kind, replacement in faults(node):
            held[at] = ast.copy_location(replacement, node)
            ast.fix_missing_locations(tree)
            place = f"{node.lineno}:{node.col_offset}-{node.end_lineno}:{node.end_col_offset}"
            yield f"{path.relative_to(ROOT)}:{place} {kind}", node.lineno, tree
            held[at] = node


class Watch:
    """Note of each test the lines that it executes and its seconds, and the first that fails."""

    def __init__(self, measured: coverage.Coverage | None = None) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: str | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:  # noqa: D102
        if self.measured is not None:
            self.measured.switch_context(item.nodeid)
        start = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - start
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:  # noqa: D102
        if report.failed:
            self.failed = self.failed or report.nodeid


def covered(tests: list[str], out: Path) -> None:
    """Run every test once and write which lines each executes (lines of imports: no test)."""
    measured = coverage.Coverage(data_file=None, include=[str(ROOT / s) for s in SOURCES])
    watch = Watch(measured)
    measured.start()
    status = pytest.main([*ARGUMENTS, *tests], plugins=[watch])
    measured.stop()
    data = measured.get_data()
    files = {str(Path(file).relative_to(ROOT)): file for file in data.measured_files()}
    lines = {name: data.contexts_by_lineno(file) for name, file in files.items()}
    out.write_text(json.dumps({"lines": lines, "seconds": watch.seconds, "exit": int(status)}))


def in_child(work: Callable[..., None], seconds: float, *arguments: object) -> None:
    """Do something in a copy of this process, with limits of processor time and of patience.

    A mutant may wait for ever, as for a process that it should have ended: both end here.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        with contextlib.suppress(BaseException):
            work(*arguments)
        os._exit(0)
    give_up = time.monotonic() + PATIENCE * seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < give_up:
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def try_mutant(path: Path, tree: ast.Module, tests: list[str], out: Path) -> None:
    """Run the tests with a mutant as the module of a file and write who killed it, or null."""
    module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    code = compile(tree, str(path), "exec")

    class Mutant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            found = importlib.util.spec_from_file_location(name, path, loader=self)
            return found if name == module else None

        def exec_module(self, loaded: types.ModuleType) -> None:
            exec(code, vars(loaded))  # noqa: S102

    sys.meta_path.insert(0, Mutant())
    watch = Watch()
    status = pytest.main([*ARGUMENTS, "-x", *tests], plugins=[watch])
    out.write_text(json.dumps(watch.failed or (None if status == 0 else "collection")))


def killer_of(identity: str, known: dict, first: str | None, out: Path, most: float) -> str | None:
    """Name the test that fails for a mutant, the quickest first; None where all pass."""
    name = identity.split(":", maxsplit=1)[0]
    line, tree = next((at, tree) for one, at, tree in mutants(ROOT / name) if one == identity)
    lines = known["lines"].get(name, {})
    tests = {test for test in lines.get(str(line), []) if test}
    if "" in lines.get(str(line), [""]) or not tests:  # executed by an import
        tests = {test for by_line in lines.values() for test in by_line if test}
    ordered = sorted(tests, key=lambda test: (test != first, known["seconds"][test]))
    total = list(itertools.accumulate(known["seconds"][test] for test in ordered))
    ordered = ordered[: bisect.bisect(total, most) + 1]
    note = out.with_suffix(".killer")
    note.write_text(json.dumps("limit of time" if ordered else None))
    if ordered:
        limit = 20 + 3 * sum(known["seconds"][test] for test in ordered)
        in_child(try_mutant, limit, ROOT / name, tree, ordered, note)
    return json.loads(note.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", type=Path)
    chosen = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    same = hypothesis.settings(deadline=None, derandomize=True, database=None)
    hypothesis.settings.register_profile("same", same)
    hypothesis.settings.load_profile("same")
    coverage_file = chosen.out.with_suffix(".coverage.json")
    if not coverage_file.exists():
        in_child(covered, 7200, [f"tests/{name}" for name in TESTS], coverage_file)
    known = json.loads(coverage_file.read_text())
    if known["exit"] != 0:
        raise SystemExit("expected tests that pass on the source as it is; run them and mend them")
    files = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    ids = [identity for path in files for identity, _, _ in mutants(path)]
    sample = random.Random(SEED).sample(ids, min(chosen.count, len(ids)))  # noqa: S311
    before = json.loads(chosen.only.read_text()) if chosen.only else {}
    if chosen.only:
        sample = [identity for identity in sample if before.get(identity)]
    found = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    for identity in sample:
        if identity not in found:
            first = before.get(identity)
            found[identity] = killer_of(identity, known, first, chosen.out, chosen.seconds)
            chosen.out.write_text(json.dumps(found, indent=1))
    killed = sum(found[identity] is not None for identity in sample)
    print(f"{killed} of {len(sample)} mutants killed ({len(ids)} in all, seed {SEED})")


if __name__ == "__main__":
    main()
