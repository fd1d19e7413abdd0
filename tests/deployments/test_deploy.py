import json
import os
import shutil
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore
from served_prefect import served_prefect
from waiting import until
from webhook_receiver import WebhookReceiver, listening

from flows.events import PublicEvent, emit, orchestrator
from flows.watching.deploy import NOTIFY_BLOCK, deploy
from privacy.errors import ConfigurationError
from storage.settings import load_settings
from tasks.execution.runtime import safe_environment
from tests.processes import ROOT, python

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ARRIVAL = "a-20261121-0a1b2c3d"
DATASET = "diabetes130-readmission"
SCHEDULED = f"measure/weekly-{DATASET}"
SERVED = {SCHEDULED, "measure/on-arrival", "measure/on-demand", "publish/on-seal"} | {
    "publish/on-demand"
}
AUTOMATIONS = (ROOT / "deployments" / "automations.yaml").read_text("utf-8")
TELLERS = {automation["name"] for automation in yaml.safe_load(AUTOMATIONS)["automations"]}


@dataclass(frozen=True)
class Server:
    variables: dict[str, str]
    files: Path
    webhook: WebhookReceiver
    first: dict[str, Any]

    def deploy(self, file=None, *, without=None):
        """Deploy from this process, which has Prefect loaded; the first time is the command."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.variables.items():
                if name != without:
                    patch.setenv(name, value)
            done = deploy(load_settings(), file or self.files / "prefect.yaml")
        return json.loads(json.dumps(asdict(done)))


def command(file, variables):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "CLUSTMIX"))}
    return python(
        "-m", "flows.cli", "deploy", file, "--json", env={**inherited, **variables}, timeout=300
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy")
    files = folder / "files"
    shutil.copytree(ROOT / "deployments", files)
    with served_prefect(folder / "prefect") as named, listening() as webhook:
        variables = {
            **named,
            "CLUSTMIX_HOME": str(folder / "home"),
            "CLUSTMIX_SITES": str(files / "sites"),
            "CLUSTMIX_NOTIFY_URL": webhook.url,
        }
        done = command(files / "prefect.yaml", variables)
        assert done.returncode == 0, done.stderr
        yield Server(variables, files, webhook, json.loads(done.stdout))


@pytest.fixture(autouse=True)
def named(server, monkeypatch):
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, server.variables[name])


def ask(path, body=None):
    with orchestrator(retries=5) as client:
        if body is None:
            return client._client.get(path).json()
        return client._client.post(path, json=body).json()


def runs_with(**request):
    return [
        run
        for run in ask("/flow_runs/filter", {"limit": 200})
        if run["parameters"].get("request") == request
    ]


KEPT = ("id", "paused", "is_paused", "enabled", "schedules", "parameters", "description")


def everything():
    """Return what the server holds and people may change; triggers are Prefect's to replace."""
    return {
        (kind, one["name"], one.get("flow_id")): {
            key: [each["active"] for each in one[key]] if key == "schedules" else one[key]
            for key in KEPT
            if key in one
        }
        for kind in ("deployments", "work_pools", "work_queues", "automations", "block_documents")
        for one in ask(f"/{kind}/filter", {})
        if not any(action["type"] == "run-deployment" for action in one.get("actions", []))
    }


def test_everything_that_the_files_declare_is_registered(server):
    assert set(server.first["deployments"]) == SERVED
    assert set(server.first["automations"]) == TELLERS
    assert server.first["removed"] == []
    assert server.first["notifies"] is True
    flows = {flow["id"]: flow["name"] for flow in ask("/flows/filter", {})}
    found = {f"{flows[d['flow_id']]}/{d['name']}": d for d in ask("/deployments/filter", {})}
    assert found.keys() == SERVED
    for name, deployment in found.items():
        assert deployment["entrypoint"].startswith("flows."), name
        assert deployment["pull_steps"] == [], name
        assert deployment["path"] is None, name
        assert deployment["enforce_parameter_schema"] is True, name
        assert deployment["parameter_openapi_schema"]["properties"]["request"], name
        assert str(ROOT) not in json.dumps(deployment), name
    pools = {name: ask(f"/work_pools/{name}") for name in ("private", "public")}
    for pool in pools.values():
        environment = pool["base_job_template"]["variables"]["properties"]["env"]["default"]
        assert safe_environment().items() <= environment.items()
        assert pool["type"] == "process"
        assert pool["concurrency_limit"] is None
    queues = {q["name"]: q["priority"] for q in ask("/work_pools/private/queues/filter", {})}
    assert queues["on-demand"] < queues["schedule"] < queues["arrivals"]
    # The address to notify is not readable there.
    block = ask(f"/block_types/slug/webhook/block_documents/name/{NOTIFY_BLOCK}")
    assert "CANARY" not in json.dumps(block)


