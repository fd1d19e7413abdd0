import json
import unicodedata
from decimal import Decimal
from pathlib import Path

import made_up_release as made
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.cli import main
from flows.site.site_file import load_site
from privacy.errors import BudgetRefused, InputError
from privacy.parameters import PrivacyUnit
from storage.ledger.ledger_db import LedgerDatabase
from tasks.ingest import pieces as ingest_pieces
from tasks.ingest.contributions import part_of_patients
from tasks.ingest.patient_rows import encoded_shards


def part(number, parts=2, scheme="by-hash"):
    return {"partition": {"scheme": scheme, "parts": parts, "part": number}}


def patients_read(monkeypatch):
    seen, divide = [], ingest_pieces.rows_by_shard

    def keep(frame, chunk, unit, n_shards, **moments):
        seen.append(set(frame[unit.column]))
        return divide(frame, chunk, unit, n_shards, **moments)

    monkeypatch.setattr(ingest_pieces, "rows_by_shard", keep)
    return seen


def test_parts_have_no_patient_in_common_and_miss_none(installation, monkeypatch):
    seen = patients_read(monkeypatch)
    for number in range(3):
        site = made.write_site(installation, privacy_unit=part(number, 3))
        outcome = made.release_without_engine(site)
        unit = f"in part {number} of 3 of the split by-hash of made-up by patient"
        manifest = json.loads((Path(outcome.bundle) / "manifest.json").read_text())
        assert manifest["privacy_unit"] == f"one patient, named by column patient, {unit}"
        assert unit in outcome.guarantee
    assert all(len(patients) > 100 for patients in seen)
    assert sum(map(len, seen)) == len(seen[0] | seen[1] | seen[2])
    assert seen[0] | seen[1] | seen[2] == set(made.made_up_cohort()["patient"])


def test_parts_pay_side_by_side_and_other_splits_add_up(installation):
    outcomes = [
        made.release_without_engine(made.write_site(installation, privacy_unit=part(number)))
        for number in range(2)
    ]
    ledger = LedgerDatabase(installation / "home" / "ledger.sqlite")
    charge = ledger.entries()[0].rho
    assert ledger.balance("made-up").spent_rho == charge
    assert [outcome.reused for outcome in outcomes] == [False, False]
    for unit in (part(0, scheme="other"), {}):
        made.release_without_engine(made.write_site(installation, privacy_unit=unit))
    assert ledger.balance("made-up").spent_rho == 3 * charge
    ledger.verify()


@pytest.mark.parametrize("other", ["dataset", "column"])
def test_parts_by_other_identifiers_add_up(installation, other):
    """Another table may name the same patients by other numbers: its parts may meet these."""
    made.release_without_engine(made.write_site(installation, privacy_unit=part(0)))
    unit, budget = part(1), {"cohort": "made-up"}
    if other == "dataset":
        site = made.write_site(installation, dataset="second", privacy_unit=unit, budget=budget)
    else:
        cohort = made.made_up_cohort().rename(columns={"patient": "episode"})
        unit["column"] = "episode"
        site = made.write_site(installation, privacy_unit=unit, cohort=cohort)
    outcome = made.release_without_engine(site)
    ledger = LedgerDatabase(installation / "home" / "ledger.sqlite")
    assert ledger.balance("made-up").spent_rho == 2 * Decimal(outcome.charged_rho)


def test_a_patient_of_another_part_changes_nothing(installation, monkeypatch):
    cohort = made.made_up_cohort()
    parts = part_of_patients(cohort["patient"], scheme="by-hash of made-up by patient", parts=2)
    broken = cohort.astype({"age": object})
    broken.loc[np.flatnonzero(parts == 1)[0], "died"] = "neither"
    site = made.write_site(installation, privacy_unit=part(0), cohort=broken)
    assert made.release_without_engine(site).state == "published"
    site = made.write_site(installation, privacy_unit=part(1), cohort=broken)
    with pytest.raises(InputError, match="column died"):
        made.release_without_engine(site)


def test_rows_without_a_patient_are_refused_in_every_part(installation):
    cohort = made.made_up_cohort()
    cohort.loc[5, "patient"] = ""
    for number in range(2):
        site = made.write_site(installation, privacy_unit=part(number), cohort=cohort)
        with pytest.raises(InputError, match="column patient"):
            made.release_without_engine(site)


