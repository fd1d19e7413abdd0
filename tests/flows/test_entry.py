"""Releases by entry, and by schedule. Canaries are counted from outside, in the sealed sums."""

import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unittest import mock
from zoneinfo import ZoneInfo

import canary_entries as canaries
import made_up_release as made
import numpy as np
import pandas as pd
import pytest
from canary_entries import LEVELS, N_CANARIES, SCHEMA
from made_up_entries import enter
from waiting import until

from flows.cli import main
from flows.installation import Installation
from flows.site.request import job_of
from flows.site.site_file import load_site
from flows.watching.budgets import budgets
from flows.watching.outbox import overdue_releases
from privacy.charges import Caps, Partition
from privacy.errors import (
    ClustMixError,
    ConfigurationError,
    InputError,
    IntegrityError,
    LedgerError,
    Withheld,
)
from privacy.ledger import EntryState
from privacy.spending import time_text
from storage.ledger import journal
from storage.schema.visit_columns import ByEntry
from storage.settings import load_settings
from tasks.steps.entries import Entries

ENTRY = {"by": "entry", "column": "admitted", "every": "month"}


def patients(*, months=4, n_patients=200, seed=1):
    """Return rows of patients who come back: the first are canaries, each with a level."""
    rng = np.random.default_rng(seed)
    first = rng.integers(1, months + 1, n_patients)
    frames = []
    for number, month in enumerate(first):
        stays = sorted({month, *rng.integers(month, months + 1, 2)})
        who = f"c{number}" if number < N_CANARIES else "none"
        frames += [
            {"patient": f"P{number}", "admitted": f"2025-{stay:02d}-{rng.integers(1, 29):02d}"}
            | {"who": who, "died": rng.choice(["n", "y"])}
            for stay in stays
        ]
    return pd.DataFrame(frames)


def write_site(folder, cohort, **changes):
    """Write a site file whose noise is far below one patient."""
    entry = ENTRY | changes.pop("entry", {})
    return made.write_site(
        folder,
        cohort=cohort,
        lifetime_epsilon=500.0,
        privacy_unit={"partition": entry},
        **{"schema": SCHEMA, "privacy": {"epsilon": 200.0}, **changes},
    )


def times_read(site, others=()):
    return canaries.times_read(site.ledger.entries(), load_settings().measurements, others)


def periods(site):
    return {e.partition.part for e in site.ledger.entries() if e.state.value != "void"}


def test_each_patient_is_read_once_and_the_cohort_pays_for_one_release(installation, site):
    cohort = patients()
    for month in range(1, 5):
        period = f"2025-{month:02d}"
        before = cohort[cohort["admitted"] < f"2025-{month + 1:02d}"]
        path = write_site(installation, before)
        outcome = made.release_without_engine(path, period=period)
        words = f"who entered in {period}; each patient is in at most one of these releases"
        assert words in outcome.guarantee
        assert words in made.verified(installation, outcome.release_id).manifest.privacy_unit
        assert made.release_without_engine(path, period=period).reused
        assert times_read(site).total() == before[before["who"] != "none"]["who"].nunique()
    assert times_read(site) == dict.fromkeys(LEVELS[1:], 1)
    [rho] = {entry.rho for entry in site.ledger.entries()}
    balance = site.ledger.balance("made-up", partition=site.ledger.entries()[0].partition)
    assert balance.spent_rho == rho == site.ledger.balance("made-up").spent_rho
    assert balance.remaining_rho == balance.cap_rho
    site.ledger.verify()


