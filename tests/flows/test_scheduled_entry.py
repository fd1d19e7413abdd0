"""Schedules of site files: their cost in a year, and releases that are overdue."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unittest import mock
from zoneinfo import ZoneInfo

import made_up_release as made
import pytest
from made_up_entries import enter
from stores import Stores

from flows.cli import main
from flows.site.site_file import load_site
from flows.watching.budgets import budgets
from flows.watching.outbox import overdue_releases
from privacy.charges import Caps, Partition
from privacy.errors import ConfigurationError
from privacy.ledger import EntryState
from privacy.spending import time_text
from storage.ledger import journal
from storage.schema.visit_columns import ByEntry
from storage.settings import load_settings

ENTRY = {"by": "entry", "column": "admitted", "every": "month"}
MONTHLY = {"cron": "30 4 1 * *", "timezone": "Europe/Berlin"}


@pytest.fixture
def site(installation, monkeypatch):
    (installation / "sites").mkdir()
    monkeypatch.setenv("CLUSTMIX_SITES", str(installation / "sites"))
    return Stores(load_settings())


def scheduled(folder, **changes):
    path = made.write_site(folder, schedule=MONTHLY, **changes)
    return path.rename(folder / "sites" / "made-up.yaml")


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
    site, installation, capsys, by_entry
):
    path = scheduled(installation, privacy_unit={"partition": ENTRY} if by_entry else {})
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


def test_the_next_twelve_months_are_said_in_shares_of_the_cap(site, installation, capsys):
    path = scheduled(installation, lifetime_epsilon=4.0)
    assert looked_at(site, path).year == "12 releases add 101% of the cap; 11 fit"
    path = scheduled(installation, lifetime_epsilon=4.0, privacy_unit={"partition": ENTRY})
    assert looked_at(site, path).year == "12 releases add 8% of the cap"
    released(site, days_ago=90, month="2020-01")
    assert looked_at(site, path).year == "12 releases add 0% of the cap"
    main(["status"])
    assert "made-up, next twelve months: 12 releases add 0% of" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"timezone": "Mars/Base"}, {"cron": "monthly"}])
def test_a_schedule_that_is_none_is_refused(installation, site, wrong):
    path = made.write_site(installation, schedule=MONTHLY | wrong)
    with pytest.raises(ConfigurationError, match=f"schedule.{next(iter(wrong))}"):
        load_site(path)
