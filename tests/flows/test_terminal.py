import io
import json
from decimal import Decimal
from types import SimpleNamespace

import pytest

from flows.cli import terminal
from flows.operations.doctor import Finding
from flows.stages import STAGES
from privacy.charges import Caps, Partition
from privacy.errors import BudgetRefused
from privacy.ledger import Balance, EntryState, LedgerEntry
from privacy.parameters import Adjacency

WIDTH = 80


class Terminal(io.StringIO):
    def isatty(self):
        return True


def site(adjacency=Adjacency.ADD_REMOVE):
    return SimpleNamespace(
        title="Wards of one hospital",
        privacy=SimpleNamespace(epsilon=1.0, delta=1e-6, adjacency=adjacency),
        rows=20_000,
        method=SimpleNamespace(kind="clustmix"),
    )


def outcome(releases_left):
    return SimpleNamespace(
        guarantee="Adding or removing all records of one patient changes little. " * 5,
        state="published",
        reused=False,
        charged_rho="0.035925702327",
        remaining_rho="1.964965637823",
        releases_left=releases_left,
        bundle="/a/rather-long/path/that-is/longer/than/what/fits/into/one/line/releases/wards/r-1",
    )


@pytest.mark.parametrize(
    ("adjacency", "words"),
    [
        (Adjacency.ADD_REMOVE, "add or remove one patient"),
        (Adjacency.REPLACE_ONE, "replace one patient"),
    ],
)
def test_the_title_says_who_is_protected(capsys, adjacency, words):
    terminal.Progress(quiet=False).title(site(adjacency))
    output, errors = capsys.readouterr()
    assert output == ""
    title, *lines = errors.splitlines()
    assert title == "Wards of one hospital"
    assert " ".join(line.strip() for line in lines) == (
        f"epsilon 1, delta 1e-06 ({words}); 20,000 synthetic rows by method clustmix"
    )
    assert all(line.startswith("  ") and len(line) <= WIDTH for line in lines)


