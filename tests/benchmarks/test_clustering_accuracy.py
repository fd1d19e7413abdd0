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


def test_names_of_clusters_do_not_matter_and_more_clusters_split_a_label():
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert clustering_accuracy(np.array([5, 5, 5, 2, 2, 2]), labels) == 1.0
    assert clustering_accuracy(np.array([0, 0, 2, 1, 1, 3]), labels) == pytest.approx(4 / 6)
    assert clustering_accuracy(np.zeros(6, dtype=int), labels) == 0.5
