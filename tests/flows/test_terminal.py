from flows.cli import terminal
from flows.cli.progress import Progress
from privacy.errors import BudgetRefused


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
