from collections import Counter
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.papers.dp_cda import class_pools, distinct_indices, mix_class


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), data=st.data())
def test_samples_have_different_records(n, data):
    order = data.draw(st.integers(1, n))
    chosen = distinct_indices(n, order=order, n_samples=20, rng=np.random.default_rng(n))
    assert chosen.shape == (20, order)
    assert chosen.min() >= 0
    assert chosen.max() < n
    assert all(len(set(sample)) == order for sample in chosen.tolist())


def test_every_set_of_records_is_as_likely():
    chosen = distinct_indices(5, order=3, n_samples=20_000, rng=np.random.default_rng(0))
    found = Counter(frozenset(sample) for sample in chosen.tolist())
    expected = {frozenset(sample) for sample in combinations(range(5), 3)}
    assert set(found) == expected
    # 2,000 each; five standard deviations of a count.
    assert max(abs(count - 2_000) for count in found.values()) < 5 * np.sqrt(2_000 * 0.9)


def test_mixtures_are_means_of_the_class_alone():
    rng = np.random.default_rng(1)
    records, labels = rng.random((12, 4)).astype(np.float32), np.arange(12) % 2
    pools = class_pools(records, labels, n_labels=2, order=3, mixtures_per_class=50)
    for label, pool in enumerate(pools):
        means = mix_class(pool, rng)
        assert means.dtype == np.float32
        own = records[labels == label].astype(np.float64)
        possible = np.array([own[list(s)].mean(axis=0) for s in combinations(range(6), 3)])
        distance = np.abs(means[:, None] - possible[None]).max(axis=2).min(axis=1)
        assert distance.max() < 1e-6
