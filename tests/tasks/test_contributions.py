from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import InputError
from tasks.ingest.contributions import (
    bound_contributions,
    fold_of,
    hash_names,
    hash_records,
    named_patients,
    shard_of,
)
from tasks.measurement.encoded import N_FOLDS

RECORDS = np.arange(5, dtype=np.uint16)[:, None]
ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=40)


def bound(rows, max_rows):
    """Return how often each row of (patient, code) is kept with each weight."""
    codes = np.array([[code, 1] for _, code in rows], dtype=np.uint16).reshape(-1, 2)
    keep, weight = bound_contributions(*named_patients([key for key, _ in rows]), codes, max_rows)
    assert keep.tolist() == (weight > 0).tolist()
    kept = zip(rows, weight.tolist(), strict=True)
    return Counter((row, share) for row, share in kept if share)


@given(rows=ROWS, max_rows=st.integers(1, 5), data=st.data())
def test_kept_rows_of_a_patient_depend_on_no_other_and_on_no_order(rows, max_rows, data):
    among = bound(rows, max_rows)
    assert bound(data.draw(st.permutations(rows)), max_rows) == among
    alone = [bound([row for row in rows if row[0] == key], max_rows) for key in "abcd"]
    assert sum(alone, Counter()) == among
    for key, own in zip("abcd", alone, strict=True):
        n_rows = min(max_rows, sum(row[0] == key for row in rows))
        assert sorted(own.elements()) == sorted((row, 1 / n_rows) for (row, _) in own.elements())
        assert own.total() == n_rows


def hash_patients(keys):
    patient, names = named_patients(keys)
    return hash_names(names)[patient]


def test_no_record_is_preferred():
    """Two rows for each of 4,000 patients, one kept: 6 standard deviations around one half."""
    keys = np.repeat(np.arange(4_000), 2)
    records = np.tile([[0, 1], [1, 1]], (4_000, 1)).astype(np.uint16)
    keep, _ = bound_contributions(*named_patients(keys), records, 1)
    assert keep.sum() == 4_000
    assert abs(keep[::2].sum() - 2_000) < 6 * 31.7


def test_a_key_is_the_same_patient_however_it_is_stored():
    mixed = pd.Series([7, "7", 7.0, " 7 "], dtype=object)
    keep, _ = bound_contributions(*named_patients(mixed), RECORDS[:4], 1)
    assert keep.sum() == 1
    assert len(set(hash_patients(mixed).tolist())) == 1
    assert hash_patients(pd.Series([7]))[0] == hash_patients(mixed)[0]


@pytest.mark.parametrize("empty", [None, np.nan, "", "  "])
def test_a_row_without_a_patient_is_refused(empty):
    keys = pd.Series(["a", empty], dtype=object)
    with pytest.raises(InputError, match="PATIENT_MISSING: expected a patient key in every"):
        named_patients(keys)


def test_record_hash_depends_on_the_record_alone():
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 5, size=(300, 6)).astype(np.uint16)
    label = rng.integers(0, 2, size=300).astype(np.uint16)
    order = rng.permutation(300)
    hashes = hash_records(codes, label)
    assert np.array_equal(hash_records(codes[order], label[order]), hashes[order])
    distinct = {(*row, mark) for row, mark in zip(codes.tolist(), label.tolist(), strict=True)}
    assert len(set(hashes.tolist())) == len(distinct)


@pytest.mark.parametrize("source", ["patients", "records"])
def test_folds_and_shards_are_even_and_independent(source):
    n = 40_000
    if source == "patients":
        hashes = hash_patients(np.arange(n))
    else:
        codes = np.stack([np.arange(n) % 200, np.arange(n) // 200], axis=1).astype(np.uint16)
        hashes = hash_records(codes, np.zeros(n, dtype=np.uint16))
    fold, shard = fold_of(hashes), shard_of(hashes, 4)
    table = np.zeros((N_FOLDS, 4))
    np.add.at(table, (fold, shard), 1)
    # Two-sided: a cell has mean 2000 and standard deviation 43.6; 6 of them in 20 cells is an
    # error rate below 1e-7, and a fold that is 15 % too large is found with power over 0.99.
    assert np.abs(table - n / table.size).max() < 6 * 43.6


def test_hashes_do_not_change_from_run_to_run():
    assert fold_of(hash_patients(["p1", "p2", "p3"])).tolist() == [2, 0, 0]
    record = np.array([[1, 2, 3]], dtype=np.uint16)
    assert hash_records(record, np.array([1], dtype=np.uint16)).tolist() == [6635167847842469323]
