"""Status of an installation for its operator; a source that does not answer is named."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flows.events import OrchestratorError, orchestrator, orchestrator_is_served
from flows.local_server import ADDRESSES_FILE, ORCHESTRATOR_DATABASE, part_states
from flows.watching.arrivals import REFUSED_LOG
from flows.watching.budgets import DatasetBudget, budgets, read_sites
from flows.watching.doctor import Finding
from flows.watching.outbox import reason_of, waits_for_officer
from flows.watching.schedules import our_deployments, review_schedules
from flows.watching.watcher_lock import a_watcher_runs
from privacy.errors import ClustMixError
from privacy.ledger import EntryState, LedgerEntry, latest_entries
from privacy.spending import moment
from storage.arrivals.arrival_store import Arrival, ArrivalStore
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import Settings

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

LAST_RUNS = 10
ORCHESTRATOR, DATABASE = "orchestrator", "database"

FLOWS = ("measure", "publish", "release")
"""Flows whose runs are shown."""

_CODE = re.compile(r"([A-Z][A-Z0-9_]+|[a-z][a-z-]*:[A-Za-z]+): ")
_ID = re.compile(r"[a-z0-9-]{1,63}")
_TIMEOUT_SECONDS, _ANSWER_SECONDS = 2.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A run, an entry of the ledger or an arrival, by names, its state and a code.

    `name` is ``DATASET/ID``, or that of a deployment; `at` is when the state began, or begins.
    """

    at: datetime
    name: str = ""
    flow: str = ""
    state: str = ""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Status:
    """Status at one moment. All of it is public: ids, states and codes.

    `runs` are those that the orchestrator knows, `entries` those of the ledger, the last first;
    `reserved` are charged and without an outcome. `up` maps each part to whether it works; `parts`
    describes them.
    """

    up: dict[str, bool] = field(default_factory=dict)

    parts: list[Finding] = field(default_factory=list)
    runs: list[Item] = field(default_factory=list)
    waiting: list[Item] = field(default_factory=list)
    reserved: list[Item] = field(default_factory=list)
    entries: list[Item] = field(default_factory=list)
    arrivals: list[Item] = field(default_factory=list)
    refused_arrivals: list[Item] = field(default_factory=list)
    datasets: list[DatasetBudget] = field(default_factory=list)
    next_runs: list[Item] = field(default_factory=list)

    def report(self, name: str, good: bool, text: str) -> None:
        """Record the state of a part."""
        self.parts.append(Finding(name, good, text))
        self.up[name] = good and self.up.get(name, True)

    @property
    def is_served(self) -> bool:
        """True if the orchestrator has answered."""
        return self.up.get(ORCHESTRATOR, False)


def collect(settings: Settings, *, whole: bool = True) -> Status:
    """Gather the status of an installation without changing it; only `up` if it is not `whole`."""
    status = Status()
    watched = a_watcher_runs(settings.server_home)
    if orchestrator_is_served() or (settings.server_home / ADDRESSES_FILE).exists():
        with _asking(status, ORCHESTRATOR), orchestrator(timeout_seconds=_ANSWER_SECONDS) as client:
            client.api_version()  # needs no database
            status.report(ORCHESTRATOR, True, "answers")
        if status.is_served:
            with _asking(status, DATABASE), orchestrator(timeout_seconds=_ANSWER_SECONDS) as client:
                _look_at_server(client, status)
                status.report(DATABASE, True, "of the orchestrator, answers")
        with _asking(status, "server"):
            _look_at_processes(settings.server_home, status)
        text = "at work" if watched else "none runs; clustmix watch is one"
        status.report("watcher", watched, text)
    else:
        text = "none was started, and none is needed; clustmix server start starts one"
        status.parts.append(Finding(ORCHESTRATOR, True, text))
    if settings.dask_address is not None:
        with _asking(status, "cluster"):
            _look_at_cluster(settings.dask_address, status)
    with _asking(status, "ledger"):
        rows: tuple[LedgerEntry, ...] = ()
        places = (settings.ledger_path, settings.ledger_head_path)
        if settings.ledger_url is None and not any(place.exists() for place in places):
            status.report("ledger", True, "none yet; the first release makes it")
        else:
            ledger = LedgerDatabase(settings.ledger_location, head_file=settings.ledger_head_path)
            if whole:
                ledger.verify()
            rows = ledger.history()
            status.report("ledger", True, f"{len(rows)} rows, verified")
        if whole:
            _look_at_entries(rows, settings.sites, status)
    with _asking(status, "arrivals"):
        if whole and settings.arrivals.exists():
            status.refused_arrivals += _refused_arrivals(settings.arrivals / REFUSED_LOG)
            status.arrivals += map(_arrival, ArrivalStore(settings.arrivals).unfinished())
    return status


@contextmanager
def _asking(status: Status, name: str) -> Iterator[None]:
    """Name a source that does not answer, and go on without it."""
    try:
        yield
    except ClustMixError as error:
        own = name == DATABASE and isinstance(error, OrchestratorError)
        text = "of the orchestrator, does not answer; its log says why" if own else str(error)
        status.report(name, False, text)
    except Exception as error:
        # A server of another version, for example; its text is not known to be public.
        status.report(name, False, f"stopped by {type(error).__name__}")


