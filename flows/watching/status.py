"""Status of an installation for its operator; a source that does not answer is named."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

from flows.events import orchestrator
from flows.local_server import part_states
from flows.watching.arrivals import REFUSED_LOG
from flows.watching.budgets import DatasetBudget, budgets, read_sites
from flows.watching.outbox import reason_of, waits_for_officer
from flows.watching.schedules import our_deployments
from flows.watching.watcher_lock import a_watcher_runs
from privacy.errors import ClustMixError
from privacy.ledger import EntryState, LedgerEntry, latest_entries
from privacy.spending import moment
from storage.arrivals.arrival_store import ArrivalStore
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import Settings

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

LAST_RUNS = 10
ORCHESTRATOR = "orchestrator"

FLOWS = ("measure", "publish", "release")
"""Flows whose runs are shown."""

_CODE = re.compile(r"([A-Z][A-Z0-9_]+|[a-z][a-z-]*:[A-Za-z]+): ")
_ID = re.compile(r"[a-z0-9-]{1,63}")
_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """A part of the installation: its name, if it answers, and a text."""

    name: str
    answers: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One of the last runs; `at` is when it started, or when it is to start."""

    name: str
    flow: str
    state: str
    reason: str
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of the ledger, by ids: one that waits for an officer, or one of the last."""

    dataset: str
    release_id: str
    state: str
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A table that waits for a run (accepted) or is being released (taken)."""

    arrival_id: str
    dataset: str
    state: str
    failures: int
    accepted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedArrival:
    """An announcement that was refused, by its code."""

    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(DatasetBudget):
    """A dataset: its last release and what is left of its budget."""

    last_release: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """The next run of a schedule."""

    deployment: str
    at: datetime


@dataclass(slots=True, kw_only=True)
class Status:
    """Status at one moment. All of it is public: ids, states and codes.

    `runs` are those that the orchestrator knows, `entries` those of the ledger, the last first;
    `reserved` are charged and without an outcome.
    """

    parts: list[PartState] = field(default_factory=list)
    runs: list[RunState] = field(default_factory=list)
    waiting: list[Entry] = field(default_factory=list)
    reserved: list[Entry] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    arrivals: list[Arrived] = field(default_factory=list)
    refused_arrivals: list[RefusedArrival] = field(default_factory=list)
    datasets: list[Dataset] = field(default_factory=list)
    next_runs: list[NextRun] = field(default_factory=list)

    def report(self, name: str, answers: bool, text: str) -> None:
        """Take note of a part."""
        self.parts.append(PartState(name=name, answers=answers, text=text))

    @property
    def is_served(self) -> bool:
        """True if the orchestrator has answered."""
        return any(part.name == ORCHESTRATOR and part.answers for part in self.parts)


def collect(settings: Settings, *, asks_server: bool = True) -> Status:
    """Gather the status of an installation and make nothing.

    Unless `asks_server` is false, the server of ``PREFECT_API_URL``, the parts of a local server,
    the watcher and the cluster are asked too.
    """
    status = Status()
    if asks_server:
        with _asking(status, ORCHESTRATOR), orchestrator() as client:
            _look_at_server(client, status)
        with _asking(status, "server"):
            _look_at_processes(settings.server_home, status)
        watched = a_watcher_runs(settings.server_home)
        text = "at work" if watched else "none runs; clustmix watch is one"
        status.report("watcher", watched, text)
        if settings.dask_address is not None:
            with _asking(status, "cluster"):
                _look_at_cluster(settings.dask_address, status)
    with _asking(status, "ledger"):
        rows: tuple[LedgerEntry, ...] = ()
        if settings.ledger_url is None and not settings.ledger_path.exists():
            status.report("ledger", True, "none yet; the first release makes it")
        else:
            ledger = LedgerDatabase(settings.ledger_location, head_file=settings.ledger_head_path)
            ledger.verify()
            rows = ledger.history()
            status.report("ledger", True, f"{len(rows)} rows, verified")
        _look_at_entries(rows, settings.sites, status)
    with _asking(status, "arrivals"):
        if settings.arrivals.exists():
            refused = settings.arrivals / REFUSED_LOG
            _look_at_arrivals(ArrivalStore(settings.arrivals), refused, status)
    return status


@contextmanager
def _asking(status: Status, name: str) -> Iterator[None]:
    """Name a source that does not answer, and go on without it."""
    try:
        yield
    except ClustMixError as error:
        status.report(name, False, str(error))
    except Exception as error:
        # A server of another version, for example; its text is not known to be public.
        status.report(name, False, f"stopped by {type(error).__name__}")


