from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import multivariate_normal

from tasks.papers.clustmix import constrained_gmm as module
from tasks.papers.clustmix.constrained_gmm import (
    assign_with_minimum_size,
    cluster_means,
    constrained_gmm,
    constrained_k_means,
    estimate_components,
    log_likelihoods,
)


def gmm(rows, *, n_clusters, min_size, seed=0, **changes):
    limits = {"max_iterations": 30, "n_starts": 10} | changes
    rng = np.random.default_rng(seed)
    return constrained_gmm(rows, n_clusters=n_clusters, min_size=min_size, rng=rng, **limits)


def within_squares(rows, labels):
    return np.sum((rows - cluster_means(rows, labels, labels.max() + 1)[labels]) ** 2)


def flow_cost(cost, min_size):
    """Cost of the same assignment as a linear program (its vertices are integral)."""
    n, k = cost.shape
    each_row_once = np.kron(np.eye(n), np.ones(k))
    cluster_sizes = np.kron(np.ones(n), np.eye(k))
    return linprog(
        cost.ravel(),
        A_eq=each_row_once,
        b_eq=np.ones(n),
        A_ub=-cluster_sizes,
        b_ub=-np.full(k, min_size),
        bounds=(0, 1),
    ).fun


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 25),
    k=st.integers(1, 6),
    ties=st.booleans(),
    skew=st.sampled_from([0.0, 1.0, 1e6]),
    seed=st.integers(0, 2**31),
)
def test_assignment_is_the_optimum_of_the_flow(n, k, ties, skew, seed):
    cost = np.random.default_rng(seed).uniform(-1, 1, (n, k)) + skew * np.arange(k)
    if ties:
        cost = np.round(cost)
    labels = assign_with_minimum_size(cost, n // k)
    assert np.bincount(labels, minlength=k).min() >= n // k
    found = cost[np.arange(n), labels].sum()
    assert found == pytest.approx(flow_cost(cost, n // k), rel=1e-9, abs=1e-8)


def test_assignment_without_a_solution_is_none():
    assert assign_with_minimum_size(np.zeros((5, 2)), 3) is None
    assert assign_with_minimum_size(np.full((5, 2), np.nan), 1) is None
    assert assign_with_minimum_size(np.zeros((5, 2)), 0) is not None


def test_likelihood_and_estimates_match_definitions():
    rng = np.random.default_rng(0)
    rows, means = rng.uniform(size=(7, 3)), rng.uniform(size=(2, 3))
    variances = np.array([0.1, 0.02])
    expected = [
        multivariate_normal(mean, variance * np.eye(3)).logpdf(rows)
        for mean, variance in zip(means, variances, strict=True)
    ]
    np.testing.assert_allclose(log_likelihoods(rows, means, variances), np.transpose(expected))
    labels = np.array([0, 0, 1, 1, 1, 0, 1])
    fitted_means, fitted_variances = estimate_components(rows, labels, 2)
    for cluster in range(2):
        members = rows[labels == cluster]
        np.testing.assert_allclose(fitted_means[cluster], members.mean(axis=0))
        np.testing.assert_allclose(fitted_variances[cluster], members.var(axis=0).mean())


def k_means(rows, *, n_clusters, min_size):
    """Best of ten: the fallback has one start."""
    settings, rng = {"n_clusters": n_clusters, "min_size": min_size}, np.random.default_rng(0)
    found = (constrained_k_means(rows, **settings, rng=rng) for _ in range(10))
    return min(found, key=lambda labels: within_squares(rows, labels))


FITS = pytest.mark.parametrize("fit", [gmm, k_means])


@FITS
def test_clusters_hold_their_minimum_and_find_the_groups(fit):
    centres = np.array([[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]])
    truth = np.repeat([0, 1, 2], [50, 40, 30])
    rows = centres[truth] + 0.03 * np.random.default_rng(0).standard_normal((120, 2))
    labels = fit(rows, n_clusters=3, min_size=30)
    assert sorted(np.bincount(labels)) == [30, 40, 50]
    assert len(set(zip(labels, truth, strict=True))) == 3


def test_minimum_is_kept_against_the_likelihood():
    rows = np.concatenate([np.full((58, 2), 0.1), np.full((2, 2), 0.9)])
    assert np.bincount(gmm(rows, n_clusters=3, min_size=20)).tolist() == [20, 20, 20]
    with pytest.raises(ValueError, match="expected enough rows to fill every cluster"):
        gmm(np.zeros((5, 1)), n_clusters=2, min_size=3)


def test_time_out_falls_back_to_constrained_k_means(monkeypatch):
    rows, calls = np.random.default_rng(2).uniform(size=(60, 2)) ** 3, []

    def recorded(*arguments, **options):
        calls.append(options["min_size"])
        return constrained_k_means(*arguments, **options)

    monkeypatch.setattr(module, "constrained_k_means", recorded)
    for out_of_time, expected in ((lambda: False, []), (lambda: True, [15])):
        labels = gmm(rows, n_clusters=4, min_size=15, out_of_time=out_of_time)
        assert calls == expected
        assert np.bincount(labels, minlength=4).tolist() == [15, 15, 15, 15]


def counterexample(size, *, moved):
    low = np.zeros(size - 1)
    middle, high = low + 0.5, low + 1.0
    return np.concatenate([low, [0.0 if moved else 0.2], middle, [0.9], high])[:, None]


@FITS
@pytest.mark.parametrize("size", [3, 5, 10])
def test_flaw_c4_one_record_moves_the_means_by_more_than_one_over_l(size, fit):
    # The paper's proof: replacing one record moves one mean by at most 1/l. Here the record that
    # goes from 0.2 to 0.0 makes the whole middle block change sides, and both means move.
    found = []
    for moved in (False, True):
        rows = counterexample(size, moved=moved)
        labels = fit(rows, n_clusters=2, min_size=size)
        means = cluster_means(rows, labels, 2)[:, 0]
        found.append((np.sort(means), np.bincount(labels)[np.argsort(means)]))
    (before, sizes_before), (after, sizes_after) = found
    assert sizes_before.tolist() == [2 * size - 1, size]
    assert sizes_after.tolist() == [size, 2 * size - 1]
    shift = np.abs(after - before)
    assert shift[0] > 1.0 / sizes_before[0]
    assert np.count_nonzero(shift > 0.1) == 2
    if size >= 5:
        # More than 1/l for the smallest l of all, in both clusters, and it does not shrink with l.
        assert np.all(shift > 1.0 / size)


def test_flaw_c4_partition_is_the_exact_optimum():
    rows = counterexample(4, moved=False)
    best = min(
        within_squares(rows, np.isin(np.arange(11), members).astype(int))
        for count in range(4, 8)
        for members in combinations(range(11), count)
    )
    labels = gmm(rows, n_clusters=2, min_size=4)
    assert within_squares(rows, labels) == pytest.approx(best)