def test_window_and_dataset_caps_are_kept(installation):
    site = made.write_site(installation, budget={"window": {"days": 30, "epsilon": 1.0}})
    made.release_without_engine(site)
    with pytest.raises(BudgetRefused, match="window"):
        made.release_without_engine(site, new_draw=True)
    other = made.write_site(
        installation, dataset="second", budget={"cohort": "someone-else", "dataset_epsilon": 1.0}
    )
    made.release_without_engine(other)
    with pytest.raises(BudgetRefused, match="dataset"):
        made.release_without_engine(other, new_draw=True)


KEY = {"key": {"pattern": "é?[0-9]{1,8}", "normal": ["nfc", "lower", "strip_zeros"]}}


def spelled(number, *, otherwise):
    """Return a key in one of two spellings: leading zeros, or case and composed accents."""
    if number % 2:
        return unicodedata.normalize("NFD", f"É{number}") if otherwise else f"é{number}"
    return f"{number}" if otherwise else f"{number:06d}"


def in_two_spellings(cohort, *, share):
    numbers = pd.factorize(cohort["patient"])[0]
    other = np.arange(len(cohort)) % 10 < 10 * share
    keys = [spelled(n, otherwise=o) for n, o in zip(numbers, other, strict=True)]
    return cohort.assign(patient=keys)


def test_parts_have_no_patient_in_common_however_tables_spell_the_keys(installation, monkeypatch):
    seen = patients_read(monkeypatch)
    for number in range(2):
        cohort = in_two_spellings(made.made_up_cohort(), share=number)
        site = made.write_site(installation, privacy_unit=part(number) | KEY, cohort=cohort)
        made.release_without_engine(site)
    unit = load_site(site).unit
    first, second = ({unit.spelled(key) for key in keys} for keys in seen)
    assert not first & second
    assert len(first | second) == made.made_up_cohort()["patient"].nunique()
    ledger = LedgerDatabase(installation / "home" / "ledger.sqlite")
    assert ledger.balance("made-up").spent_rho == ledger.entries()[0].rho
    # Parts by the keys as they are written are other parts.
    made.release_without_engine(made.write_site(installation, privacy_unit=part(1)))
    assert ledger.balance("made-up").spent_rho == 2 * ledger.entries()[0].rho


def test_a_patient_of_two_spellings_is_bounded_as_one(installation):
    """Sealed sums see as many patients as there are, not as many as there are spellings."""
    schema = load_site(made.write_site(installation)).table_schema
    cohort = in_two_spellings(made.made_up_cohort(), share=0.5)
    weights = []
    for unit in (
        {},
        {"key_pattern": KEY["key"]["pattern"], "key_normal": ("lower", "nfc", "strip_zeros")},
    ):
        shards = encoded_shards(cohort, schema, PrivacyUnit(column="patient", max_rows=3, **unit))
        weights.append(round(sum(rows.weight.sum() for rows in shards)))
    assert (
        weights[1]
        == cohort.assign(patient=made.made_up_cohort()["patient"])
        .dropna(subset=["died"])["patient"]
        .nunique()
    )
    assert weights[0] > weights[1]


@pytest.mark.parametrize("key", ["1234567x", "123456789", "\xe9q", "1 2", "\uff17"])
def test_other_keys_are_refused_by_rule_and_column_in_every_part(installation, key):
    cohort = in_two_spellings(made.made_up_cohort(), share=0)
    cohort.loc[5, "patient"] = key
    for unit in (KEY, part(0) | KEY, part(1) | KEY):
        site = made.write_site(installation, privacy_unit=unit, cohort=cohort)
        with pytest.raises(InputError) as refused:
            made.release_without_engine(site)
        assert "column patient: expected keys of the declared pattern only;" in str(refused.value)
        assert key not in str(refused.value)


@pytest.mark.parametrize("declared", [{}, KEY])
def test_parts_without_a_form_of_keys_are_warned_of(installation, capsys, declared):
    site = made.write_site(installation, privacy_unit=part(0) | declared)
    assert main(["plan", str(site)]) == 0
    assert ("privacy_unit.key" in capsys.readouterr().out) == (not declared)


@given(st.text(), st.sets(st.sampled_from(["nfc", "lower", "strip_zeros"])))
def test_a_spelling_is_final(key, steps):
    unit = PrivacyUnit(column="patient", max_rows=1, key_normal=tuple(steps))
    assert unit.spelled(unit.spelled(key)) == unit.spelled(key)