def _look_at_server(client: SyncPrefectClient, status: Status) -> None:
    from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    now = datetime.now(UTC)
    ours = FlowFilter.model_validate({"name": {"any_": [*FLOWS]}})
    flows = {flow.id: flow.name for flow in client.read_flows(flow_filter=ours)}
    for pool in client.read_work_pools():
        if pool.status is not None:
            ready = pool.status.value == "READY"
            text = "a worker is there" if ready else pool.status.value.lower().replace("_", " ")
            status.report(f"pool {pool.name}", ready, text)
    runs = client.read_flow_runs(
        flow_filter=ours,
        flow_run_filter=FlowRunFilter.model_validate({"expected_start_time": {"before_": now}}),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=LAST_RUNS,
    )
    status.runs += [_run(run, flows.get(run.flow_id, ""), now) for run in runs]
    # The next run of each deployment that has a schedule, soonest first.
    coming = FlowRunFilter.model_validate({"next_scheduled_start_time": {"after_": now}})
    for deployment in our_deployments(client):
        if any(schedule.active for schedule in deployment.schedules):
            by_id = DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}})
            status.next_runs += [
                Item(
                    at=run.next_scheduled_start_time or now,
                    name=f"{flows.get(deployment.flow_id, '')}/{deployment.name}",
                )
                for run in client.read_flow_runs(
                    deployment_filter=by_id,
                    flow_run_filter=coming,
                    sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
                    limit=1,
                )
            ]
    status.next_runs.sort(key=lambda run: run.at)
    for event in review_schedules(client, {}, now=now)[0]:
        text = f"no run of {event.payload['expected_at']}"
        status.parts.append(Finding(f"schedule {event.payload['deployment']}", False, text))


def _run(run: FlowRun, flow: str, now: datetime) -> Item:
    """Return a run; before its start it has a name made of its request."""
    state, name, request = run.state, run.name, run.parameters.get("request")
    code = None if state is None or state.message is None else _CODE.match(state.message)
    if run.start_time is None and isinstance(request, dict):
        asked = [request.get(key) for key in ("dataset", "release_id", "arrival")]
        name = "/".join(part for part in asked if isinstance(part, str) and _ID.fullmatch(part))
    return Item(
        at=run.start_time or run.expected_start_time or now,
        name=name,
        flow=flow,
        state="" if state is None else state.name or state.type.value.title(),
        reason="" if code is None else code[1],
    )


def _look_at_processes(server_home: Path, status: Status) -> None:
    """Name the parts of the server of this machine that do not run, or were started again."""
    parts = part_states(server_home)
    if parts and not (server_home / ORCHESTRATOR_DATABASE).is_file():
        # The process goes on without it, until it ends.
        status.report(DATABASE, False, f"of the orchestrator: {ORCHESTRATOR_DATABASE} is gone")
    for part in parts:
        times = "once" if part.restarts == 1 else f"{part.restarts} times"
        if not part.runs:
            status.report(part.name, False, f"ended, and is started again; {part.log} says why")
        elif part.restarts:
            text = f"started again {times}, last at {part.since_text}"
            status.report(part.name, True, text)
        status.up.setdefault(part.name, part.runs)


def _look_at_cluster(address: str, status: Status) -> None:
    """Check that the port is open; any further request needs certificates."""
    found = urlsplit(address)
    try:
        socket.create_connection((found.hostname or "", found.port or 0), _TIMEOUT_SECONDS).close()
    except (OSError, ValueError):
        status.report("cluster", False, "its scheduler does not answer")
    else:
        status.report("cluster", True, "its scheduler answers")


def _look_at_entries(rows: tuple[LedgerEntry, ...], folder: Path, status: Status) -> None:
    sites, faults = read_sites(folder)
    status.datasets += budgets(sites, rows)
    for late in status.datasets:
        if late.overdue is not None:
            text = f"overdue: expected at {late.overdue:%Y-%m-%d %H:%M} UTC by its schedule"
            status.parts.append(Finding(f"release of {late.dataset}", False, text))
    for name, code in faults.items():
        status.parts.append(Finding(f"site file {name}", False, code))
    entries = latest_entries(rows).values()
    status.waiting += [_entry(entry) for entry in entries if waits_for_officer(entry)]
    begun = (EntryState.RESERVED, EntryState.EXECUTING)
    status.reserved += [_entry(entry) for entry in entries if entry.state in begun]
    closed = [entry for entry in entries if entry.state is not EntryState.ADJUSTED]
    latest = sorted(closed, key=lambda entry: entry.sequence, reverse=True)
    status.entries += [_entry(entry) for entry in latest[:LAST_RUNS]]


def _arrival(arrival: Arrival) -> Item:
    return Item(
        at=arrival.accepted_at,
        name=f"{arrival.dataset}/{arrival.arrival_id}",
        state=arrival.state.value,
        reason=f"failures: {arrival.failures}" if arrival.failures else "",
    )


def _entry(entry: LedgerEntry) -> Item:
    reason = reason_of(entry)
    return Item(
        at=moment(entry.recorded_at),
        name=f"{entry.dataset}/{entry.release_id}",
        state=entry.state.value,
        reason="" if reason == entry.state.value.upper() else reason,
    )


def _refused_arrivals(log: Path) -> list[Item]:
    """Return the last refusals; the names that the sender chose stay in the log."""
    lines = log.read_text(encoding="ascii").splitlines() if log.exists() else []
    entries = [json.loads(line) for line in lines[-LAST_RUNS:]]
    return [
        Item(at=datetime.fromisoformat(entry["at"]), reason=entry["code"])
        for entry in reversed(entries)
    ]
