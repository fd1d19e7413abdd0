from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from made_up_entries import enter, move
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from served_prefect import served_prefect

from flows.events import orchestrator
from flows.watching.budgets import DatasetBudget, budgets
from flows.watching.outbox import (
    MOST_PATIENCE,
    PATIENCE,
    Cursor,
    low_budgets,
    resend,
    take_up,
    unpublished,
)
from flows.watching.schedules import GRACE, last_occurrence, pause_exhausted, review_schedules
from privacy.charges import Caps
from privacy.ledger import EntryState
from storage.files.workspace import PrivateWorkspace, live_run_ids

NOW = datetime(2026, 11, 21, 17, 0, tzinfo=UTC)


@dataclass
class Server:
    runs: list[Any] = field(default_factory=list)
    questions: int = 0

    def read_flow_runs(self, *, limit, offset, **_):
        self.questions += 1
        return self.runs[offset : offset + limit]

    def add(self, state, since, **request):
        parameters = {"request": {"dataset": "wards", **request}}
        self.runs.append(
            SimpleNamespace(state=State(type=state, timestamp=since), parameters=parameters)
        )


def unanswered(site):
    return unpublished(
        site.ledger.history(),
        owner=site.owner,
        live=live_run_ids(site.private_root),
        made=site.pending.release_ids(),
    )


def retold(site, cursor, server, now):
    events, cursor = resend(unanswered(site), cursor, server, now=now)
    return [event.resource_id for event in events], cursor


def test_a_sealed_entry_that_nobody_publishes_is_told_again_with_growing_pauses(site):
    entry = enter(site, EntryState.SEALED)
    events = unanswered(site)
    server, cursor, times, ids = Server(), Cursor(), [], set()
    for minute in range(0, 60 * 24, 2):
        now = NOW + timedelta(minutes=minute)
        told, cursor = resend(events, cursor, server, now=now)
        if told:
            [event] = told
            assert event.name == "measurement.sealed"
            assert event.payload["release_id"] == entry.release_id
            ids.add(event.event_id)
            times.append(minute)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == PATIENCE.total_seconds() / 60
    assert pauses == [4, 8, 16, 32, 64, 128, 256, 360, 360]
    assert max(pauses) == MOST_PATIENCE.total_seconds() / 60
    assert len(ids) == len(times)
    assert server.questions == len(times)


def test_a_run_that_lives_or_has_published_is_left_alone(site):
    entry = enter(site, EntryState.SEALED)
    with PrivateWorkspace.create(site.private_root, entry.release_id):
        assert retold(site, Cursor(), Server(), NOW)[1].repeated == {}
    _, cursor = retold(site, Cursor(), Server(), NOW)
    assert list(cursor.repeated) == [f"clustmix.release.{entry.release_id}"]
    move(site, move(site, entry, EntryState.APPROVED), EntryState.PUBLISHED)
    events, cursor = retold(site, cursor, Server(), NOW + PATIENCE)
    assert (events, cursor.repeated) == ([], {})


def test_what_waits_for_an_officer_is_told_again_until_its_bundle_is_there(site):
    entry = enter(site, EntryState.SEALED, needs_approval=True)
    _, cursor = retold(site, Cursor(), Server(), NOW)
    assert len(retold(site, cursor, Server(), NOW + PATIENCE)[0]) == 1
    site.pending.path(entry.release_id).mkdir(parents=True)
    assert retold(site, cursor, Server(), NOW + PATIENCE)[0] == []
    move(site, entry, EntryState.APPROVED)
    assert len(retold(site, cursor, Server(), NOW + PATIENCE)[0]) == 1


@pytest.mark.parametrize(
    ("state", "age", "is_expected"),
    [
        (StateType.SCHEDULED, timedelta(days=3), True),
        (StateType.RUNNING, timedelta(minutes=1), True),
        (StateType.PENDING, timedelta(minutes=11), False),
    ],
)
def test_a_run_that_waits_or_starts_is_waited_for(site, state, age, is_expected):
    entry = enter(site, EntryState.SEALED)
    _, cursor = retold(site, Cursor(), Server(), NOW)
    later = NOW + PATIENCE
    server = Server()
    for _ in range(250):  # more than one page
        server.add(StateType.SCHEDULED, later, release_id="r-20260101-00000000")
    server.add(state, later - age, release_id=entry.release_id)
    events, cursor = retold(site, cursor, server, later)
    assert events == ([] if is_expected else [f"clustmix.release.{entry.release_id}"])
    server.runs.clear()
    assert len(retold(site, cursor, server, later)[0]) == int(is_expected)


