"""What the commands of the local server say."""

import json

from flows.cli import main
from flows.server import parts as server_parts
from flows.server.record import Part, ServerRecord


def test_start_answers_a_program(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTMIX_LANDING", "/srv/landing")
    started = [
        Part(name=name, pid=100, created=1.0, address=address, log=tmp_path / "log", mark="m")
        for name, address in (
            ("pages", "http://127.0.0.1:5001"),
            ("orchestrator", "http://127.0.0.1:4200"),
        )
    ]
    record = ServerRecord(mark="m", parts=tuple(started), ready=True)
    monkeypatch.setattr(server_parts, "start_server", lambda settings, **options: (record, True))
    assert main(["server", "start", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    parts = answer.pop("parts")
    assert answer == {
        "started": True,
        "page": "http://127.0.0.1:4200",
        "password_file": str(tmp_path / "server" / "page-password"),
        "landing": "/srv/landing",
        "releases": "http://127.0.0.1:5001",
    }
    assert parts[0] == {
        "name": "pages",
        "pid": 100,
        "address": "http://127.0.0.1:5001",
        "log": str(tmp_path / "log"),
    }


def test_stop_names_what_ran(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path))
    assert main(["server", "stop"]) == 0
    assert capsys.readouterr().out == "no part of the server was running\n"
    monkeypatch.setattr(server_parts, "stop_server", lambda settings: ("pages", "watcher"))
    assert main(["server", "stop"]) == 0
    assert capsys.readouterr().out == "stopped: pages, watcher\n"
    assert main(["server", "stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": ["pages", "watcher"]}
