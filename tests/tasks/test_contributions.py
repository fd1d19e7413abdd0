import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import InputError
from tasks.contributions import (
    bound_contributions,
    fold_of,
    hash_patients,
    hash_records,
    shard_of,
)
from tasks.synthesizers.encoded import N_FOLDS

RECORD_HASH = 6635167847842469323
KEYS = st.lists(st.sampled_from("abcdefg"), max_size=40)


def slow_bound(keys, max_rows):
    kept_of = {key: min(keys.count(key), max_rows) for key in keys}
    seen = dict.fromkeys(keys, 0)
    weight = []
    for key in keys:
        seen[key] += 1
        weight.append(1 / kept_of[key] if seen[key] <= max_rows else 0.0)
    return weight


@given(keys=KEYS, max_rows=st.integers(1, 5))
def test_bound_agrees_with_counting_by_hand(keys, max_rows):
    keep, weight = bound_contributions(np.array(keys, dtype=object), max_rows)
    assert weight.tolist() == slow_bound(keys, max_rows)
    assert keep.tolist() == [value > 0 for value in weight]


@given(keys=KEYS, max_rows=st.integers(1, 5), removed=st.sampled_from("abcdefg"))
def test_removing_a_patient_changes_nothing_for_the_others(keys, max_rows, removed):
    keys = np.array(keys, dtype=object)
    others = keys != removed
    _, weight = bound_contributions(keys, max_rows)
    _, without = bound_contributions(keys[others], max_rows)
    assert np.array_equal(weight[others], without)
    assert np.array_equal(hash_patients(keys)[others], hash_patients(keys[others]))


def test_weights_of_a_patient_sum_to_one():
    keys = pd.Series([7, 8, 7, 7, 9])
    _, weight = bound_contributions(keys, 2)
    assert weight.tolist() == [0.5, 1, 0.5, 0, 1]


def test_a_key_is_the_same_patient_however_it_is_stored():
    mixed = pd.Series([7, "7", 7.0, " 7 "], dtype=object)
    keep, _ = bound_contributions(mixed, 1)
    assert keep.tolist() == [True, False, False, False]
    assert len(set(hash_patients(mixed).tolist())) == 1
    assert hash_patients(pd.Series([7]))[0] == hash_patients(mixed)[0]


@pytest.mark.parametrize("empty", [None, np.nan, "", "  "])
def test_a_row_without_a_patient_is_refused(empty):
    keys = pd.Series(["a", empty], dtype=object)
    for function in (lambda: bound_contributions(keys, 1), lambda: hash_patients(keys)):
        with pytest.raises(InputError, match="PATIENT_MISSING: expected a patient key in every"):
            function()


def test_a_cap_below_one_is_refused():
    with pytest.raises(ValueError, match="expected max_rows of at least 1"):
        bound_contributions(["a"], 0)


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
    assert hash_records(record, np.array([1], dtype=np.uint16)).tolist() == [RECORD_HASH]