def test_a_low_budget_is_told_once_per_crossing():
    cursor, told = Cursor(), []
    for sequence, percent in enumerate((100, 20, 19, 19, 5, 0, 45, 21, 20, 12)):
        at = cursor.model_copy(update={"sequence": sequence})
        left = {"percent_left": percent, "releases_left": percent // 10}
        events, cursor = low_budgets([DatasetBudget(dataset="wards", **left)], at)
        told += [(event.payload, event.event_id) for event in events]
    assert [payload for payload, _ in told] == [
        {"dataset": "wards", "percent_left": 19, "releases_left": 1},
        {"dataset": "wards", "percent_left": 12, "releases_left": 1},
    ]
    assert told[0][1] != told[1][1]


def test_the_cap_that_leaves_least_in_proportion_counts(site):
    caps = Caps(
        lifetime_rho=Decimal(10), dataset_rho=Decimal(2), window_rho=Decimal(1), window_days=7
    )
    for _ in range(3):
        enter(site, EntryState.PUBLISHED, caps=caps, rho=Decimal("0.3"))
    [wards] = budgets({}, site.ledger.history())
    assert (wards.dataset, wards.percent_left, wards.releases_left) == ("wards", 10, 0)
    enter(site, EntryState.VOID, caps=caps, rho=Decimal("0.1"), dataset="others")
    others, wards = budgets({}, site.ledger.history())
    assert (others.dataset, others.percent_left) == ("others", 10)
    # A charge by hand is no dataset.
    by_hand = {"cohort": "paper", "rho": Decimal(1), "reason": "why", "entry_id": "e-1"}
    site.ledger.adjust(**by_hand, signers=("a" * 16, "b" * 16))
    assert budgets({}, site.ledger.history()) == [others, wards]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (CronSchedule(cron="0 2 * * 0", timezone="Europe/Berlin"), datetime(2026, 11, 15, 1)),
        (CronSchedule(cron="30 3 1 1 *", timezone="UTC"), datetime(2026, 1, 1, 3, 30)),
        (CronSchedule(cron="0 0 29 2 *", timezone="UTC"), None),  # not in 400 days
        (
            IntervalSchedule(interval=timedelta(hours=6), anchor_date=NOW - timedelta(hours=1)),
            datetime(2026, 11, 21, 16),
        ),
    ],
)
def test_the_last_occurrence_of_a_schedule(schedule, expected):
    expected = None if expected is None else expected.replace(tzinfo=UTC)
    assert last_occurrence(schedule, before=NOW) == expected


def add_deployment(client, name, *, tags=("clustmix",), active=True):
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    schedule = CronSchedule(cron="0 * * * *", timezone="UTC")
    return client.create_deployment(
        client.create_flow_from_name("measure"),
        name,
        tags=list(tags),
        schedules=[DeploymentScheduleCreate(schedule=schedule, active=active)],
    )


@pytest.mark.integration
def test_a_run_that_did_not_start_is_missed_once(site, tmp_path, monkeypatch):
    with served_prefect(tmp_path / "prefect") as server:
        for name, value in server.items():
            monkeypatch.setenv(name, value)
        check_missed_runs()
        check_waiting_runs(site)


