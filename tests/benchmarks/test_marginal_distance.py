"""Marginal distances against a slow reference and against cases worked out by hand."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.marginal_distance import marginal_distance


def total_variation(left, right):
    p, q = Counter(left), Counter(right)
    return 0.5 * sum(abs(p[v] / len(left) - q[v] / len(right)) for v in {*p, *q})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), m=st.integers(1, 40))
def test_equals_the_counted_reference(seed, n, m):
    rng = np.random.default_rng(seed)
    n_codes = (2, 5, 3)
    left = rng.integers(0, n_codes, size=(n, 3)).astype(np.uint16)
    right = rng.integers(0, n_codes, size=(m, 3)).astype(np.uint16)
    found = marginal_distance(left, right, n_codes)
    columns = [(left[:, j].tolist(), right[:, j].tolist()) for j in range(3)]
    one_way = [total_variation(a, b) for a, b in columns]
    two_way = [
        total_variation(
            list(zip(columns[j][0], columns[k][0], strict=True)),
            list(zip(columns[j][1], columns[k][1], strict=True)),
        )
        for j, k in combinations(range(3), 2)
    ]
    assert found.one_way == pytest.approx(np.mean(one_way))
    assert found.two_way == pytest.approx(np.mean(two_way))


def test_tables_longer_than_a_chunk_are_counted_whole():
    codes = np.zeros((10_000, 2), dtype=np.uint16)
    codes[:2500, 0] = 1
    found = marginal_distance(codes, np.zeros((3, 2), dtype=np.uint16), (2, 2))
    assert (found.one_way, found.two_way) == (0.125, 0.25)
