import hashlib
from dataclasses import replace

import made_up_release as made
import pytest
from ledger_requests import REQUESTER, charge

from clustmix import NaiveBayes, Synthesizer
from clustmix.charging import OWNER
from flows import cli
from privacy.calibration import gdp_rho
from privacy.errors import BudgetRefused, ConfigurationError, InputError, LedgerError
from privacy.ledger import EntryState
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import load_settings

TARGET = {"epsilon": 1.0, "delta": 1e-6, "patient_column": "patient", "max_rows_per_patient": 2}
RHO = gdp_rho(epsilon=1.0, delta=1e-6)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def entries(path):
    return LedgerDatabase(path).entries()


def test_a_fit_is_charged_and_says_so_everywhere(schema, frame, path, tmp_path):
    model = NaiveBayes(schema, **TARGET)
    model.fit(frame, ledger=path, cohort="ward-7", lifetime_epsilon=5.0)
    [entry] = entries(path)
    assert (entry.state, entry.cohort, entry.rho) == (EntryState.SEALED, "ward-7", RHO)
    assert (entry.owner, entry.adjacency) == ("notebook", "add_remove")
    assert entry.unit == model.guarantee_.privacy_unit
    words = f"Charged to cohort ward-7 as entry {entry.entry_id} of its ledger."
    assert repr(model).endswith(f"fitted; {words}")
    assert str(model.guarantee_).endswith(words)
    assert model.sample(3).attrs["guarantee"].endswith(words)
    model.save(tmp_path / "a.clustmix")
    assert entry.digest == hashlib.sha256((tmp_path / "a.clustmix").read_bytes()).hexdigest()
    assert repr(Synthesizer.load(tmp_path / "a.clustmix")).endswith(words)
    LedgerDatabase(path).verify()
    with pytest.raises(ConfigurationError, match="FITTED"):
        model.fit(frame, ledger=path, cohort="ward-7")
    assert len(entries(path)) == 1


def test_rows_and_files_are_free_and_another_measurement_is_not(schema, frame, path):
    model = NaiveBayes(schema, **TARGET)
    model.fit(frame, ledger=str(path), cohort="c", lifetime_epsilon=1.2).sample(10)
    # Under replacement, the same noise costs a quarter.
    quarter = NaiveBayes(schema, **TARGET, adjacency="replace_one")
    quarter.fit(frame, ledger=path, cohort="q", lifetime_epsilon=5.0)
    assert [entry.rho for entry in entries(path)] == [RHO, RHO / 4]
    assert quarter.guarantee_.epsilon <= 1.0
    # A second one does not fit under the cap that the ledger was given.
    other = NaiveBayes(schema, **TARGET)
    for cap in (9.0, None):
        with pytest.raises(BudgetRefused):
            other.fit(frame, ledger=LedgerDatabase(path), cohort="c", lifetime_epsilon=cap)
    assert [entry.state for entry in entries(path)] == [EntryState.SEALED] * 2


def test_a_table_that_is_refused_costs_nothing(schema, frame, path):
    model = NaiveBayes(schema, **TARGET)
    # The names of the columns are public: nothing is charged for them.
    with pytest.raises(InputError, match="HEADER_MISMATCH"):
        model.fit(frame.assign(x=1), ledger=path, cohort="c", lifetime_epsilon=5.0)
    assert not path.exists()
    with pytest.raises(InputError, match="INPUT_REFUSED"):
        model.fit(frame.assign(ward="Z"), ledger=path, cohort="c", lifetime_epsilon=5.0)
    model.fit(frame, ledger=path, cohort="c")
    assert [entry.state for entry in entries(path)] == [EntryState.VOID, EntryState.SEALED]


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_a_fit_that_stops_is_burned(schema, frame, path, monkeypatch, stop):
    seen = []

    def raising(*_, **__):
        seen.extend(entry.state for entry in entries(path))
        raise stop

    monkeypatch.setattr("tasks.measurement.method.measure", raising)
    with pytest.raises(stop):
        NaiveBayes(schema, **TARGET).fit(frame, ledger=path, cohort="c", lifetime_epsilon=5.0)
    assert seen == [EntryState.EXECUTING]
    [entry] = entries(path)
    assert (entry.state, entry.note) == (EntryState.BURNED, f"run:{stop.__name__}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cohort": "c"}, "LEDGER_MISSING"),
        ({"lifetime_epsilon": 3.0}, "LEDGER_MISSING"),
        ({"ledger": "a.db"}, "COHORT_MISSING"),
        ({"ledger": "a.db", "cohort": "c"}, "CAP_MISSING: .* no cap of cohort 'c'"),
        ({"ledger": "a.db", "cohort": "c", "lifetime_epsilon": 0.5}, "BUDGET"),
    ],
)
def test_what_a_charge_needs(schema, frame, tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigurationError, BudgetRefused), match=message):
        NaiveBayes(schema, **TARGET).fit(frame, **given)


def test_a_cohort_that_needs_an_officer_is_refused(schema, frame, path):
    ledger = LedgerDatabase(path)
    ledger.reserve(charge(1, cohort="c", needs_approval=True, requester=REQUESTER))
    with pytest.raises(LedgerError, match="approval"):
        NaiveBayes(schema, **TARGET).fit(frame, ledger=ledger, cohort="c")
    assert [entry.state for entry in ledger.entries()] == [EntryState.RESERVED]


def test_an_installation_goes_on_beside_a_notebook(schema, frame, tmp_path, monkeypatch):
    made.install(monkeypatch, tmp_path)
    site = made.write_site(tmp_path)
    first = made.release_without_engine(site)
    ledger = LedgerDatabase(load_settings().ledger_path)
    NaiveBayes(schema, **TARGET).fit(frame, ledger=ledger, cohort="made-up")
    # One that was killed while it measured.
    [sealed] = [entry for entry in ledger.entries() if entry.owner == OWNER]
    another = replace(sealed.charge, release_id="r-20260101-0badcafe", request_key="a" * 64)
    killed = ledger.reserve(another).entry.entry_id
    ledger.transition(killed, EntryState.EXECUTING, expected_from=EntryState.RESERVED)
    second = made.release_without_engine(site, new_draw=True)
    assert (first.state, second.state) == ("published", "published")
    states = [(entry.owner == OWNER, entry.state) for entry in ledger.entries()]
    assert states == [
        (False, EntryState.PUBLISHED),
        (True, EntryState.SEALED),
        (True, EntryState.EXECUTING),
        (False, EntryState.PUBLISHED),
    ]
    assert ledger.balance("made-up").spent_rho == sum(entry.rho for entry in ledger.entries())
    assert cli.main(["ledger", "verify"]) == 0
