"""DPGM, Lemma 1: the moment of one Gaussian is stated at half of what it is.

Acs et al., "Differentially private mixture of generative neural networks". The privacy loss of
Eq. 2 is normal with mean ``1 / (2 sigma^2)`` and variance ``1 / sigma^2``, so the logarithm of its
moment generating function is ``(lambda^2 + lambda) / (2 sigma^2)``. Lemma 1 has 4 for 2.

In the private k-means of Algorithm 2 a second factor of two goes the other way under add or
remove, and makes it worse under replacement, which is what the paper states.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from privacy.gaussian import GaussianAccountant, gaussian_delta, gaussian_epsilon
from privacy.parameters import Adjacency

SIGMA, DELTA = 2.0, 1e-5


def lemma_one(order, sigma):
    return (order**2 + order) / (4 * sigma**2)


def moments_epsilon(log_moment, *, delta=DELTA):
    """Theorem 1 of the paper: least over lambda of ``(alpha(lambda) - log delta) / lambda``."""
    return min((log_moment(order) - math.log(delta)) / order for order in np.arange(0.1, 100, 0.01))


def exact_delta(epsilon, sigma):
    """Of one Gaussian on neighbours at distance one, integrated from the definition."""
    return quad(
        lambda x: max(0.0, norm.pdf(x, 1, sigma) - math.exp(epsilon) * norm.pdf(x, 0, sigma)),
        -60,
        60,
        points=[0.5 + epsilon * sigma**2],
        limit=500,
    )[0]


@pytest.mark.parametrize("sigma", [0.8, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("order", [1, 2, 7])
def test_moment_is_twice_the_one_of_lemma_1(sigma, order):
    def integrand(x):
        loss = ((x + 1) ** 2 - x**2) / (2 * sigma**2)
        return norm.pdf(x, 0, sigma) * math.exp(order * loss)

    # At x = order the integrand has its peak.
    moment = math.log(quad(integrand, order - 40 * sigma, order + 40 * sigma, limit=500)[0])
    assert moment == pytest.approx(2 * lemma_one(order, sigma), rel=1e-6)


def test_paper_claim_fails_on_one_gaussian():
    claim = moments_epsilon(lambda order: lemma_one(order, SIGMA))
    corrected = moments_epsilon(lambda order: 2 * lemma_one(order, SIGMA))
    assert (claim, corrected) == pytest.approx((1.76, 2.52), abs=0.01)
    assert exact_delta(claim, SIGMA) > 3 * DELTA
    assert exact_delta(corrected, SIGMA) < DELTA


def test_paper_claim_is_caught_by_running_it():
    # At a delta that is large enough to be counted.
    delta, sigma, runs = 1e-3, 1.0, 10_000_000
    claim = moments_epsilon(lambda order: lemma_one(order, sigma), delta=delta)
    rng = np.random.default_rng(40)
    threshold = 0.5 + claim * sigma**2
    present = (1 + rng.normal(0, sigma, runs) > threshold).mean()
    absent = (rng.normal(0, sigma, runs) > threshold).mean()
    # Five standard deviations of the difference.
    spread = math.sqrt((present + math.exp(2 * claim) * absent) / runs)
    assert present - math.exp(claim) * absent - 5 * spread > delta


def test_accountant_keeps_its_claim_on_the_same_pair():
    claim = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE, mu_squared=SIGMA**-2).epsilon(
        delta=DELTA
    )
    assert exact_delta(claim, SIGMA) <= DELTA
    # Exact, not only safe: a hundredth less would not do.
    assert exact_delta(0.99 * claim, SIGMA) > DELTA
    assert claim == pytest.approx(gaussian_epsilon(delta=DELTA, mu=1 / SIGMA), rel=1e-12)
    assert gaussian_delta(epsilon=claim, mu=1 / SIGMA) <= DELTA


# Private k-means, Algorithm 2 lines 8 to 11: counts and sums of each cluster, all records of norm
# at most C = 1 in the plane.
POINTS = [np.array(point) for point in [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.6, -0.8)]]
RECORDS = [(cluster, point) for cluster in range(2) for point in POINTS]


def counts_and_sums(records):
    total = np.zeros((2, 3))
    for cluster, point in records:
        total[cluster] += (1.0, *point)
    return total


def largest_squared_changes(pairs):
    """Of the counts, of the sums, and of both together."""
    changes = [(counts_and_sums(one) - counts_and_sums(other)) ** 2 for one, other in pairs]
    counts, sums = (
        [part.sum() for part in parts]
        for parts in zip(*((c[:, 0], c[:, 1:]) for c in changes), strict=True)
    )
    return max(counts), max(sums), max(a + b for a, b in zip(counts, sums, strict=True))


def test_k_means_costs_the_bound_of_the_paper_and_under_replacement_twice():
    # The paper: counts move by sqrt(2), sums by sqrt(2) C. A record replaced by its opposite in
    # the same cluster moves the sum by 2 C.
    replaced = [([one], [other]) for one, other in itertools.product(RECORDS, repeat=2)]
    counts, sums, both = largest_squared_changes(replaced)
    assert (counts, sums, both) == pytest.approx((2.0, 4.0, 4.0))
    assert sums > 2.0
    # Noise sqrt(2) sigma: the true log-moment is both / 2 / 2 of (lambda^2 + lambda) / sigma^2.
    assert both / 4 == pytest.approx(2 * (1 / 2))
    # Under add or remove the two factors cancel, so Eq. 4 holds for these neighbours.
    counts, sums, both = largest_squared_changes([([record], []) for record in RECORDS])
    assert (counts, sums, both) == pytest.approx((1.0, 1.0, 2.0))
    assert both / 4 == pytest.approx(1 / 2)


def test_random_features_have_norms_above_the_bound_of_theorem_2():
    # The expectation over the draw of the features is at most one; a record's own norm is not.
    rng = np.random.default_rng(41)
    n_features, records = 200, rng.integers(0, 2, size=(500, 50))
    frequencies = rng.normal(0, 0.3, size=(50, n_features))
    phases = rng.uniform(0, 2 * math.pi, n_features)
    angles = records @ frequencies
    unpaired = np.linalg.norm(math.sqrt(2 / n_features) * np.cos(angles + phases), axis=1)
    assert 0.2 < (unpaired > 1).mean() < 0.8
    paired = np.hstack([np.cos(angles), np.sin(angles)]) / math.sqrt(n_features)
    assert np.linalg.norm(paired, axis=1) == pytest.approx(np.ones(500), abs=1e-12)
