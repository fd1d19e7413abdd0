"""What the commands of the local server say."""

import json
from datetime import UTC, datetime

import pytest

from flows import local_server
from flows.cli import main
from flows.server_environment import Addresses
from flows.supervisor import PartState

STARTED = datetime(2026, 11, 21, 12, tzinfo=UTC)


def state(name, state="RUNNING", restarts=0):
    return PartState(
        name=name, state=state, pid=100, since=STARTED, restarts=restarts, log=f"/log/{name}.log"
    )


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Return the states that the supervisor answers."""
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTMIX_LANDING", "/srv/landing")
    found = [state("pages"), state("watcher", "STARTING", restarts=2)]
    monkeypatch.setattr(local_server, "part_states", lambda folder: tuple(found))
    return found


def test_start_answers_a_program(parts, tmp_path, monkeypatch, capsys):
    addresses = Addresses(orchestrator="http://127.0.0.1:4200", pages="http://127.0.0.1:5001")
    monkeypatch.setattr(local_server, "start_server", lambda settings, **_: (addresses, True))
    assert main(["server", "start", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    part = answer.pop("parts")[1]
    assert (part["name"], part["since"], part["restarts"]) == ("watcher", "2026-11-21T12:00:00Z", 2)
    assert answer == {
        "started": True,
        "page": "http://127.0.0.1:4200",
        "password_file": str(tmp_path / "server" / "page-password"),
        "landing": "/srv/landing",
        "releases": "http://127.0.0.1:5001",
        "cluster": None,
    }


def test_status_shows_restarts_and_fails_where_a_part_does_not_run(parts, capsys):
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


def test_stop_names_what_ran(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path))
    assert main(["server", "stop"]) == 0
    assert capsys.readouterr().out == "no part of the server was running\n"
    monkeypatch.setattr(local_server, "stop_server", lambda folder: ("pages", "watcher"))
    assert main(["server", "stop"]) == 0
    assert capsys.readouterr().out == "stopped: pages, watcher\n"
    assert main(["server", "stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": ["pages", "watcher"]}
