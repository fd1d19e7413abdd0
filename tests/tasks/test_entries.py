import dataclasses
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pytest
from stores import Stores

from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.charges import Caps
from privacy.errors import LedgerError, Withheld
from privacy.ledger import EntryState
from storage.files.workspace import PrivateWorkspace
from tasks.steps import entries
from tasks.steps.entries import Entries

SITE_FILE = Path(__file__).parents[2] / "deployments" / "sites" / "breast-cancer.yaml"
AFTER = {
    "reserved": "void", "executing": "burned", "sealed": "sealed", "approved": "approved",
    "published": "published",
}  # fmt: skip
"""Every state in which a run may die, and what becomes of its entry."""
STATES = list(AFTER)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLUSTMIX_RELEASES", str(tmp_path / "releases"))
    return Stores()


def job(number):
    base = job_of(load_site(SITE_FILE), f"r-20260101-{number:08x}")
    return dataclasses.replace(base, caps=Caps(lifetime_rho=100 * base.charge_rho))


def reserve(site, number, *, key):
    return site.entries.reserve(job(number).charge(f"{key:064x}", owner=site.owner))


def entry_in(site, number, state):
    entry = reserve(site, number, key=number).entry
    for following in STATES[1 : STATES.index(state) + 1]:
        digest = "0" * 64 if following in ("sealed", "published") else None
        site.entries.advance(entry.entry_id, EntryState(following), digest=digest)
    return entry


def states(site):
    return {entry.release_id[-1]: entry.state.value for entry in site.ledger.entries()}


def test_dead_runs_are_closed_by_how_far_they_came(site):
    for number, state in enumerate(STATES):
        entry_in(site, number, state)
    site.clean_up()
    assert list(states(site).items()) == list(zip("01234", AFTER.values(), strict=True))
    notes = {entry.release_id[-1]: entry.note for entry in site.ledger.entries()}
    assert (notes["0"], notes["1"]) == ("ABANDONED", "ABANDONED")
    charge = job(0).charge_rho
    assert site.ledger.balance(job(0).cohort).spent_rho == 4 * charge


def test_live_runs_are_not_touched(site):
    with PrivateWorkspace.create(site.private_root, job(1).ref.release_id):
        entry_in(site, 1, "executing")
        site.clean_up()
        assert states(site) == {"1": "executing"}
    site.clean_up()
    assert states(site) == {"1": "burned"}


def test_a_run_of_another_installation_is_not_touched_and_waited_for(site, tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "WAIT_SECONDS", 0.0)
    entry_in(site, 1, "executing")
    (tmp_path / "home" / "installation").unlink()
    # Whether it is alive can be seen there alone.
    site.clean_up()
    assert states(site) == {"1": "executing"}
    with pytest.raises(LedgerError, match="RELEASE_RUNNING: expected release r-20260101-00000001"):
        reserve(site, 2, key=1)
    assert len(site.ledger.entries()) == 1


@pytest.mark.parametrize(
    ("state", "error", "after"),
    [
        *((state, LedgerError("ANY", "x"), after) for state, after in AFTER.items()),
        ("executing", Withheld("GATE", "x"), "burned"),
        ("sealed", Withheld("GATE", "x"), "withheld"),
        ("approved", Withheld("GATE", "x"), "withheld"),
        ("published", Withheld("GATE", "x"), "published"),
    ],
)
def test_a_run_that_stops_closes_its_entry(site, state, error, after):
    entry = entry_in(site, 1, state)
    with pytest.raises(type(error)), site.entries.closing(entry):
        raise error
    assert states(site) == {"1": after}
    spent = site.ledger.balance(job(1).cohort).spent_rho
    assert spent == (Decimal(0) if after == "void" else job(1).charge_rho)


def test_what_cannot_be_closed_does_not_hide_why_the_run_stopped(site, monkeypatch):
    entry = entry_in(site, 1, "executing")
    full = LedgerError("LEDGER_UNAVAILABLE", "x")
    monkeypatch.setattr(Entries, "_close_failed", mock.Mock(side_effect=full))
    with pytest.raises(OSError, match="No space"), site.entries.closing(entry):
        raise OSError("No space left on device")
    assert states(site) == {"1": "executing"}
