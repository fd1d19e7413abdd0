"""No module reads a format that runs code: pickles in any wrapping, unsafe YAML, source text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flows", "tasks", "privacy", "storage", "benchmarks")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MODULES = {
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "shelve"),
    *("marshal", "tables", "torch", "zict", "sklearn.externals"),
}
# numpy.load returns plain bytes for what is no array, and reads pickles when asked.
CALLS = {
    *("read_pickle", "to_pickle", "read_hdf", "np.load", "numpy.load", "np.fromfile", "torch.load"),
    *("joblib.load", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("yaml.UnsafeLoader", "yaml.FullLoader", "yaml.Loader", "eval", "exec", "__import__"),
    *("distributed.protocol.deserialize", "distributed.protocol.loads", "protocol.pickle.loads"),
}


def what_runs_code(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
        yield from (m for m in modules if any(m == f or m.startswith(f + ".") for f in MODULES))
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS or called.split(".")[-1] in CALLS:
                yield called
        if isinstance(node, ast.Attribute) and ast.unparse(node) in CALLS:
            yield ast.unparse(node)
        if (
            isinstance(node, ast.keyword)
            and node.arg == "allow_pickle"
            and ast.unparse(node.value) != "False"
        ):
            yield "allow_pickle"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_reads_what_runs(path: Path) -> None:
    assert sorted(set(what_runs_code(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import distributed, shelve as s",
        "pd.read_pickle(p)",
        "frame.to_pickle(p)",
        "np.load(p)",
        "f = np.load",
        "torch.load(p)",
        "g(allow_pickle=True)",
        "g(allow_pickle=flag)",
        "yaml.load(t, Loader=yaml.Loader)",
        "eval(t)",
    ],
)
def test_it_would_be_seen(source: str) -> None:
    assert list(what_runs_code(source))


def test_every_package_is_read() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(PACKAGES)
