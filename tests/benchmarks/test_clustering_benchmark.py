"""The clustering benchmark on generated images."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import clustering
from benchmarks.clustering_accuracy import clustering_accuracy


@pytest.mark.parametrize("features", clustering.FORMS)
def test_a_run_gives_an_accuracy_for_every_epsilon(features):
    rng = np.random.default_rng(0)
    digits = np.arange(400) % 10
    templates = rng.random((10, 784)) < 0.15
    images = (templates[digits] ^ (rng.random((400, 784)) < 0.01)).astype(np.float64)
    found = clustering.one_run(
        images, digits, features=features, epsilons=(0.01, 1e4), rounds=3, public_seed=3
    )
    (low, _), (high, seconds) = found
    # Any centres divide images as far apart as these; good ones keep them together.
    assert 0.1 <= low <= 1.0
    assert 0.5 < high <= 1.0
    assert seconds > 0.0


@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_equals_the_best_of_all_matches(pairs):
    clusters, labels = np.array(pairs).T
    best = max(
        np.mean([match[cluster] == label for cluster, label in pairs])
        for match in permutations(range(4))
    )
    assert clustering_accuracy(clusters, labels) == pytest.approx(best)