def test_late_and_corrected_rows_and_what_is_asked_again(installation, site):
    cohort = patients(months=2)
    first = cohort.groupby("patient")["admitted"].transform("min")
    late = first.str.startswith("2025-01") & cohort["who"].isin(["c0", "c1", "c2", "c3"])
    made.release_without_engine(write_site(installation, cohort[~late]), period="2025-01")
    # Who was read in January is known, whatever later tables say; c4 comes a month earlier now.
    moved = cohort["admitted"].where(cohort["who"] != "c4", "2024-12-31")
    moved = moved.where(first >= "2025-02", "2025-02-03").where(~late, cohort["admitted"])
    path = write_site(installation, cohort.assign(admitted=moved))
    assert made.release_without_engine(path, period="2025-01").reused
    made.release_without_engine(path, period="2025-02")
    assert not times_read(site).keys() & {*cohort[late]["who"]}
    for period, new_draw in (("2025-01", True), ("2024-12", False)):
        with suppress(Withheld):  # of so few, the gate sees the floor of a label without patients
            assert not made.release_without_engine(path, period=period, new_draw=new_draw).reused
    assert set(times_read(site).values()) == {1}
    assert times_read(site).total() == N_CANARIES
    assert site.ledger.balance("made-up").spent_rho == site.ledger.entries()[0].rho
    # Other settings are no second measurement of patients who were read.
    other = write_site(installation, cohort, method={"kind": "dp_cda"})
    with pytest.raises(LedgerError, match=r"PERIOD_READ: release r-.* --new-draw .* nothing is c"):
        made.release_without_engine(other, period="2024-12")


def test_a_patient_of_several_periods_is_read_and_charged_as_often(installation, site):
    path = write_site(installation, patients(months=3), entry={"at_most": 2})
    for month in range(1, 4):
        made.release_without_engine(path, period=f"2025-{month:02d}")
    assert set(times_read(site).values()) == {1, 2}
    assert site.ledger.balance("made-up").spent_rho == 2 * site.ledger.entries()[0].rho
    assert "at most 2 of these" in site.ledger.entries()[0].unit


def test_a_period_without_patients_or_with_one_label_is_released_all_the_same(installation, site):
    cohort = patients(months=1, n_patients=40).assign(died="n")
    path = write_site(installation, cohort, privacy={"epsilon": 1.0})
    for period in ("2024-06", "2025-01"):
        assert made.release_without_engine(path, period=period).state == "published"
    with pytest.raises(InputError, match="EMPTY_TABLE"):
        made.release_without_engine(write_site(installation, cohort[:0]), period="2024-07")


def test_rows_of_other_periods_break_no_rule_and_a_row_without_a_date_does(installation, site):
    cohort = patients(months=2)
    cohort.loc[cohort["who"] == "c3", "died"] = "neither"
    entered = cohort[cohort["who"] == "c3"]["admitted"].min()[:7]
    other = "2025-02" if entered == "2025-01" else "2025-01"
    path = write_site(installation, cohort)
    made.release_without_engine(path, period=other)
    with pytest.raises(InputError, match="column died"):
        made.release_without_engine(path, period=entered)
    assert site.ledger.entries()[-1].state.value == "void"
    made.release_without_engine(write_site(installation, patients(months=2)), period=entered)
    assert times_read(site) == dict.fromkeys(LEVELS[1:], 1)
    cohort.loc[7, "admitted"] = "31.01.2025"
    with pytest.raises(InputError, match="column admitted: expected a full date"):
        made.release_without_engine(write_site(installation, cohort), period="2024-01")


@pytest.mark.parametrize("moment", ["begin", "advance"])
def test_what_a_stopped_run_has_read_stays_read(installation, site, moment):
    path = write_site(installation, patients(months=1))
    stopped = mock.patch.object(Entries, moment, side_effect=ClustMixError("STOPPED", "stopped"))
    with stopped, pytest.raises(ClustMixError, match="STOPPED"):
        made.release_without_engine(path, period="2025-01")
    assert site.ledger.entries()[0].state.value == "void"
    with suppress(Withheld):
        made.release_without_engine(path, period="2025-01")
    # Before the register nobody was read; after it they were, and nobody saw more of them.
    assert times_read(site).total() == (N_CANARIES if moment == "begin" else 0)


def test_a_check_reads_nobody_and_runs_at_once_read_nobody_twice(installation):
    path = write_site(installation, patients(months=1), entry={"every": "year"})
    assert main(["check", str(path)]) == 0
    here = Installation.open(load_settings())
    job = load_site(path)
    read = []

    def run(number):
        asked = job_of(job, f"r-20250101-0000000{number}", period="2025")
        charge = asked.charge(f"{number:064x}", owner=here.entries.owner)
        entry = here.entries.reserve(charge, new_draw=True).entry
        with here.entries.reading(entry) as register:
            read.append(register.choose(["P1", "P2", f"Q{number}"]))
            here.entries.begin(entry, "0" * 32, register)

    runs = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    [each.start() for each in runs]
    [each.join() for each in runs]
    assert Counter(name for names in read for name in names) == dict.fromkeys(
        ["P1", "P2", *(f"Q{number}" for number in range(6))], 1
    )