def _look_at_server(client: SyncPrefectClient, status: Status) -> None:
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    now = datetime.now(UTC)
    ours = FlowFilter.model_validate({"name": {"any_": [*FLOWS]}})
    flows = {flow.id: flow.name for flow in client.read_flows(flow_filter=ours)}
    status.report(ORCHESTRATOR, True, "answers")
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
    status.runs += [_run_state(run, flows.get(run.flow_id, "")) for run in runs]
    status.next_runs += _next_runs(client, flows, now)


def _run_state(run: FlowRun, flow: str) -> RunState:
    state, code = run.state, None
    if state is not None and state.message is not None:
        code = _CODE.match(state.message)
    return RunState(
        name=_name_of(run),
        flow=flow,
        state="" if state is None else state.name or state.type.value.title(),
        reason="" if code is None else code[1],
        at=run.start_time or run.expected_start_time,
    )


def _name_of(run: FlowRun) -> str:
    """Return the name of a run; before its start, a name made of its request."""
    request = run.parameters.get("request")
    if run.start_time is not None or not isinstance(request, dict):
        return run.name
    found = [request.get(key) for key in ("dataset", "release_id", "arrival")]
    return "/".join(part for part in found if isinstance(part, str) and _ID.fullmatch(part))


def _next_runs(
    client: SyncPrefectClient, flows: Mapping[UUID, str], now: datetime
) -> list[NextRun]:
    """Return the next run of each deployment that has a schedule, soonest first."""
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    coming = FlowRunFilter.model_validate({"next_scheduled_start_time": {"after_": now}})
    found = []
    for deployment in our_deployments(client):
        if not any(schedule.active for schedule in deployment.schedules):
            continue
        runs = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
            flow_run_filter=coming,
            sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
            limit=1,
        )
        name = f"{flows.get(deployment.flow_id, '')}/{deployment.name}"
        found += [
            NextRun(deployment=name, at=run.next_scheduled_start_time)
            for run in runs
            if run.next_scheduled_start_time is not None
        ]
    return sorted(found, key=lambda run: run.at)


def _look_at_processes(server_home: Path, status: Status) -> None:
    """Name the parts of the server of this machine that do not run, or were started again."""
    for part in part_states(server_home):
        again = f"started again {part.restarts} times, last at {part.since_text}"
        if not part.runs:
            status.report(part.name, False, f"ended, and is started again; {part.log} says why")
        elif part.restarts:
            status.report(part.name, True, again.replace("1 times", "once"))


def _look_at_cluster(address: str, status: Status) -> None:
    """Look whether something listens; who may ask it for more has certificates."""
    found = urlsplit(address)
    try:
        socket.create_connection((found.hostname or "", found.port or 0), _TIMEOUT_SECONDS).close()
    except (OSError, ValueError):
        status.report("cluster", False, "its scheduler does not answer")
    else:
        status.report("cluster", True, "its scheduler answers")


def _look_at_entries(rows: tuple[LedgerEntry, ...], folder: Path, status: Status) -> None:
    sites, faults = read_sites(folder)
    entries = latest_entries(rows).values()
    last = {e.dataset: e.release_id for e in entries if e.state is EntryState.PUBLISHED}
    status.datasets += [
        Dataset(**asdict(budget), last_release=last.get(budget.dataset))
        for budget in budgets(sites, rows)
    ]
    for name, code in faults.items():
        status.report(f"site file {name}", False, code)
    status.waiting += [_entry(entry) for entry in entries if waits_for_officer(entry)]
    begun = (EntryState.RESERVED, EntryState.EXECUTING)
    status.reserved += [_entry(entry) for entry in entries if entry.state in begun]
    closed = [entry for entry in entries if entry.state is not EntryState.ADJUSTED]
    latest = sorted(closed, key=lambda entry: entry.sequence, reverse=True)
    status.entries += [_entry(entry) for entry in latest[:LAST_RUNS]]


def _entry(entry: LedgerEntry) -> Entry:
    reason = reason_of(entry)
    return Entry(
        dataset=entry.dataset,
        release_id=entry.release_id,
        state=entry.state.value,
        reason="" if reason == entry.state.value.upper() else reason,
        since=moment(entry.recorded_at),
    )


def _look_at_arrivals(store: ArrivalStore, refused: Path, status: Status) -> None:
    status.refused_arrivals += _refused_arrivals(refused)
    status.arrivals += [
        Arrived(
            arrival_id=arrival.arrival_id,
            dataset=arrival.dataset,
            state=arrival.state.value,
            failures=arrival.failures,
            accepted_at=arrival.accepted_at,
        )
        for arrival in store.unfinished()
    ]


def _refused_arrivals(log: Path) -> list[RefusedArrival]:
    """Return the last refusals; the names that the sender chose stay in the log."""
    lines = log.read_text(encoding="ascii").splitlines() if log.exists() else []
    entries = [json.loads(line) for line in lines[-LAST_RUNS:]]
    return [
        RefusedArrival(reason=entry["code"], at=datetime.fromisoformat(entry["at"]))
        for entry in reversed(entries)
    ]
