import json
from datetime import UTC, datetime

from flows import local_server
from flows.cli import main
from flows.supervisor import PartState

STARTED = datetime(2026, 11, 21, 12, tzinfo=UTC)


def state(name, state="RUNNING", restarts=0):
    return PartState(
        name=name, state=state, pid=100, since=STARTED, restarts=restarts, log=f"/log/{name}.log"
    )


def test_status_shows_restarts_and_fails_where_a_part_does_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTMIX_LANDING", "/srv/landing")
    parts = [state("pages"), state("watcher", "STARTING", restarts=2)]
    monkeypatch.setattr(local_server, "part_states", lambda folder: tuple(parts))
    assert main(["server", "status"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[:4] for line in shown.splitlines()[1:]] == [
        ["pages", "running", "100", "0"],
        ["watcher", "starting", "100", "2"],
    ]
    parts.append(state("scheduler", "BACKOFF", restarts=7))
    assert main(["server", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["parts"][2]["state"] == "BACKOFF"
    parts.clear()
    assert main(["server", "status"]) == 1
    assert capsys.readouterr().out == "no part of the server is running\n"
