"""The limits of the house hold and only go down; each measure counts what its name says."""

import subprocess

import pytest

from benchmarks.house import LIMITS, MAX_LINES, ROOT, House, granted, limits, limits_of_last_version

PYPROJECT = """
[tool.importlinter]
[[tool.importlinter.contracts]]
type = "layers"
layers = ["clustmix | flows", "tasks", "storage"]
"""


@pytest.fixture(scope="module")
def allowed():
    return limits((ROOT / LIMITS).read_text("utf-8"))


def test_the_house_keeps_its_limits(allowed):
    found = House().measures()
    assert found.keys() == allowed.keys()
    above = {name: value for name, value in found.items() if value > allowed[name]}
    assert not above, "make house lists what is counted"


def test_no_limit_is_above_that_of_the_last_version(allowed):
    last = limits_of_last_version()
    more = granted((ROOT / LIMITS).read_text("utf-8"))
    raised = {name for name, old in last.items() if allowed.get(name, 0) > old + more.get(name, 0)}
    assert not raised, "a limit only goes down; make the house smaller"


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
        tasks__four__m="x = 1\n" * (MAX_LINES + 1),
        tests__t="y = 1\n\n",
        docs__d="z = 1\n",
    )
    measures = found.measures()
    assert (measures["product lines"], measures["test lines"]) == (411, 2)
    assert found.lists()["modules over 400 lines"] == ["tasks/four/m.py"]
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


RELEASE = """
def run(settings: "Settings | None", a, b, *, c, d, e):
    from tasks.one.step import Step
"""
STEP = (
    '''
"""What was told by a former version, and an earlier program."""
class Step:
    """Whether it is one."""
    def long(self, a, b, c, d, e):
'''
    + "        x = 1\n" * 60
)
FRONT = '''
class A:
    """A telling name."""
    def __getattr__(self, name): return type(name)
made = type("B", (A,), {})
'''


def test_reach_functions_names_and_words_are_counted(tmp_path):
    found = house(
        tmp_path,
        flows__release=RELEASE,
        tasks__one__step=STEP,
        tasks__two__step="",
        clustmix__a=FRONT,
        privacy__events="class Gaussian: pass\nclass _One: pass\n",
    ).lists()
    assert found["modules reached from a release"] == ["flows/release.py", "tasks/one/step.py"]
    assert found["public classes reached from a release"] == ["tasks/one/step.py:Step"]
    assert found["functions that take Settings"] == ["flows/release.py:run"]
    assert found["functions over 60 lines"] == ["tasks/one/step.py:long"]
    assert found["functions with over 4 positional parameters"] == ["tasks/one/step.py:long"]
    assert found["modules that share a file name"] == ["tasks/one/step.py", "tasks/two/step.py"]
    assert found["event classes"] == ["privacy/events.py:Gaussian"]
    made = found["classes and names made at run time in clustmix"]
    assert sorted(made) == ["clustmix/a.py:4", "clustmix/a.py:5"]
    questions = found["docstrings that open with a question word"]
    assert sorted(questions) == ["tasks/one/step.py:2", "tasks/one/step.py:4"]
    assert found["lines of an earlier version"] == ["tasks/one/step.py:2"] * 2
    assert found["tell, tells, told"] == ["tasks/one/step.py:2"]
