from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.papers.clustmix.slices import random_slices


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 200),
    max_rows=st.integers(1, 60),
    n_cutoffs=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_every_row_is_in_exactly_one_slice(n, max_rows, n_cutoffs, seed):
    rng = np.random.default_rng(seed)
    features = rng.integers(0, 4, (n, 3)) / 3.0
    slices = random_slices(features, max_rows=max_rows, n_cutoffs=n_cutoffs, rng=rng)
    assert np.array_equal(np.sort(np.concatenate(slices)), np.arange(n))
    assert all(len(rows) > 0 for rows in slices)


def test_a_slice_is_an_interval_of_its_feature_cut_at_data_points():
    rng = np.random.default_rng(0)
    features = rng.uniform(size=(100, 1))
    slices = random_slices(features, max_rows=50, n_cutoffs=3, rng=rng)
    intervals = sorted((features[rows].min(), features[rows].max()) for rows in slices)
    assert len(slices) == 4
    assert all(low[1] < high[0] for low, high in pairwise(intervals))


def test_large_slices_are_cut_along_further_features():
    rng = np.random.default_rng(1)
    features = np.column_stack([rng.integers(0, 2, 4000), rng.uniform(size=(4000, 6))])
    slices = random_slices(features, max_rows=800, n_cutoffs=2, rng=rng)
    assert max(len(rows) for rows in slices) <= 800
    identical = random_slices(np.zeros((50, 2)), max_rows=10, n_cutoffs=2, rng=rng)
    assert [len(rows) for rows in identical] == [50]
    small = random_slices(np.zeros((5, 2)), max_rows=5, n_cutoffs=1, rng=rng)
    assert [rows.tolist() for rows in small] == [[0, 1, 2, 3, 4]]


def test_bad_limits_are_refused():
    for limits in ({"max_rows": 0, "n_cutoffs": 1}, {"max_rows": 1, "n_cutoffs": 0}):
        with pytest.raises(ValueError, match="expected max_rows and n_cutoffs of 1 or more"):
            random_slices(np.zeros((5, 2)), rng=np.random.default_rng(0), **limits)
