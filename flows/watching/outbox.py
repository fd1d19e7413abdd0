"""Events of the watcher: the ledger is the outbox.

The watcher reads the rows after its place, sends their events, and moves its place once the server
has answered. After a crash between the two it sends them again, with the same event ids. Periodic
checks find events to resend, missed runs and low budgets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from flows.events import PublicEvent, dataset_event, every, release_event
from flows.watching.budgets import DatasetBudget
from flows.watching.schedules import TAG, event_id
from privacy.errors import refusals
from privacy.ledger import GENESIS_HASH, EntryState, LedgerEntry, latest_entries
from privacy.spending import moment
from storage.files.documents import Record, read_kept
from storage.ledger.books import check_head
from tasks.steps.entries import AFTER_SEAL, CHECK_FAILED, CHECK_PASSED

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, StateType

refusal = refusals(__package__)

FIRST_LOOK_BACK = timedelta(days=1)
"""Age above which a watcher without a cursor sends no events of a row."""

PATIENCE = timedelta(minutes=2)
"""Time before an event is resent; doubled with each time."""

MOST_PATIENCE = timedelta(hours=6)

_STARTING = timedelta(minutes=10)
"""Time after which a run that has not progressed is not waited for."""

_ORPHANED = timedelta(minutes=1)
"""Time that a run still has after its worker died."""

LOW_PERCENT = 20
"""Below this the budget of a dataset is low."""

CURSOR_FILE = "watcher.json"

_EVENTS = MappingProxyType(
    {
        EntryState.SEALED: "measurement.sealed",
        EntryState.PUBLISHED: "release.published",
        EntryState.VOID: "release.refused",
        EntryState.BURNED: "release.burned",
        EntryState.WITHHELD: "release.withheld",
        EntryState.REVOKED: "release.revoked",
    }
)
"""Events of the states that somebody waits for. An entry that is void was not charged."""

_ENDS = ("refused", "burned", "withheld", "waiting", "overdue")
_ALERTS = ("budget.low", *(f"release.{end}" for end in _ENDS))
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_:-]{0,99}")
_ID = re.compile(r"[ar]-[0-9]{8}-[0-9a-f]{8}")


class Repetition(Record):
    """Resend count and back-off deadline of an event."""

    times: Annotated[int, Field(ge=0)]
    not_before: datetime


class Cursor(Record):
    """State of a watcher that outlives its process; all of it is public.

    `sequence` and `row_hash` are of the last row of the ledger whose events were sent, `lineage` is
    the number of rows that the receiver of lineage has. `low` are the datasets whose budget is
    known to be low, `missed` is the last reviewed run by schedule, `paused` are the deployments
    that wait for a budget, and `repeated` the resent events by resource id.
    """

    format_version: Literal[1] = 1
    sequence: Annotated[int, Field(ge=0)] = 0
    row_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = GENESIS_HASH
    lineage: Annotated[int, Field(ge=0)] = 0
    low: tuple[str, ...] = ()
    missed: dict[str, datetime] = Field(default_factory=dict)
    paused: tuple[str, ...] = ()
    repeated: dict[str, Repetition] = Field(default_factory=dict)

    @classmethod
    def at_first(cls, rows: Iterable[LedgerEntry], *, now: datetime) -> Self:
        """Return the cursor of a watcher that starts for the first time."""
        past = [row for row in rows if moment(row.recorded_at) < now - FIRST_LOOK_BACK]
        return cls(sequence=past[-1].sequence, row_hash=past[-1].hash) if past else cls()


Outbox = tuple[list[PublicEvent], Cursor]
"""Events, and the cursor of a watcher that has sent them."""


def read_cursor(folder: Path) -> Cursor | None:
    """Return the cursor in a folder; None before the first, IntegrityError for anything else."""
    damaged = refusal("WATCHER_MEMORY_DAMAGED", file=CURSOR_FILE)
    return read_kept(folder / CURSOR_FILE, Cursor, damaged=damaged)


def notices(rows: tuple[LedgerEntry, ...], cursor: Cursor, *, owner: str) -> list[PublicEvent]:
    """Return the events about the rows after the watcher's place, in their order.

    The rows are the whole journal (else IntegrityError). Only entries of `owner` have events.

    Privacy
    -------
    An event holds ids, the state and a code, and no text of an officer.
    """
    check_head(rows, (cursor.sequence, cursor.row_hash))
    latest = latest_entries(rows)
    events: list[PublicEvent] = []
    for row in rows[cursor.sequence :]:
        name = _EVENTS.get(row.state)
        if name is None or row.owner != owner or row.code in (CHECK_PASSED, CHECK_FAILED):
            continue  # the person who made a check has its answer
        if row.state is EntryState.SEALED:
            if latest[row.entry_id].state not in AFTER_SEAL:
                continue  # nobody has to publish it any more
            if waits_for_officer(latest[row.entry_id]):
                events += [about(row, name), about(row, "release.waiting")]
                continue
        events.append(about(row, name))
    return events


def about(entry: LedgerEntry, name: str) -> PublicEvent:
    """Return the event of a name about a row of the ledger."""
    reason = {} if name == "measurement.sealed" else {"reason": reason_of(entry)}
    own_id = event_id(name, entry.entry_id, str(entry.sequence))
    return release_event(name, entry.dataset, entry.release_id, event_id=own_id, **reason)


def reason_of(entry: LedgerEntry) -> str:
    """Return the code that explains the state of an entry; the state where no code was noted."""
    if entry.signers:
        return "BY_OFFICER"
    if entry.code is not None and _CODE.fullmatch(entry.code):
        return entry.code
    return entry.state.value.upper()


def resend(
    unanswered: Iterable[PublicEvent], cursor: Cursor, client: SyncPrefectClient, *, now: datetime
) -> Outbox:
    """Return the events to resend: they started no run, or their run died.

    An event is left alone while a run of the server waits for its id, or has just started for it.
    Pauses grow, so that a run that fails every time is not started every minute.
    """
    lying = {event.resource_id: event for event in unanswered}
    due: list[PublicEvent] = []
    repeated: dict[str, Repetition] = {}
    expected = frozenset[str]()
    if any(cursor.repeated.get(key) and cursor.repeated[key].not_before <= now for key in lying):
        expected = _expected_ids(client, now=now)
    for key, event in lying.items():
        sent = cursor.repeated.get(key, Repetition(times=0, not_before=now + PATIENCE))
        if sent.not_before <= now and key.rpartition(".")[2] not in expected:
            times = sent.times + 1
            # With a new id, since the server acts on each id once.
            due.append(replace(event, event_id=event_id(event.name, key, str(times))))
            pause = min(PATIENCE * 2 ** min(times, 16), MOST_PATIENCE)
            sent = Repetition(times=times, not_before=now + pause)
        repeated[key] = sent
    return due, cursor.model_copy(update={"repeated": repeated})


def low_budgets(budgets: Iterable[DatasetBudget], cursor: Cursor) -> Outbox:
    """Return an event for each budget that has become low; the next only after it recovered."""
    low = {budget.dataset: budget for budget in budgets if budget.percent_left < LOW_PERCENT}
    events = [
        dataset_event(
            "budget.low",
            dataset,
            percent_left=budget.percent_left,
            releases_left=budget.releases_left,
            event_id=event_id("budget.low", dataset, str(cursor.sequence)),
        )
        for dataset, budget in low.items()
        if dataset not in cursor.low
    ]
    return events, cursor.model_copy(update={"low": tuple(sorted(low))})


def overdue_releases(
    budgets: Iterable[DatasetBudget], noted: Mapping[str, datetime]
) -> tuple[list[PublicEvent], dict[str, datetime]]:
    """Return an event for each release that became overdue, and the times to remember."""
    name, found = "release.overdue", list[PublicEvent]()
    late = {f"overdue {one.dataset}": one.overdue for one in budgets if one.overdue is not None}
    for key, at in late.items():
        if noted.get(key) != at:
            dataset, expected_at = key.split()[1], f"{at:%Y-%m-%dT%H:%M:%SZ}"
            own_id = event_id(name, dataset, expected_at)
            found.append(dataset_event(name, dataset, expected_at=expected_at, event_id=own_id))
    return found, late


def alerts(events: Iterable[PublicEvent]) -> list[dict[str, str | int]]:
    """Return the events that a person waits for, in the form that automations give them."""
    found: list[dict[str, str | int]] = []
    for event in events:
        if event.name in _ALERTS:
            text = " ".join([event.name, *map(str, event.payload.values())])
            found.append({"event": event.name, **event.payload, "text": text})
    return found


def take_up(
    client: SyncPrefectClient, started: Mapping[str, datetime], *, now: datetime
) -> list[str]:
    """Schedule anew the runs that a worker took and does not start; return their names.

    `started` is each pool's last start of a worker: a run taken before waits for `_ORPHANED` only.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.states import Scheduled

    found: list[str] = []
    for run in _runs(client, StateType.PENDING):
        if run.state is None:
            continue
        # The process of a dead worker may still come up.
        orphaned = min(started.get(run.work_pool_name or "", now - _STARTING), now - _ORPHANED)
        if run.state.timestamp < max(orphaned, now - _STARTING):
            client.set_flow_run_state(run.id, Scheduled(), force=True)
            found.append(run.name)
    return found


