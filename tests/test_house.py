"""The code stays a house: the limits of its measures, and that each measure counts what it says."""

import subprocess

from benchmarks.house import MAX_LINES, House

LIMITS = {
    "product lines": 46_957,
    "test lines": 40_373,
    f"modules over {MAX_LINES} lines": 0,
    "folder arrows that run up": 0,
    "arrows among the methods": 15,
    "most lines in one folder's own files": 4_000,
    "lines of tasks/synthesizers": 9_075,
    "functions that take a site or a job whole": 17,
}

PYPROJECT = """
[tool.importlinter]
[[tool.importlinter.contracts]]
type = "layers"
layers = ["clustmix | flows", "tasks", "storage"]
"""


def test_the_house_keeps_its_measures():
    found = House().measures()
    assert found.keys() == LIMITS.keys()
    above = {name: value for name, value in found.items() if value > LIMITS[name]}
    assert not above, "make house lists what is counted"


def house(folder, **sources):
    """Write a checkout; in the name of a file ``__`` stands for a slash."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)  # noqa: S607
    (folder / "pyproject.toml").write_text(PYPROJECT)
    for name, source in sources.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return House(folder)


def test_lines_and_arrows_are_counted(tmp_path):
    found = house(
        tmp_path,
        flows__a="from tasks.one import b\n",
        tasks__one__b="def late():\n    import tasks.two.c\n",
        tasks__two__c="from tasks.three.d import x\n",
        tasks__three__d="from tasks.one.b import late\nx = 1\n",
        storage__e="from clustmix import g\nfrom tasks.two import c\nfrom storage import f\n",
        clustmix__g="import tasks.two.c\n",
        storage__f="",
        tasks__synthesizers__registry="import tasks.synthesizers.x.m\nimport tasks.papers.m\n",
        tasks__synthesizers__x__m="x = 1\n" * 401,
        tasks__papers__m="from tasks.synthesizers.x import m\n",
        tests__t="y = 1\n\n",
        docs__d="z = 1\n",
    )
    assert found.arrows_among_methods() == [("tasks/papers", "tasks/synthesizers/x")]
    measures = found.measures()
    assert (measures["product lines"], measures["test lines"]) == (414, 2)
    assert found.long_modules() == {"tasks/synthesizers/x/m.py": 401}
    assert measures["most lines in one folder's own files"] == 401
    assert found.arrows_up() == [
        ("storage", "clustmix"),
        ("storage", "tasks/two"),
        ("tasks/one", "tasks/two"),
        ("tasks/three", "tasks/one"),
        ("tasks/two", "tasks/three"),
    ]


TAKES_WHOLE = (
    "def f(site): pass",
    "def f(*, other: 'SiteFile | None' = None): pass",
    "class C:\n    async def f(self, a: list[ReleaseJob]): pass",
    "def f(site: dict[str, object]): pass",
    "class Asked:\n    job: ReleaseJob\ndef f(asked: Asked): pass",
    "class A:\n    of: B\nclass B:\n    x: SiteFile\ndef f(a: A): pass",
    "class Place:\n    ledger: LedgerDatabase\n    keys: KeyStore\n"
    "    @property\n    def kept(self) -> MeasurementStore: ...\n"
    "def f(place: Place): pass",
)
TAKES_PARTS = (
    "class Keeper:\n    _ledger: LedgerDatabase\n    _keys: KeyStore\n"
    "    _kept: MeasurementStore\ndef f(keeper: Keeper): pass",
    "def f(site: Path, job_id: str, a: int): pass",
    "def f() -> ReleaseJob: pass",
)


def test_takers_of_whole_are_found_by_type_and_by_name(tmp_path):
    sources = {f"flows__{n:02d}": source for n, source in enumerate(TAKES_WHOLE + TAKES_PARTS)}
    found = house(tmp_path, **sources).takers_of_whole()
    assert sorted(found) == [f"flows/{n:02d}.py:f" for n in range(len(TAKES_WHOLE))]