def test_every_stage_fits_into_a_line(capsys):
    progress = terminal.Progress(quiet=False)
    for name in STAGES:
        progress(name, None)
        progress(name, 1234.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(STAGES)
    assert {len(line) for line in lines} == {78}
    assert lines[0] == (
        "  clean-up             close and delete what dead runs left           1234.5 s"
    )


def test_stages_that_come_again_are_added_up():
    progress = terminal.Progress(quiet=True)
    progress("kip", 1.25)
    progress("kip", 0.5)
    assert progress.stage_seconds == {"kip": 1.75}


def test_a_quiet_run_writes_nothing(capsys):
    progress = terminal.Progress(quiet=True)
    progress.title(site())
    progress("kip", None)
    progress("kip", 1.0)
    progress.note("a remark")
    assert capsys.readouterr() == ("", "")


def test_a_stage_that_runs_is_overwritten_on_a_terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    progress = terminal.Progress(quiet=False)
    progress("kip", None)
    progress("kip", 1.0)
    progress("mixing", None)
    terminal.failure(BudgetRefused("CODE", "one line"), as_json=False)
    # Each line first clears what stands there.
    _, running, _, text, also_running, _, failed = screen.getvalue().split("\r")
    assert running.removeprefix("\x1b[K").startswith("  kip ")
    assert running.endswith(" ...")
    assert text.startswith("\x1b[K  kip ")
    assert text.endswith(" 1.0 s\n")
    assert also_running.startswith("\x1b[K  mixing ")
    assert failed == "\x1b[Kclustmix: CODE: one line\n"


@pytest.mark.parametrize(("left", "words"), [(0, "0 more releases"), (1, "1 more release")])
def test_the_end_of_a_release(capsys, left, words):
    terminal.outcome(outcome(left))
    output, errors = capsys.readouterr()
    assert errors == ""
    assert f"left 1.964965637823: {words} like" in " ".join(output.split())
    lines = output.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [
        "Guarantee",
        "Budget",
        "Bundle",
        "Check it",
    ]
    path = outcome(left).bundle
    assert all(len(line) <= WIDTH for line in lines if path not in line)
    # In one piece, to be copied.
    assert sum(path in line for line in lines) == 2


def test_the_end_of_a_release_that_was_paid_for_before(capsys):
    terminal.outcome(SimpleNamespace(**{**vars(outcome(3)), "reused": True}))
    shown = " ".join(capsys.readouterr().out.split())
    assert "Budget: nothing charged, measured and paid for before; left 1.964965637823" in shown


def test_the_end_of_a_release_that_waits(capsys):
    waiting = {**vars(outcome(3)), "state": "sealed", "release_id": "r-20260131-0a1b2c3d"}
    terminal.outcome(SimpleNamespace(**waiting))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("Waits:      for an officer, who finds it in /a/rather-long")
    assert lines[-1] == (
        "Then:       clustmix approve r-20260131-0a1b2c3d --key FILE --reason TEXT"
    )


def entry(cohort, number):
    return LedgerEntry(
        sequence=number,
        entry_id=f"e-{number:016x}",
        state=EntryState.EXECUTING,
        cohort=cohort,
        dataset="made-up",
        release_id=f"r-20260131-{number:08x}",
        request_key="0" * 64,
        rho=Decimal("0.035925702327"),
        epsilon=0.125,
        delta=1e-6,
        adjacency=Adjacency.ADD_REMOVE,
        unit="one patient",
        caps=Caps(lifetime_rho=Decimal("2.000891340150")),
        partition=Partition(scheme="by-hash", parts=4, part=1),
        owner="i-0123456789abcdef",
        requester=None,
        needs_approval=False,
        digest=None,
        note=None,
        signers=("0123456789abcdef",),
        recorded_at="2026-01-31T00:00:00.000Z",
        previous_hash="0" * 64,
        hash="1" * 64,
    )


BALANCE = Balance(spent_rho=Decimal("0.071851404654"), cap_rho=Decimal("2.000891340150"))


def test_the_ledger_is_a_table(capsys):
    entries = [entry("wards", 1), entry("icu", 2), entry("wards", 3)]
    terminal.ledger(entries, {"icu": BALANCE, "wards": BALANCE})
    lines = capsys.readouterr().out.splitlines()
    assert lines[6:] == [
        "wards",
        "  lifetime cap  rho 2.000891340150",
        "  spent         rho 0.071851404654",
        "  left          rho 1.929039935496",
        "  release              state       epsilon    delta             rho",
        "  r-20260131-00000001  executing     0.125    1e-06  0.035925702327",
        "  r-20260131-00000003  executing     0.125    1e-06  0.035925702327",
    ]
    assert max(map(len, lines)) <= WIDTH


def test_a_ledger_without_entries(capsys):
    terminal.ledger([], {})
    assert capsys.readouterr().out == "no entries\n"


def test_the_ledger_for_a_program_keeps_exact_amounts():
    answer = terminal.ledger_as_json([entry("wards", 1)], {"wards": BALANCE})
    assert answer["balances"]["wards"]["remaining_rho"] == "1.929039935496"
    row = answer["entries"][0]
    assert row["entry_id"] == "e-0000000000000001"
    assert row["caps"]["lifetime_rho"] == "2.000891340150"
    assert row["partition"] == {"scheme": "by-hash", "parts": 4, "part": 1}
    assert row["signers"] == ["0123456789abcdef"]
    assert json.loads(json.dumps(answer)) == answer


def test_findings_stand_in_columns(capsys):
    terminal.findings(
        [
            Finding("ledger", True, "verified"),
            Finding("data: physionet2012", False, "not here"),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "  ok   ledger               verified",
        "  FAIL data: physionet2012  not here",
    ]


def test_a_failure_for_a_program_is_one_object(capsys):
    terminal.failure(BudgetRefused("BUDGET_EXCEEDED", "no budget"), as_json=True)
    output, errors = capsys.readouterr()
    assert json.loads(output) == {
        "error": "BUDGET_EXCEEDED",
        "message": "no budget",
        "exit_code": 3,
    }
    assert errors == "clustmix: BUDGET_EXCEEDED: no budget\n"
