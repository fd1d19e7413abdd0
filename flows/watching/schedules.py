"""Schedules: runs that did not start, and deployments that wait for a budget.

The orchestrator does not report missed runs: a schedule that it fails to work off creates no run,
and an automation cannot see the absence of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from flows.events import PublicEvent, every
from privacy.ledger import EntryState, LedgerEntry
from privacy.spending import moment

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

    from storage.schema.visit_columns import ByEntry


TAG = "clustmix"
"""Marks our deployments on a server that others use too."""

GRACE = timedelta(minutes=15)
"""Delay after which a run that has not started is missed."""

OVERDUE = timedelta(days=1)
"""Delay after which a missing release is overdue."""

_WINDOWS = tuple(timedelta(hours=hours) for hours in (1, 24, 8 * 24, 32 * 24, 400 * 24))
"""Windows in which an occurrence is looked for; frequent schedules are found in the first ones."""

_TOLERANCE = timedelta(milliseconds=500)


def review_schedules(
    client: SyncPrefectClient, known: Mapping[str, datetime], *, now: datetime
) -> tuple[list[PublicEvent], dict[str, datetime]]:
    """Return the events of schedules whose last due run has not started.

    A run that has not started `GRACE` after its time, or was never created, is missed; one that
    started later has happened. While a schedule is paused nothing of it is due.

    The second result is the last reviewed occurrence by schedule id: pass it as `known` at the next
    review. An error of the client (httpx.HTTPError) is passed on.
    """
    missed: list[PublicEvent] = []
    seen: dict[str, datetime] = {}
    for deployment in our_deployments(client):
        for schedule in deployment.schedules:
            paused = deployment.paused or not schedule.active
            key = str(schedule.id)
            last = last_occurrence(schedule.schedule, before=now if paused else now - GRACE)
            before = known.get(key)
            if last is None or (before is not None and last <= before):
                seen |= {} if before is None else {key: before}
                continue
            seen[key] = last
            changed = schedule.updated or schedule.created
            newer = changed is not None and changed > last  # Prefect makes no run for the past
            if not (paused or newer or _has_started(client, deployment, last)):
                own_id = event_id("schedule.missed", key, last.isoformat())
                expected_at = last.strftime("%Y-%m-%dT%H:%M:%SZ")
                about = full_name(client, deployment)
                missed.append(_event("schedule.missed", about, own_id, expected_at=expected_at))
    return missed, seen


def pause_exhausted(
    client: SyncPrefectClient, exhausted: Set[str], paused: Collection[str]
) -> tuple[list[PublicEvent], tuple[str, ...]]:
    """Pause scheduled deployments of datasets whose budget pays for no release, with an event each.

    The second result are the ids of those that wait: pass them as `paused` the next time. They are
    resumed once there is budget, unless a person resumed them before. httpx.HTTPError is passed on.
    """
    events: list[PublicEvent] = []
    waiting: list[str] = []
    for deployment in our_deployments(client):
        request, key = deployment.parameters.get("request"), str(deployment.id)
        dataset = request.get("dataset") if isinstance(request, dict) else None
        if dataset in exhausted and deployment.schedules:
            if deployment.paused:
                waiting += [key] if key in paused else []
            else:
                waiting.append(key)
                client.pause_deployment(deployment.id)
                about = full_name(client, deployment)
                events.append(_event("schedule.paused", about, reason="BUDGET_EXHAUSTED"))
        elif key in paused and deployment.paused:
            client.resume_deployment(deployment.id)
    return events, tuple(waiting)


def event_id(*parts: str) -> UUID:
    """Return the id of an event, the same for the same parts."""
    return uuid5(NAMESPACE_URL, "urn:clustmix:event:" + "\n".join(parts))


def full_name(client: SyncPrefectClient, deployment: DeploymentResponse) -> str:
    """Return "flow/deployment"."""
    return f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"


def _event(name: str, deployment: str, own_id: UUID | None = None, **more: str) -> PublicEvent:
    return PublicEvent(
        name=name,
        resource_id=f"clustmix.deployment.{deployment}",
        payload={"deployment": deployment, **more},
        event_id=own_id,
    )


def our_deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return the deployments that are ours."""
    from prefect.client.schemas.filters import DeploymentFilter

    ours = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
    return every(client.read_deployments, deployment_filter=ours)


def last_occurrence(schedule: Any, *, before: datetime) -> datetime | None:
    """Return the last time (UTC) that a schedule names in the 400 days before a moment, or None."""
    from prefect.server.schemas.schedules import SCHEDULE_TYPES
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(SCHEDULE_TYPES)
    theirs = adapter.validate_python(schedule.model_dump())
    for window in _WINDOWS:
        dates = asyncio.run(theirs.get_dates(start=before - window, end=before))
        past = [date for date in dates if date <= before]
        if past:
            last = max(past)
            return datetime.fromtimestamp(last.timestamp(), UTC)
    return None


def overdue(
    schedule: Mapping[str, str], entry: ByEntry | None, rows: Sequence[LedgerEntry]
) -> datetime | None:
    """Return the time of the last scheduled release if it is missing after `OVERDUE`, else None.

    The rows are those of its dataset; before the first one nothing is overdue. Except by entry, a
    release is missing only if one was tried: an unchanged table is not measured again.
    """
    from prefect.client.schemas.schedules import CronSchedule

    last = last_occurrence(CronSchedule(**schedule), before=datetime.now(UTC) - OVERDUE)
    if last is None or not rows or moment(rows[0].recorded_at) > last:
        return None
    period = None if entry is None else entry.last_period(last)
    own = [row for row in rows if moment(row.recorded_at) >= last]
    if period is not None:
        own = [row for row in rows if row.partition and row.partition.part == period]
    is_there = any(row.state is EntryState.SEALED for row in own)
    # A check is void, and a release that an officer publishes later is no new one.
    void = {row.entry_id for row in own if row.state is EntryState.VOID}
    tried = any(row.entry_id not in void and row.state is not EntryState.PUBLISHED for row in own)
    return last if not is_there and (tried or entry) else None


def _has_started(
    client: SyncPrefectClient, deployment: DeploymentResponse, occurrence: datetime
) -> bool:
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter

    around = {"after_": occurrence - _TOLERANCE, "before_": occurrence + _TOLERANCE}
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
        flow_run_filter=FlowRunFilter.model_validate({"expected_start_time": around}),
    )
    return any(run.start_time is not None for run in runs)
