"""DPGM, Lemma 1: the moment of one Gaussian is stated at half of what it is.

Acs et al., "Differentially private mixture of generative neural networks". The privacy loss of
Eq. 2 is normal with mean ``1 / (2 sigma^2)`` and variance ``1 / sigma^2``, so the logarithm of its
moment generating function is ``(lambda^2 + lambda) / (2 sigma^2)``. Lemma 1 has 4 for 2.
"""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from privacy.accountants.gaussian import GaussianAccountant, gaussian_delta, gaussian_epsilon
from privacy.events import GaussianEvent
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


def test_paper_claim_fails_on_one_gaussian():
    claim = moments_epsilon(lambda order: lemma_one(order, SIGMA))
    corrected = moments_epsilon(lambda order: 2 * lemma_one(order, SIGMA))
    assert (claim, corrected) == pytest.approx((1.76, 2.52), abs=0.01)
    assert exact_delta(claim, SIGMA) > 3 * DELTA
    assert exact_delta(corrected, SIGMA) < DELTA


def test_accountant_keeps_its_claim_on_the_same_pair():
    event = GaussianEvent(statistic="one", l2_sensitivity=1.0, noise_stddev=SIGMA, n_values=1)
    accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(event)
    claim = accountant.epsilon(delta=DELTA)
    assert exact_delta(claim, SIGMA) <= DELTA
    # Exact, not only safe: a hundredth less would not do.
    assert exact_delta(0.99 * claim, SIGMA) > DELTA
    assert claim == pytest.approx(gaussian_epsilon(delta=DELTA, mu=1 / SIGMA), rel=1e-12)
    assert gaussian_delta(epsilon=claim, mu=1 / SIGMA) <= DELTA
