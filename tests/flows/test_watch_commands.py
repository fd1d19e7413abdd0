import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import made_up_release as made
import pytest
from made_up_entries import enter
from stores import Stores
from waiting import until
from webhook_receiver import listening

from flows.cli import main
from flows.events import OrchestratorError
from flows.watching import watcher as watcher_module
from flows.watching.outbox import about, read_cursor
from flows.watching.status import Status
from flows.watching.watcher import MOST_SECONDS, PeriodicTask, Watcher
from flows.watching.watcher_lock import a_watcher_runs
from privacy.charges import Caps
from privacy.errors import ClustMixError
from privacy.ledger import EntryState
from storage.settings import load_settings

PARTS = ("arrivals", "news", "dead runs", "unfinished", "schedules", "budgets")


@pytest.fixture
def site(installation, monkeypatch):
    (installation / "landing").mkdir(mode=0o700)
    for name in ("sites", "landing"):
        monkeypatch.setenv(f"CLUSTMIX_{name.upper()}", str(installation / name))
    return Stores()


class Server:
    def __init__(self):
        self.is_away = False
        self.told = []

    def emit(self, events):
        self._answer()
        self.told += events

    @contextmanager
    def client(self):
        self._answer()
        questions = ("read_flow_runs", "read_deployments", "read_flows")
        yield SimpleNamespace(**dict.fromkeys(questions, lambda **_: []))

    def names(self):
        return [event.name for event in self.told]

    def _answer(self):
        if self.is_away:
            raise OrchestratorError("ORCHESTRATOR_UNREACHABLE", "expected an answer, found none")


@pytest.fixture
def server(monkeypatch):
    fake = Server()
    monkeypatch.setattr(watcher_module, "emit", fake.emit)
    monkeypatch.setattr(watcher_module, "orchestrator", fake.client)
    return fake


class Clock:
    def __init__(self, monkeypatch):
        self.seconds = 1_000.0
        monkeypatch.setattr(watcher_module.time, "monotonic", lambda: self.seconds)


def place_of(site):
    cursor = read_cursor(site.settings.server_home)
    return None if cursor is None else cursor.sequence


