"""Counting queries on item data, against a loop over records."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.query_sets import count_records, query_set_errors


def slow_count(records, query):
    return sum(all(record[item] for item in query) for record in records)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 40),
    n_items=st.integers(1, 12),
    density=st.floats(0.0, 1.0),
)
def test_counts_equal_a_loop_over_records(seed, n, n_items, density):
    rng = np.random.default_rng(seed)
    records = rng.random((n, n_items)) < density
    queries = [
        rng.choice(n_items, size=rng.integers(1, n_items, endpoint=True), replace=False)
        for _ in range(6)
    ]
    counts = count_records(records, queries)
    assert counts.dtype == np.int64
    assert counts.tolist() == [slow_count(records, query) for query in queries]


def test_errors_by_set_equal_a_hand_calculation_and_scale_to_the_real_table():
    real = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=np.bool_)
    synthetic = np.array([[1, 1, 0], [0, 0, 1]], dtype=np.bool_)
    sets = ((np.array([0]), np.array([2])), (np.array([0, 1]), np.array([1, 2])))
    # Real counts 3, 2; 2, 1. Synthetic counts 1, 1; 1, 0, twice as many in a table of four.
    errors = query_set_errors(real, synthetic, sets)
    np.testing.assert_allclose(errors, [(1 / 3 + 0) / 2, (0 + 1) / 2])
    errors = query_set_errors(real, synthetic, sets, sanity_share=1.0)
    np.testing.assert_allclose(errors, [(1 / 4 + 0) / 2, (0 + 1 / 4) / 2])
    np.testing.assert_array_equal(query_set_errors(real, real, sets), 0.0)