def check_missed_runs():
    from prefect.states import Running, Scheduled

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    due = (tomorrow - GRACE).replace(minute=0, second=0, microsecond=0)
    with orchestrator(retries=5) as client:
        hourly = add_deployment(client, "hourly")
        add_deployment(client, "paused", active=False)
        add_deployment(client, "of-others", tags=())
        # What was announced before there was a schedule was never due.
        assert review_schedules(client, {}, now=datetime.now(UTC))[0] == []

        events, known = review_schedules(client, {}, now=tomorrow)
        [event] = events
        assert event.name == "schedule.missed"
        assert event.resource_id == "clustmix.deployment.measure/hourly"
        expected_at = due.strftime("%Y-%m-%dT%H:%M:%SZ")
        assert event.payload == {"deployment": "measure/hourly", "expected_at": expected_at}
        assert review_schedules(client, {}, now=tomorrow)[0] == events
        assert review_schedules(client, known, now=tomorrow)[0] == []
        assert len(review_schedules(client, known, now=tomorrow + timedelta(hours=1))[0]) == 1

        # A run that was created and waits is missed; once it has started, it is not.
        run = client.create_flow_run_from_deployment(hourly, state=Scheduled(scheduled_time=due))
        assert len(review_schedules(client, {}, now=tomorrow)[0]) == 1
        client.set_flow_run_state(run.id, Running(), force=True)
        assert review_schedules(client, {}, now=tomorrow)[0] == []


def check_waiting_runs(site):
    entry = enter(site, EntryState.SEALED)
    _, cursor = retold(site, Cursor(), Server(), NOW)
    with orchestrator(retries=5) as client:
        assert len(retold(site, cursor, client, NOW + PATIENCE)[0]) == 1
        publish = client.create_flow_from_name("publish")
        deployment = client.create_deployment(publish, "on-seal", tags=["clustmix"])
        request = {"dataset": entry.dataset, "release_id": entry.release_id}
        client.create_flow_run_from_deployment(deployment, parameters={"request": request})
        assert retold(site, cursor, client, NOW + PATIENCE)[0] == []


def test_runs_that_a_dead_worker_has_taken_are_scheduled_anew():
    server, taken = Server(), []
    server.set_flow_run_state = lambda run_id, state, force: taken.append((run_id, state.type))
    minutes = {"a": 11, "b": 9, "c": 3, "d": 0.5, "e": 30}
    pools = {"a": "elsewhere", "b": "elsewhere", "c": "private", "d": "private", "e": "private"}
    for name, age in minutes.items():
        server.add(StateType.PENDING, NOW - timedelta(minutes=age))
        vars(server.runs[-1]).update(id=name, name=name, work_pool_name=pools[name])
    # The worker began anew two minutes ago, so that what it took a moment ago is its own.
    assert take_up(server, {"private": NOW - timedelta(minutes=2)}, now=NOW) == ["a", "c", "e"]
    assert taken == [(name, StateType.SCHEDULED) for name in "ace"]
    # Of a worker that lives, a run has its ten minutes.
    assert take_up(server, {"private": NOW - timedelta(days=1)}, now=NOW) == ["a", "e"]


def test_a_schedule_waits_while_its_budget_is_gone():
    one, other, by_hand = (
        SimpleNamespace(
            id=uuid4(),
            flow_id=1,
            name=f"weekly-{dataset}",
            paused=dataset == "births",
            schedules=["weekly"],
            parameters={"request": {"dataset": dataset}},
        )
        for dataset in ("wards", "parts", "births")
    )
    demand = SimpleNamespace(id=uuid4(), paused=False, schedules=[], parameters={})
    every = [one, other, by_hand, demand]

    def put(paused):
        def change(deployment_id):
            next(each for each in every if each.id == deployment_id).paused = paused

        return change

    client = SimpleNamespace(
        read_deployments=lambda *, limit, offset, **_: every[offset : offset + limit],
        read_flow=lambda flow_id: SimpleNamespace(name="measure"),
        pause_deployment=put(True),
        resume_deployment=put(False),
    )
    events, paused = pause_exhausted(client, {"wards", "births"}, ())
    assert [event.payload["deployment"] for event in events] == ["measure/weekly-wards"]
    assert paused == (str(one.id),)
    assert [each.paused for each in every] == [True, False, True, False]
    assert pause_exhausted(client, {"wards", "births"}, paused) == ([], paused)
    # What a person has paused stays so.
    assert pause_exhausted(client, set(), paused) == ([], ())
    assert [each.paused for each in every] == [False, False, True, False]