def test_periods_are_those_of_the_declared_calendar(installation):
    def last(every, now, timezone="UTC"):
        entry = ByEntry(by="entry", column="at", every=every, timezone=timezone)
        return entry.last_period(datetime.fromisoformat(now))

    assert last("month", "2026-03-01T00:00+00:00") == "2026-02"
    assert last("month", "2026-02-28T23:30+00:00") == "2026-01"
    assert last("month", "2026-02-28T23:30+00:00", "Europe/Berlin") == "2026-02"
    assert last("week", "2026-01-05T00:00+00:00") == "2026-W01"
    assert last("quarter", "2026-01-01T00:00+00:00") == "2025-Q4"
    assert last("year", "2026-12-31T00:00+00:00") == "2025"
    weeks = ByEntry(by="entry", column="at", every="week")
    assert [weeks.has_ended(f"20{week}") for week in ("20-W53", "21-W53", "20-W00", "20-W57")] == [
        True, False, False, False,
    ]  # fmt: skip
    berlin = ByEntry(by="entry", column="at", every="month", timezone="Europe/Berlin")
    for text, period in (
        ("2026-01-31", "2026-01"),
        ("2026-01-31 23:30:00", "2026-01"),
        ("2026-01-31T23:30:00+00:00", "2026-02"),
        ("31.1.2026", None),
        ("", None),
    ):
        assert berlin.period_of(text) == period
    path = write_site(installation, patients(months=1))
    now = ByEntry(by="entry", column="at", every="month").last_period(datetime.now(UTC))
    assert job_of(load_site(path), "r-20250101-00000000").period == now
    for period in ("2025", "2025-Q1", "2025-13", "9999-01", "soon"):
        with pytest.raises(ConfigurationError, match="PERIOD_INVALID: expected a month up to"):
            made.release_without_engine(path, period=period)


def test_a_lost_register_stops_releases_until_officers_begin_another(
    installation, site, person, capsys
):
    path = write_site(installation, patients(months=2))
    made.release_without_engine(path, period="2025-01")
    site.settings.register.unlink()
    assert main(["doctor"]) == 1
    assert "FAIL  register" in capsys.readouterr().out
    with pytest.raises(IntegrityError, match="REGISTER_LOST"):
        made.release_without_engine(path, period="2025-02")
    for name in ("ada", "ben"):
        person(name, is_officer=True)
    keys = [f"--key={installation / 'people' / name}.key" for name in ("ada", "ben")]
    assert main(["ledger", "restore", *keys]) == 0
    made.release_without_engine(path, period="2025-02")
    assert main(["doctor"]) == 0
    assert site.ledger.balance("made-up").spent_rho == 2 * site.ledger.entries()[0].rho


def killed(site, path, period, environment, seconds):
    """Kill a release of a period so many seconds after its charge."""
    command = [sys.executable, "-m", "flows.cli", "release", str(path), "--period", period]
    run = subprocess.Popen(command, env=environment, stdout=-3, stderr=-3)
    until(lambda: run.poll() is not None or period in periods(site), seconds=90)
    time.sleep(seconds)
    run.kill()
    run.wait()
    site.clean_up()
    return [e.state.value for e in site.ledger.entries() if e.partition.part == period][-1]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_years_of_diabetes_read_nobody_twice_and_cost_one_release(installation, site, capsys):
    """Patients come back, runs are killed at random moments and asked again."""
    rng, (stays, schema) = np.random.default_rng(), canaries.two_years()
    environment, ends = made.process_environment(installation, dask_workers=0), Counter()
    asked, pools = {"schema": schema, "publish": {"pool": {"last": 12}}}, set()
    for place, period in enumerate(canaries.MONTHS):
        known = stays[stays["admitted"] < f"{period}-99"]
        path = write_site(installation, known, **asked)
        if place % 3 == 1:
            ends[killed(site, path, period, environment, rng.uniform(0, 1.5))] += 1
        with suppress(Withheld):
            pools.add(made.release_without_engine(path, period=period, again=True).pool)
    states = Counter(entry.state.value for entry in site.ledger.entries())
    times = times_read(site, [canaries.N_DAYS])
    with capsys.disabled():
        read = Counter(times.values())
        print(f"\n  {dict(ends)} {dict(states)}, {len(pools) - 1} pools, canaries read: {read}")  # noqa: T201
    assert set(times.values()) == {1}
    assert len(times) == N_CANARIES or states["burned"]
    assert periods(site) == {*canaries.MONTHS}
    assert len(pools - {None}) == states["published"] - 11
    assert site.ledger.balance("made-up").spent_rho == site.ledger.entries()[0].rho
    site.ledger.verify()


