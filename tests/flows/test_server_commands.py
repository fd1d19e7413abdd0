"""What the commands of the local server say."""

import json

import pytest

from flows.cli import main
from flows.server import parts as server_parts
from flows.server.record import Part, ServerRecord


def record_of(folder):
    addresses = {
        "scheduler": "tls://127.0.0.1:5000",
        "pages": "http://127.0.0.1:5001",
        "orchestrator": "http://127.0.0.1:4200",
        "watcher": "",
    }
    parts = [
        Part(name=name, pid=100, created=1.0, address=address, log=folder / "log", mark=f"m/{name}")
        for name, address in addresses.items()
    ]
    return ServerRecord(mark="m", parts=tuple(parts), ready=True)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTMIX_LANDING", "/srv/landing")
    calls = []

    def start(settings, **options):
        options.pop("log")("waiting for the watcher")
        calls.append(options)
        return record_of(tmp_path), len(calls) == 1

    monkeypatch.setattr(server_parts, "start_server", start)
    return calls


def test_start_answers_a_program(asked, tmp_path, capsys):
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
        "name": "scheduler",
        "pid": 100,
        "address": "tls://127.0.0.1:5000",
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