def waits_for_officer(entry: LedgerEntry) -> bool:
    """Return whether an officer has to decide about an entry."""
    return entry.state is EntryState.SEALED and entry.needs_approval


def unpublished(
    rows: Iterable[LedgerEntry], *, owner: str, live: Set[str], made: Set[str]
) -> list[PublicEvent]:
    """Return the events that ask for publication of sealed entries, or for a bundle to decide on.

    `live` are the releases with a living run, `made` those whose bundle waits for its officer.
    """
    return [
        about(entry, "measurement.sealed")
        for entry in latest_entries(rows).values()
        if entry.owner == owner
        and entry.state in AFTER_SEAL
        and entry.release_id not in live
        and not (waits_for_officer(entry) and entry.release_id in made)
    ]


def _expected_ids(client: SyncPrefectClient, *, now: datetime) -> frozenset[str]:
    """Return the ids of arrivals and releases that runs of the server wait or start for."""
    from prefect.client.schemas.objects import StateType

    found: set[str] = set()
    for run in _runs(client, StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING):
        queued = run.state is None or run.state.type is StateType.SCHEDULED
        # A worker that died leaves its run pending, or running, for ever.
        if queued or (run.state is not None and run.state.timestamp > now - _STARTING):
            found.update(_ID.findall(json.dumps(run.parameters, default=str)))
    return frozenset(found)


def _runs(client: SyncPrefectClient, *states: StateType) -> list[FlowRun]:
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter

    chosen = FlowRunFilter.model_validate({"state": {"type": {"any_": [*states]}}})
    ours = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
    return every(client.read_flow_runs, flow_run_filter=chosen, deployment_filter=ours)
