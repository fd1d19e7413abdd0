import json
import socket
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from unittest import mock

import made_up_release as made
import pytest
from made_up_entries import enter
from served_prefect import free_port, served_prefect
from stores import Stores

from flows.cli import main
from flows.events import OrchestratorError, orchestrator
from flows.local_server import Addresses
from flows.supervisor import PartState
from flows.watching import status as status_module
from flows.watching.status import collect
from flows.watching.watcher_lock import only_watcher
from privacy.charges import Caps
from privacy.ledger import EntryState
from storage.arrivals.arrival_store import ArrivalState
from storage.files.documents import write_kept


@pytest.fixture
def site(installation, tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("CLUSTMIX_SITES", str(tmp_path / "sites"))
    monkeypatch.setenv("TZ", "UTC")
    return Stores()


def shown(capsys, code=0):
    assert main(["status"]) == code
    sections = {}
    for line in capsys.readouterr().out.splitlines():
        assert len(line) <= 80
        if not line.startswith(" "):
            below = sections.setdefault(line, [])
        else:
            below.append(line[2:])
    return sections


def as_json(capsys, code=0):
    assert main(["status", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_nothing_is_there_and_nothing_is_made(site, tmp_path, capsys):
    before = sorted(path.name for path in tmp_path.iterdir())
    sections = shown(capsys)
    parts = [line.split()[:2] for line in sections.pop("Parts") if line[0] != " "]
    assert parts == [["ok", "orchestrator"], ["ok", "ledger"]]
    assert sections.keys() >= {"Last entries of the ledger", "Datasets", "Next scheduled runs"}
    assert all(lines == ["none"] for lines in sections.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_without_a_server_the_ledger_speaks(site, tmp_path, capsys):
    (tmp_path / "sites").mkdir()
    made.write_site(tmp_path).rename(tmp_path / "sites" / "made-up.yaml")
    caps = Caps(lifetime_rho=Decimal(1))
    published = enter(site, EntryState.PUBLISHED, caps=caps, rho=Decimal("0.85"))
    burned = enter(site, EntryState.BURNED, note="ABANDONED", cohort="x", dataset="w" * 60)
    waiting = enter(site, EntryState.SEALED, needs_approval=True, cohort="y", dataset="births")
    sections = shown(capsys)
    assert sections["Parts"][-1].split() == ["ok", "ledger", "11", "rows,", "verified"]
    entries = "".join(line[18:] for line in sections["Last entries of the ledger"])
    for one in (published, burned, waiting):
        assert one.release_id in entries
    assert sections["Waiting for an officer"] == [
        f"{waiting.recorded_at[:16].replace('T', ' ')}  sealed  births/{waiting.release_id}",
        "clustmix approve RELEASE --key FILE --reason TEXT; --reject rejects it",
    ]
    table = [line.split() for line in sections["Datasets"]]
    assert table[1][:4] == ["births", "99", "%", "9999"]
    assert table[2] == ["made-up", "100", "%", "620", "none", "yet"]
    assert table[3] == ["wards", "15", "%", "0", published.release_id]
    found = as_json(capsys)
    [shown_waiting] = found["waiting"]
    assert shown_waiting["at"] == waiting.recorded_at[:19] + "Z"


def test_arrivals_are_shown_by_id_and_code(site, monkeypatch, capsys):
    site.settings.arrivals.mkdir(parents=True, mode=0o700)
    now = datetime.now(UTC).replace(microsecond=0)
    facts = {"arrival_id": "a-20261121-0f3a9c21", "dataset": "wards", "failures": 1}
    waiting = SimpleNamespace(**facts, state=ArrivalState.ACCEPTED, accepted_at=now)
    monkeypatch.setattr(status_module.ArrivalStore, "unfinished", lambda self: (waiting,))
    entry = {"at": now.isoformat(), "code": "ARRIVAL_FORGED", "dataset": "x", "ready_file": "Z!"}
    log = site.settings.arrivals / "refused.log"
    log.write_text(20 * (json.dumps({**entry, "code": "EARLIER"}) + "\n") + json.dumps(entry))
    sections = shown(capsys)
    words = " ".join(sections["Arrivals that are not released yet"]).split()
    assert words[2:] == ["accepted", "wards/a-20261121-0f3a9c21", "failures:", "1"]
    refused = sections["Refused arrivals"]
    assert len(refused) == 10
    assert refused[0].split()[2:] == ["ARRIVAL_FORGED"]
    assert "Z!" not in json.dumps(as_json(capsys))


def parts(settings):
    return {part.name: (part.good, part.text) for part in collect(settings).parts}


def test_parts_that_are_there_and_parts_that_ended(site, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        settings = site.settings.model_copy(update={"dask_address": address})
        with only_watcher(settings.server_home), monkeypatch.context() as named:
            named.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
            found = parts(settings)
    assert found["watcher"] == (True, "at work")
    assert found["cluster"] == (True, "its scheduler answers")
    assert parts(settings)["cluster"] == (False, "its scheduler does not answer")

    since = datetime(2026, 11, 21, 12, tzinfo=UTC)
    states = [
        PartState(name=name, state=state, pid=9, since=since, restarts=times, log="/a.log")
        for name, state, times in (
            ("pages", "RUNNING", 0),
            ("private-worker", "STARTING", 21),
            ("public-worker", "BACKOFF", 7),
        )
    ]
    monkeypatch.setattr(status_module, "part_states", lambda folder: states)
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    found = parts(site.settings)
    assert "pages" not in found
    answers, text = found["private-worker"]
    assert answers
    assert text.startswith("started again 21 times, last at 2026-11-21 ")
    ended = "ended, and is started again; /a.log says why"
    assert found["public-worker"] == (False, ended)


def test_what_cannot_be_read_or_asked_is_named(site, tmp_path, monkeypatch):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "broken.yaml").write_text("dataset: [")
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    found = parts(site.settings)
    assert found["site file broken.yaml"][0] is False
    answers, text = found["orchestrator"]
    assert not answers
    assert text.startswith("ORCHESTRATOR_UNREACHABLE: expected an answer of the Prefect server")
    # What a client of another version raises is named by its type.
    raising = mock.Mock(side_effect=lambda **_: made.raise_private("client"))
    monkeypatch.setattr(status_module, "orchestrator", raising)
    assert parts(site.settings)["orchestrator"] == (False, "stopped by ValueError")


def test_a_dead_part_is_named_and_the_exit_code_says_so(site, monkeypatch, capsys):
    write_kept(site.settings.server_home / "addresses.json", Addresses(orchestrator="x"))
    [*found] = (part["name"] for part in as_json(capsys, 1)["parts"] if not part["good"])
    assert found == ["orchestrator", "server", "watcher"]  # their supervisor has ended
    monkeypatch.setattr(status_module, "part_states", lambda folder: [])
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1/api")
    broken = OrchestratorError("ORCHESTRATOR_UNREACHABLE", "found none")
    client = SimpleNamespace(api_version=str, read_flows=mock.Mock(side_effect=broken))
    monkeypatch.setattr(status_module, "orchestrator", lambda **_: nullcontext(client))
    with only_watcher(site.settings.server_home):
        found = [part for part in as_json(capsys, 1)["parts"] if not part["good"]]
    text = "of the orchestrator, does not answer; its log says why"
    assert found == [{"name": "database", "good": False, "text": text}]


@pytest.mark.integration
def test_with_a_real_server_the_runs_are_shown(site, tmp_path, monkeypatch, capsys):
    from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
    from prefect.client.schemas.objects import State, StateType
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.states import Failed, Running, Scheduled

    with served_prefect(tmp_path / "prefect") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
        with orchestrator(retries=5) as client:
            client.create_work_pool(WorkPoolCreate(name="private", type="process"))
            measure = client.create_flow_from_name("measure")
            schedules = [DeploymentScheduleCreate(schedule=CronSchedule(cron="0 2 * * 0"))]
            weekly = client.create_deployment(
                measure, "weekly-wards", tags=["clustmix"], paused=False, schedules=schedules
            )
            client.create_flow_run_from_deployment(weekly, state=Scheduled(scheduled_time=soon))

            def add(name, state):
                run = client.create_flow_run_from_deployment(weekly, name=name)
                client.set_flow_run_state(run.id, Running(), force=True)
                if state is not None:
                    client.set_flow_run_state(run.id, state, force=True)

            message = "BUDGET_EXCEEDED: expected at most rho 0.1"
            refused = State(type=StateType.CANCELLED, name="Refused", message=message)
            add("wards/r-20261121-00000002", refused)
            add("wards/r-20261121-00000003", Failed(message="ingest:ValueError: the step stopped"))
            add("wards/r-20261121-00000004", Failed(message=f"Flow died: {made.CANARY_PATIENT}"))
            add("wards/r-20261121-00000005", None)
            request = {"request": {"dataset": "wards", "arrival": "a-20261121-0f3a9c21"}}
            client.create_flow_run_from_deployment(weekly, name="any", parameters=request)
        sections = shown(capsys, 1)
        found = as_json(capsys, 1)
    assert ["FAIL", "pool", "private", "not", "ready"] in [x.split() for x in sections["Parts"]]
    words = [line.split()[2:] or line.split() for line in sections["Last runs"]]
    assert words == [
        ["measure", "Scheduled", "wards/a-20261121-0f3a9c21"],
        ["measure", "Running", "wards/r-20261121-00000005"],
        ["measure", "Failed", "wards/r-20261121-00000004"],
        ["measure", "Failed", "wards/r-20261121-00000003"],
        ["ingest:ValueError"],
        ["measure", "Refused", "wards/r-20261121-00000002"],
        ["BUDGET_EXCEEDED"],
    ]
    assert made.CANARY_PATIENT not in json.dumps(found)
    [coming] = found["next_runs"]
    assert coming["name"] == "measure/weekly-wards"
    assert coming["at"] == soon.strftime("%Y-%m-%dT%H:%M:%SZ")
