from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.marginal_distance import marginal_distance, query_set_errors


def total_variation(left, right):
    p, q = Counter(left), Counter(right)
    return 0.5 * sum(abs(p[v] / len(left) - q[v] / len(right)) for v in {*p, *q})


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), m=st.integers(1, 40))
def test_equals_the_counted_reference(seed, n, m):
    rng = np.random.default_rng(seed)
    n_codes = (2, 5, 3)
    left = rng.integers(0, n_codes, size=(n, 3)).astype(np.uint16)
    right = rng.integers(0, n_codes, size=(m, 3)).astype(np.uint16)
    found = marginal_distance(left, right, n_codes)
    for ways, mean in ((1, found.by_column.mean()), (2, found.two_way)):
        distances = [
            total_variation(*(list(map(tuple, one[:, places].tolist())) for one in (left, right)))
            for places in map(list, combinations(range(3), ways))
        ]
        assert mean == pytest.approx(np.mean(distances))


def test_errors_by_set_equal_a_hand_calculation_and_scale_to_the_real_table():
    real = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=np.bool_)
    synthetic = np.array([[1, 1, 0], [0, 0, 1]], dtype=np.bool_)
    sets = ((np.array([0]), np.array([2])), (np.array([0, 1]), np.array([1, 2])))
    # Real counts 3, 2; 2, 1. Synthetic counts 1, 1; 1, 0, twice as many in a table of four.
    errors = query_set_errors(real, synthetic, sets)
    np.testing.assert_allclose(errors, [(1 / 3 + 0) / 2, (0 + 1) / 2])
    np.testing.assert_array_equal(query_set_errors(real, real, sets), 0.0)