def test_one_look_does_everything_once(site, server, capsys):
    entry = enter(site, EntryState.BURNED, note="ABANDONED")
    assert main(["watch", "--once"]) == 0
    assert server.names() == ["release.burned"]
    line = f"sent: release.burned clustmix.release.{entry.release_id}\n"
    assert capsys.readouterr().err.endswith(line)
    assert place_of(site) == 3
    assert main(["watch", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"parts": dict.fromkeys(PARTS)}
    assert server.names() == ["release.burned"]


def test_a_broken_site_file_is_named_and_keeps_no_other_from_its_budget(site, server, capsys):
    site.settings.sites.mkdir()
    (site.settings.sites / "broken.yaml").write_text("dataset: [")
    enter(site, EntryState.PUBLISHED, caps=Caps(lifetime_rho=Decimal("0.11")))
    assert main(["watch", "--once"]) == 2
    said = capsys.readouterr().err
    assert "budgets: SITE_UNUSABLE: expected site files, found broken.yaml (SITE_" in said
    assert "); their budgets are not looked at; tried again in 60 s\n" in said
    assert server.names() == ["release.published", "budget.low"]


def test_the_place_stays_until_the_server_has_answered(site, server, monkeypatch, capsys):
    clock = Clock(monkeypatch)
    watcher = Watcher(site.settings)
    enter(site, EntryState.PUBLISHED)
    server.is_away = True
    for _ in range(5):
        watcher.tick()
        enter(site, EntryState.BURNED)
        clock.seconds += MOST_SECONDS
    assert (server.names(), place_of(site)) == ([], 0)
    # A watcher that starts anew goes on from there.
    watcher = Watcher(site.settings)
    server.is_away = False
    watcher.tick()
    assert server.names() == ["release.published", *["release.burned"] * 5]
    assert place_of(site) == site.ledger.head()[0]
    clock.seconds += 2
    watcher.tick()
    assert len(server.told) == 6


def test_alerts_do_not_need_the_orchestrator(site, server, monkeypatch):
    clock = Clock(monkeypatch)
    with listening() as receiver:
        monkeypatch.setenv("CLUSTMIX_NOTIFY_URL", receiver.url)
        watcher = Watcher(load_settings())
        entry = enter(site, EntryState.BURNED, note="ABANDONED")
        watcher._unsent.append(about(entry, "release.published"))  # as arrivals are
        server.is_away = True
        looks = [Status(up={"orchestrator": bool(up)}) for up in (1, 0, 1, 0, 0, 0, 1)]
        monkeypatch.setattr(watcher_module, "collect", lambda *_, **__: looks.pop(0))
        while looks:
            watcher.tick()
            clock.seconds += MOST_SECONDS
        posted = [json.loads(body) for body in receiver.bodies]
    release = {"dataset": entry.dataset, "release_id": entry.release_id, "reason": "ABANDONED"}
    text = f"release.burned {' '.join(release.values())}"
    assert posted == [
        {"event": "release.burned", **release, "text": text},
        *(
            {"event": event, "part": "orchestrator", "text": f"{event} orchestrator"}
            for event in ("part.down", "part.up")
        ),
    ]
    assert server.told == []


def test_a_crash_before_the_place_is_kept_tells_again_with_the_same_ids(site, server):
    enter(site, EntryState.BURNED)
    Watcher(site.settings).tick()  # there is a cursor
    enter(site, EntryState.PUBLISHED)
    watcher = Watcher(site.settings)
    dies = mock.patch.object(watcher_module, "write_kept", side_effect=SystemExit)
    with dies, pytest.raises(SystemExit):
        watcher.tick()
    Watcher(site.settings).tick()
    first, again = server.told[1:]
    assert first.name == "release.published"
    assert first.event_id == again.event_id


def test_a_part_that_fails_is_tried_again_with_growing_pauses(tmp_path, monkeypatch, capsys):
    clock = Clock(monkeypatch)
    fails = True
    tries = []

    def work():
        tries.append(clock.seconds)
        if fails:
            raise ClustMixError("LANDING_GONE", "expected a folder, found none")

    part = PeriodicTask("arrivals", 2.0, work)
    while clock.seconds < 3_000:
        if part.is_due:
            part.attempt(tmp_path)
        clock.seconds += 1
    pauses = [int(later - earlier) for earlier, later in pairwise(tries)]
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, *[300] * (len(pauses) - 8)]
    assert len(capsys.readouterr().err.splitlines()) == len(tries)
    fails = False
    clock.seconds += 300
    assert part.attempt(tmp_path) is None
    assert capsys.readouterr().err.endswith("Z arrivals: works again\n")


def test_an_unexpected_failure_stays_private_and_ends_nothing(site, server, monkeypatch, capsys):
    monkeypatch.setattr(watcher_module, "scan", lambda *_, **__: made.raise_private("scan"))
    enter(site, EntryState.BURNED)
    done = Watcher(site.settings).tick()
    log = site.settings.diagnostics / "failures.log"
    assert str(done["arrivals"]) == f"UNEXPECTED: stopped by ValueError; {log} says where"
    assert server.names() == ["release.burned"]
    assert not [c for c in made.CANARIES if c in capsys.readouterr().err.encode()]
    assert made.CANARY_RAISED in log.read_text()


@pytest.mark.integration
def test_there_is_one_watcher_and_a_signal_ends_it_between_two_looks(site, tmp_path, capsys):
    log, home = tmp_path / "log", site.settings.server_home
    assert not a_watcher_runs(home)
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    command = [sys.executable, "-m", "flows.cli", "watch"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
    try:
        until(lambda: " watch: begins" in log.read_text())
        assert a_watcher_runs(home)
        assert main(["watch", "--once"]) == 2
        assert capsys.readouterr().err.startswith("clustmix: WATCHER_RUNS: expected no other")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert log.read_text().endswith("Z watch: ends\n")
    assert not a_watcher_runs(home)


def test_dead_runs_are_closed_and_told(site, server):
    enter(site, EntryState.EXECUTING)
    assert main(["watch", "--once"]) == 0
    assert [entry.state for entry in site.ledger.entries()] == [EntryState.BURNED]
    assert main(["watch", "--once"]) == 0
    assert [(event.name, event.payload["reason"]) for event in server.told] == [
        ("release.burned", "ABANDONED")
    ]