def test_cron_really_creates_runs_in_its_time_zone(server):
    # With sqlalchemy 2.1 everything looks well and no run ever comes.
    runs = until(lambda: runs_with(dataset=DATASET), seconds=90)
    for run in runs:
        begin = datetime.fromisoformat(run["expected_start_time"]).astimezone(
            ZoneInfo("Europe/Berlin")
        )
        assert (begin.weekday(), begin.hour, begin.minute) == (6, 2, 0)
        assert run["state_type"] == "SCHEDULED"


def test_the_schedule_of_a_site_file_is_registered_and_removed_with_it(server):
    path = server.files / "sites" / "adult.yaml"
    declared = path.read_text(encoding="utf-8")
    schedule = "schedule: {cron: '30 4 1 * *', timezone: Europe/Berlin}\n"
    path.write_text(declared + schedule, encoding="utf-8")
    try:
        assert "measure/scheduled-adult" in server.deploy()["deployments"]
        run = until(lambda: runs_with(dataset="adult"), seconds=90)[0]
        begin = datetime.fromisoformat(run["expected_start_time"])
        begin = begin.astimezone(ZoneInfo("Europe/Berlin"))
        assert (begin.day, begin.hour, begin.minute) == (1, 4, 30)
        path.write_text(f"{declared}schedule: {{cron: never}}\n", encoding="utf-8")
        with pytest.raises(ConfigurationError, match=r"SITE_UNUSABLE: .* adult.yaml \(SITE"):
            server.deploy()
    finally:
        path.write_text(declared, encoding="utf-8")
    assert server.deploy()["removed"] == ["measure/scheduled-adult"]


def arrived(arrival):
    payload = {"dataset": DATASET, "arrival": arrival}
    return PublicEvent("cohort.arrived", f"clustmix.arrival.{arrival}", payload, uuid4())


def test_arrival_starts_one_run_with_ids_alone(server):
    event = arrived(ARRIVAL)
    emit([event])
    emit([event])
    until(lambda: runs_with(dataset=DATASET, arrival=ARRIVAL), seconds=90)
    other = arrived(f"a-20261122-{uuid4().hex[:8]}")
    emit([other])
    until(lambda: runs_with(**other.payload), seconds=90)
    runs = runs_with(dataset=DATASET, arrival=ARRIVAL)
    assert len(runs) == 1, "the same event twice is one run"
    assert runs[0]["work_queue_name"] == "arrivals"
    assert runs[0]["work_pool_name"] == "private"


def test_event_with_other_than_ids_starts_nothing_and_is_reported(server):
    wrong = "../../CANARY"
    resource = {"prefect.resource.id": "clustmix.arrival.x"}
    tell("cohort.arrived", resource, payload={"dataset": wrong, "arrival": wrong})
    (told,) = server.webhook.wait_for(lambda body: "clustmix measures what arrives" in body)
    assert runs_with(dataset=wrong, arrival=wrong) == []
    assert "CANARY" not in told


def test_notifications_hold_ids_states_and_numbers_of_budgets(server):
    release = f"r-20261121-{uuid4().hex[:8]}"
    ids, text = {"dataset": DATASET, "release_id": release}, f"{DATASET}/{release}"
    left = {"dataset": DATASET, "percent_left": 12, "releases_left": 3}
    late = {"deployment": SCHEDULED, "expected_at": "2026-11-22T02:00:00Z"}
    said = {
        f"release.{state}": (ids | {"reason": "CAP"}, f"{text} CAP")
        for state in ("refused", "withheld", "burned")
    }
    said |= {
        "release.waiting": (ids, text),
        "release.overdue": (
            {"dataset": DATASET, "expected_at": late["expected_at"]},
            f"{DATASET} {late['expected_at']}",
        ),
        "budget.low": (left, f"{DATASET}: 12 % left, releases left: 3"),
        "schedule.missed": (late, f"{SCHEDULED} 2026-11-22T02:00:00Z"),
    }
    resources = {
        "release": f"clustmix.release.{release}",
        "budget": f"clustmix.dataset.{DATASET}",
        "schedule": f"clustmix.deployment.{SCHEDULED}",
    }
    emit(
        [
            PublicEvent(
                name,
                resources["budget" if name.endswith("overdue") else name.partition(".")[0]],
                payload,
            )
            for name, (payload, _) in said.items()
        ]
    )
    for name, (payload, words) in said.items():
        (body,) = server.webhook.wait_for(lambda body, name=name: name in body)
        found = json.loads(body)
        assert found["text"] == f"{name} {words}"
        if "release_id" in payload:
            assert found == {"event": name, "reason": "", "text": found["text"]} | payload


