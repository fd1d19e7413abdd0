"""Clustering accuracy against all matches, and cases worked out by hand."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.clustering_accuracy import clustering_accuracy


@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_equals_the_best_of_all_matches(pairs):
    clusters, labels = np.array(pairs).T
    best = max(
        np.mean([match[cluster] == label for cluster, label in pairs])
        for match in permutations(range(4))
    )
    assert clustering_accuracy(clusters, labels) == pytest.approx(best)
