import math
from bisect import bisect_right
from functools import cache, partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom, norm

from audits.guesses import GuessCounts, independent_mu, one_run_epsilon
from privacy.gaussian import gaussian_epsilon

DELTA = 1e-3


def guesses(canaries, made, correct):
    return GuessCounts(canaries=canaries, guesses=made, correct=correct)


def missed(bound, probabilities, truth):
    m = len(probabilities) - 1
    # The bounds grow with the right guesses.
    first = bisect_right(range(m + 1), truth, key=lambda v: bound(guesses(m, m, v)))
    return sum(probabilities[first:])


def test_golden_value_of_the_paper():
    # Appendix D: 75 of 100 guesses about 1000 canaries, delta 1e-4, 95 percent.
    found = one_run_epsilon(guesses(1000, 100, 75), delta=1e-4, confidence=0.95)
    assert found == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.02])
def test_bound_is_above_the_truth_as_seldom_as_stated(epsilon, delta):
    # Randomised response that shows the coin itself with probability delta: every guess is right
    # with probability delta + (1 - delta) e**epsilon / (1 + e**epsilon), independently. The other
    # one shows all coins with probability delta.
    kept = 1 / (1 + math.exp(-epsilon))
    each = binom.pmf(np.arange(61), 60, delta + (1 - delta) * kept)
    at_once = (1 - delta) * binom.pmf(np.arange(61), 60, kept)
    at_once[60] += delta
    bound = partial(one_run_epsilon, delta=delta, confidence=0.9)
    for probabilities in (each, at_once):
        assert missed(bound, probabilities, epsilon) <= 0.1


def largest_tail(m, r, v, mu):
    """Most that v or more right guesses can have under all tail constraints, by optimisation."""
    sizes = np.arange(r + 1)

    def slack(p):
        right = np.cumsum((sizes * p)[::-1])[::-1] / m
        wrong = np.cumsum(((r - sizes) * p)[::-1])[::-1] / m
        right = np.clip(right, 1e-12, 1 - 1e-12)
        return wrong[:-1] - norm.cdf(norm.ppf(right[1:]) - mu)

    best = minimize(
        lambda p: -p[v:].sum(),
        binom.pmf(sizes, r, 0.5),
        method="SLSQP",
        bounds=[(0, 1)] * (r + 1),
        constraints=[{"type": "ineq", "fun": slack}, {"type": "eq", "fun": lambda p: p.sum() - 1}],
        options={"maxiter": 500, "ftol": 1e-10},
    )
    return -best.fun


@pytest.mark.parametrize(("m", "r", "v", "mu"), [(6, 6, 5, 0.5), (8, 8, 6, 1.0), (9, 4, 4, 0.7)])
def test_gaussian_dp_is_refuted_from_the_largest_tail_that_it_allows(m, r, v, mu):
    tail = largest_tail(m, r, v, mu)
    assert 0.01 < tail < 0.99
    epsilon = gaussian_epsilon(delta=DELTA, mu=mu)
    refuted = partial(one_run_epsilon, guesses(m, r, v), delta=DELTA, gaussian=True)
    assert refuted(confidence=1 - tail * 0.995) < epsilon
    assert refuted(confidence=1 - min(tail * 1.005, 0.9999)) > epsilon


@pytest.mark.parametrize("mu", [0.2367, 0.8379, 2.0])
def test_bounds_are_above_the_truth_of_a_gaussian_as_seldom_as_stated(mu):
    # Canaries that do not overlap: the number of right guesses is binomial.
    probabilities = binom.pmf(np.arange(101), 100, norm.cdf(mu / 2))
    assert missed(partial(independent_mu, confidence=0.9), probabilities, mu) <= 0.1
    bound = partial(one_run_epsilon, delta=DELTA, confidence=0.9, gaussian=True)
    assert missed(bound, probabilities, gaussian_epsilon(delta=DELTA, mu=mu)) <= 0.1


def test_bound_survives_abstention_from_unclear_canaries():
    rng, mu, m, r, confidence, runs = np.random.default_rng(5), 0.8379, 1000, 50, 0.9, 200
    bound = partial(one_run_epsilon, delta=DELTA, confidence=confidence, gaussian=True)
    bound_of = cache(lambda correct: bound(guesses(m, r, correct)))
    found = []
    for _ in range(runs):
        coins = rng.integers(0, 2, m) - 0.5
        scores = mu * coins + rng.standard_normal(m)
        loudest = np.argsort(-np.abs(scores))[:r]
        found.append(bound_of(int((np.sign(scores) == np.sign(coins))[loudest].sum())))
    truth = gaussian_epsilon(delta=DELTA, mu=mu)
    assert (np.array(found) > truth).sum() <= binom.isf(1e-4, runs, 1 - confidence)
    assert np.median(found) > gaussian_epsilon(delta=DELTA, mu=0.3)