MONTHLY = {"cron": "30 4 1 * *", "timezone": "Europe/Berlin"}


@pytest.fixture
def scheduled(installation, monkeypatch):
    (installation / "sites").mkdir()
    monkeypatch.setenv("CLUSTMIX_SITES", str(installation / "sites"))

    def write(**changes):
        path = made.write_site(installation, schedule=MONTHLY, **changes)
        return path.rename(installation / "sites" / "made-up.yaml")

    return write


def released(site, *, days_ago, month=None, state=EntryState.PUBLISHED):
    """Charge and publish a release as if some days ago: of a month of entry, or of the table."""
    then = time_text(datetime.now(UTC) - timedelta(days=days_ago))
    part = (
        Partition(scheme="entry of made-up by patient", parts=None, part=month, register="0" * 16)
        if month
        else None
    )
    about = {"dataset": "made-up", "cohort": "made-up", "partition": part}
    with mock.patch.object(journal, "read_clock", return_value=then):
        enter(site, state, caps=Caps(lifetime_rho=Decimal("0.4")), **about)


def looked_at(site, path):
    [found] = budgets({"made-up": load_site(path)}, site.ledger.history())
    return found


@pytest.mark.parametrize("by_entry", [True, False])
def test_a_release_that_its_schedule_misses_is_an_event_and_a_failed_part(
    site, scheduled, capsys, by_entry
):
    path = scheduled(privacy_unit={"partition": ENTRY} if by_entry else {})
    assert looked_at(site, path).overdue is None  # never released
    assert main(["status"]) == 0
    released(site, days_ago=90, month=by_entry and "2020-01")
    if not by_entry:
        assert looked_at(site, path).overdue is None  # the table may have stayed as it was
    released(site, days_ago=0, month=by_entry and "2020-02", state=EntryState.BURNED)
    late = looked_at(site, path)
    assert late.overdue < datetime.now(UTC) - timedelta(days=1)
    assert late.overdue.astimezone(ZoneInfo("Europe/Berlin")).strftime("%d %H:%M") == "01 04:30"
    [event], told = overdue_releases([late], {})
    assert (event.name, event.payload["dataset"]) == ("release.overdue", "made-up")
    assert overdue_releases([looked_at(site, path)], told) == ([], told)
    capsys.readouterr()
    assert main(["status"]) == 1
    assert "release of made-up" in (said := capsys.readouterr().out)
    assert "overdue: expected at" in said
    month = ByEntry(**ENTRY).last_period(late.overdue)
    released(site, days_ago=0, month=by_entry and month)
    assert looked_at(site, path).overdue is None
    assert main(["status"]) == 0


def test_the_next_twelve_months_are_said_in_shares_of_the_cap(site, scheduled, capsys):
    path = scheduled(lifetime_epsilon=4.0)
    assert looked_at(site, path).year == "12 releases add 101% of the cap; 11 fit"
    path = scheduled(lifetime_epsilon=4.0, privacy_unit={"partition": ENTRY})
    assert looked_at(site, path).year == "12 releases add 8% of the cap"
    released(site, days_ago=90, month="2020-01")
    assert looked_at(site, path).year == "12 releases add 0% of the cap"
    main(["status"])
    assert "made-up, next twelve months: 12 releases add 0% of" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"timezone": "Mars/Base"}, {"cron": "monthly"}])
def test_a_schedule_that_is_none_is_refused(installation, wrong):
    path = made.write_site(installation, schedule=MONTHLY | wrong)
    with pytest.raises(ConfigurationError, match=f"schedule.{next(iter(wrong))}"):
        load_site(path)