def test_run_that_falls_silent_is_crashed_and_one_that_does_not_start_is_reported(server):
    path = server.files / "automations.yaml"
    declared = path.read_text(encoding="utf-8")
    hurried = declared
    for seconds in (300, 1800):
        assert f"within: {seconds}}}" in declared
        hurried = hurried.replace(f"within: {seconds}}}", "within: 10}")
    path.write_text(hurried, encoding="utf-8")
    try:
        server.deploy()
        silent, ended = running_run("silent"), running_run("ended")
        for run in (silent, ended):
            tell_of_run("prefect.flow-run.heartbeat", run)
        tell_of_run("prefect.flow-run.Late", late := uuid4())
        set_state(ended, "CANCELLED", "Refused")
        until(lambda: ask(f"/flow_runs/{silent}")["state_type"] == "CRASHED", seconds=90)
        server.webhook.wait_for(lambda body: "prefect.flow-run.Crashed silent" in body)
        (body,) = server.webhook.wait_for(lambda body: str(late) in body)
        assert json.loads(body)["text"] == "prefect.flow-run.Late admissions/r-x"
        state = ask(f"/flow_runs/{ended}")
        assert (state["state_type"], state["state_name"]) == ("CANCELLED", "Refused")
    finally:
        path.write_text(declared, encoding="utf-8")
        server.deploy()


def running_run(name):
    found = ask("/deployments/name/measure/on-demand")
    with orchestrator(retries=5) as client:
        run = client.create_flow_run_from_deployment(
            found["id"], parameters={"request": {"dataset": DATASET}}, name=name
        )
    set_state(run.id, "PENDING", "Pending")
    set_state(run.id, "RUNNING", "Running")
    return run.id


def set_state(run, kind, name):
    body = {"state": {"type": kind, "name": name}, "force": True}
    assert ask(f"/flow_runs/{run}/set_state", body)["status"] == "ACCEPT"


def tell(event, resource, **more):
    now = datetime.now(tz=ZoneInfo("UTC")).isoformat()
    said = {"id": str(uuid4()), "occurred": now, "event": event, "resource": resource, **more}
    with orchestrator(retries=5) as client:
        client._client.post("/events", json=[said])


def tell_of_run(event, run):
    resource = {
        "prefect.resource.id": f"prefect.flow-run.{run}",
        "prefect.resource.name": "admissions/r-x",
    }
    tag = {"prefect.resource.id": "prefect.tag.clustmix", "prefect.resource.role": "tag"}
    tell(event, resource, related=[tag])


def test_deploying_twice_changes_nothing_and_what_is_paused_stays_so(server):
    with orchestrator(retries=5) as client:
        scheduled = client.read_deployment_by_name(SCHEDULED)
        client.update_deployment_schedule(scheduled.id, scheduled.schedules[0].id, active=False)
        arrival = client.read_deployment_by_name("measure/on-arrival")
        client.pause_deployment(arrival.id)
        client._client.patch("/work_pools/public", json={"is_paused": True})
        (low,) = client.read_automations_by_name("clustmix budget low")
        client.pause_automation(low.id)
    before = everything()
    answer = server.deploy()
    assert answer == server.first
    assert everything() == before
    with orchestrator(retries=5) as client:
        client.update_deployment_schedule(scheduled.id, scheduled.schedules[0].id, active=True)
        client.resume_deployment(arrival.id)
        client._client.patch("/work_pools/public", json={"is_paused": False})
        client.resume_automation(low.id)


def test_what_the_files_no_longer_name_is_removed_and_what_is_not_ours_stays(server, tmp_path):
    files = tmp_path / "files"
    shutil.copytree(server.files, files)
    declared = yaml.safe_load((files / "prefect.yaml").read_text(encoding="utf-8"))
    kept = [d for d in declared["deployments"] if d["name"] != "on-arrival"]
    (files / "prefect.yaml").write_text(
        yaml.safe_dump({**declared, "deployments": kept}), encoding="utf-8"
    )
    (files / "automations.yaml").write_text("automations: []\n", encoding="utf-8")
    foreign_flow = ask("/flows/", {"name": "foreign"})["id"]
    ask("/deployments/", {"name": "foreign", "flow_id": foreign_flow})
    with orchestrator(retries=5) as client:
        (one,) = client.read_automations_by_name("clustmix budget low")
        client.create_automation(AutomationCore(**{**one.model_dump(), "name": "foreign"}))
    try:
        answer = server.deploy(files / "prefect.yaml")
        assert {"measure/on-arrival", "clustmix budget low"} <= set(answer["removed"])
        assert answer["automations"] == []
        assert {d["name"] for d in ask("/deployments/filter", {})} >= {"foreign", "on-seal"}
        names = {a["name"] for a in ask("/automations/filter", {})}
        assert names == {"foreign", "clustmix publishes what is sealed"}
    finally:
        again = server.deploy()
    assert set(again["deployments"]) == SERVED


def test_without_an_address_nobody_is_told_and_the_server_keeps_none(server):
    try:
        answer = server.deploy(without="CLUSTMIX_NOTIFY_URL")
        assert answer["notifies"] is False
        assert answer["automations"] == ["clustmix run is gone"]
        assert ask("/block_documents/filter", {}) == []
    finally:
        assert set(server.deploy()["automations"]) == TELLERS
