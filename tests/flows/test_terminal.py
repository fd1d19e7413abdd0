"""What people and programs are shown: on a pipe plain lines, on a terminal colour and a bar."""

import io
from types import SimpleNamespace

from flows.cli import terminal
from flows.cli.progress import Progress
from privacy.errors import BudgetRefused


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


def test_a_quiet_run_writes_nothing_and_adds_up_stages_that_come_again(monkeypatch):
    shown = screens(monkeypatch)
    with Progress("reading", quiet=True) as progress:
        progress("kip", 1.25)
        progress("kip", 0.5)
        progress.note("a remark")
    assert progress.stage_seconds == {"kip": 1.75}
    assert shown.err.getvalue() == ""


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
