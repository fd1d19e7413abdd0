"""What people and programs are shown: on a pipe plain lines, on a terminal colour and a bar."""

import io
from types import SimpleNamespace

from flows.cli import terminal
from flows.cli.progress import Progress
from flows.cli.publishing import show_outcome
from flows.stages import STAGES
from privacy.errors import BudgetRefused

WIDTH = 80


class Terminal(io.StringIO):
    def isatty(self):
        return True


def screens(monkeypatch):
    """Put a terminal behind each stream."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = SimpleNamespace(out=Terminal(), err=Terminal())
    monkeypatch.setattr("sys.stdout", shown.out)
    monkeypatch.setattr("sys.stderr", shown.err)
    return shown


def outcome(releases_left, **changed):
    facts = {
        "guarantee": "Adding or removing all records of one patient changes little. " * 5,
        "state": "published",
        "reused": False,
        "release_id": "r-20260131-0a1b2c3d",
        "charged_rho": "0.035925702327",
        "remaining_rho": "1.964965637823",
        "releases_left": releases_left,
        "bundle": "/a/rather-long/path/that-is/longer/than/what/fits/into/one/line/releases/w/r-1",
        **changed,
    }
    return SimpleNamespace(**facts, model_dump=lambda: facts)


def test_every_stage_fits_into_a_line(capsys):
    with Progress(quiet=False) as progress:
        for name in STAGES:
            progress(name, None)
            progress(name, 1234.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(STAGES)
    assert {len(line) for line in lines} == {78}
    assert lines[0] == (
        "  clean-up             close and delete what dead runs left           1234.5 s"
    )


def test_a_quiet_run_writes_nothing_and_adds_up_stages_that_come_again(monkeypatch):
    shown = screens(monkeypatch)
    with Progress("reading", quiet=True) as progress:
        progress("kip", 1.25)
        progress("kip", 0.5)
        progress.note("a remark")
    assert progress.stage_seconds == {"kip": 1.75}
    assert shown.err.getvalue() == ""


def test_a_terminal_has_a_bar_with_the_time_left_while_it_runs(monkeypatch):
    shown, clock = screens(monkeypatch), SimpleNamespace(now=0.0)
    monkeypatch.setattr("rich.console.monotonic", lambda: clock.now)
    with Progress("reading [red]wards[/red]", quiet=False) as progress:
        progress.expect_stages(["plan", "ingest", "kip", "decode"])
        for name, seconds in (("plan", 0.1), ("ingest", 2.5), ("kip", 6.3)):
            progress(name, None)
            clock.now += 2 * seconds
            progress(name, seconds)
        progress("decode", None)
        clock.now += 1.0
        progress.refresh()
        last = shown.err.getvalue().splitlines()[-1]
        assert "0:00:18" in last
        assert "0:00:05" in last
    assert "reading [red]wards[/red]" in shown.err.getvalue()
    assert "kip                  choose inducing points (images: noise)" in shown.err.getvalue()
    assert shown.err.getvalue().endswith("\x1b[2K")


def test_a_pipe_has_no_bar_and_no_colour(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress("reading", quiet=False) as progress:
        progress.line("Wards", "bold")
        progress.begin("more")
    terminal.line("ok", style="green")
    terminal.table([("ok", "ledger")], ("state", "name"))
    terminal.failure(BudgetRefused("CODE", "one line"), as_json=False)
    output, errors = capsys.readouterr()
    assert output == "ok\n  state  name\n  ok     ledger\n"
    assert errors == "Wards\nclustmix: CODE: one line\n"


def test_the_end_of_a_release(capsys):
    show_outcome(outcome(1), as_json=False)
    output, errors = capsys.readouterr()
    assert errors == ""
    assert "left 1.964965637823: 1 more release like" in " ".join(output.split())
    lines = output.splitlines()
    titles = [line.split(":")[0] for line in lines if not line.startswith(" ")]
    assert titles == ["Guarantee", "Budget", "Bundle", "Check it"]
    path = outcome(1).bundle
    assert all(len(line) <= WIDTH for line in lines if path not in line)
    assert sum(path in line for line in lines) == 2
