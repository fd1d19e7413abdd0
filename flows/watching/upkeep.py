"""What is looked after every minute: what is to be told of it, and to be remembered after."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from flows.events import PublicEvent, every
from flows.watching.arrivals import arrived
from flows.watching.budgets import DatasetBudget
from flows.watching.notices import Cursor, Repetition, about, event_id
from flows.watching.schedules import TAG, review_schedules
from privacy.ledger import EntryState, LedgerEntry, latest_entries
from storage.arrivals.arrival_store import ArrivalStore
from storage.files.workspace import live_run_ids
from storage.installation import installation_id
from storage.releases.pending import PendingBundles
from storage.settings import Settings

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PATIENCE = timedelta(minutes=2)
"""How long something may lie before it is told again; doubled with each time."""

MOST_PATIENCE = timedelta(hours=6)

_STARTING = timedelta(minutes=10)
"""A run that has not shown its work for longer than this is not waited for."""

_ID = re.compile(r"[ar]-[0-9]{8}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Events, and the cursor of a watcher that has told them."""

    events: tuple[PublicEvent, ...]
    cursor: Cursor


def renotify(
    settings: Settings,
    rows: Iterable[LedgerEntry],
    cursor: Cursor,
    client: SyncPrefectClient,
    *,
    now: datetime,
) -> Outbox:
    """Tell again of what nobody took: an event that started no run, or a run that died.

    What a run waits or has just started for on the server is left alone. The pauses grow, so that
    a run that fails every time is not started every minute.

    `rows` are the whole journal; the cursor knows what was told before.
    """
    found = _unpublished(settings, rows)
    if settings.arrivals.exists():
        found += [arrived(untaken) for untaken in ArrivalStore(settings.arrivals).waiting()]
    lying = {event.resource_id: event for event in found}
    due: list[PublicEvent] = []
    repeated: dict[str, Repetition] = {}
    expected = frozenset[str]()
    if any(cursor.repeated.get(key) and cursor.repeated[key].not_before <= now for key in lying):
        expected = _expected_ids(client, now=now)
    for key, event in lying.items():
        told = cursor.repeated.get(key, Repetition(times=0, not_before=now + PATIENCE))
        if told.not_before <= now and key.rpartition(".")[2] not in expected:
            times = told.times + 1
            # Another event to the server, which takes note of each id once.
            due.append(replace(event, event_id=event_id(event.name, key, str(times))))
            pause = min(PATIENCE * 2 ** min(times, 16), MOST_PATIENCE)
            told = Repetition(times=times, not_before=now + pause)
        repeated[key] = told
    return Outbox(events=tuple(due), cursor=cursor.model_copy(update={"repeated": repeated}))


def missed_runs(cursor: Cursor, client: SyncPrefectClient, *, now: datetime) -> Outbox:
    """Tell of scheduled runs that were not there in time, each once."""
    missed, known = review_schedules(client, cursor.missed, now=now)
    return Outbox(events=missed, cursor=cursor.model_copy(update={"missed": known}))


def low_budgets(budgets: Iterable[DatasetBudget], cursor: Cursor) -> Outbox:
    """Tell of budgets that have become low, once until they are not low any more."""
    low = {budget.dataset: budget for budget in budgets if budget.is_low}
    events = tuple(
        PublicEvent(
            name="budget.low",
            resource_id=f"clustmix.dataset.{dataset}",
            payload={
                "dataset": dataset,
                "percent_left": budget.percent_left,
                "releases_left": budget.releases_left,
            },
            event_id=event_id("budget.low", dataset, str(cursor.sequence)),
        )
        for dataset, budget in low.items()
        if dataset not in cursor.low
    )
    return Outbox(events=events, cursor=cursor.model_copy(update={"low": tuple(sorted(low))}))


def waits_for_officer(entry: LedgerEntry) -> bool:
    """Return whether an officer has to decide about an entry."""
    return entry.state is EntryState.SEALED and entry.needs_approval


def _unpublished(settings: Settings, rows: Iterable[LedgerEntry]) -> list[PublicEvent]:
    """Return what asks to publish our sealed entries, or to make what an officer looks at."""
    live = live_run_ids(settings.private_root)
    made = PendingBundles(settings.pending).release_ids()
    owner = installation_id(settings.home)
    return [
        about(entry, "measurement.sealed")
        for entry in latest_entries(rows).values()
        if entry.owner == owner
        and entry.state in (EntryState.SEALED, EntryState.APPROVED)
        and entry.release_id not in live
        and not (waits_for_officer(entry) and entry.release_id in made)
    ]


def _expected_ids(client: SyncPrefectClient, *, now: datetime) -> frozenset[str]:
    """Return the ids of arrivals and releases that runs of the server wait or start for."""
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
    from prefect.client.schemas.objects import StateType

    waiting = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)
    chosen = FlowRunFilter.model_validate({"state": {"type": {"any_": [*waiting]}}})
    ours = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
    found: set[str] = set()
    for run in every(client.read_flow_runs, flow_run_filter=chosen, deployment_filter=ours):
        queued = run.state is None or run.state.type is StateType.SCHEDULED
        # A worker that died leaves its run pending, or running, for ever.
        if queued or (run.state is not None and run.state.timestamp > now - _STARTING):
            found.update(_ID.findall(json.dumps(run.parameters, default=str)))
    return frozenset(found)
