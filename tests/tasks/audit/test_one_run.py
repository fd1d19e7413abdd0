import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import binom, norm

from tasks.audit.one_run import (
    GuessCounts,
    independent_mu_lower_bound,
    one_run_epsilon_lower_bound,
    one_run_mu_lower_bound,
    one_run_p_value,
    refutes_gaussian_dp,
)


def guesses(canaries, made, correct):
    return GuessCounts(canaries=canaries, guesses=made, correct=correct)


def missed(bound, probabilities, truth):
    """Probability that a bound on the guesses is above the truth."""
    m = len(probabilities) - 1
    return sum(p for v, p in enumerate(probabilities) if bound(guesses(m, m, v)) > truth)


def slow_p_value(m, r, v, epsilon, delta):
    """Theorem 5.2 term by term."""
    rate = 1 / (1 + math.exp(-epsilon))

    def pmf(w):
        return math.comb(r, w) * rate**w * (1 - rate) ** (r - w)

    tail = sum(pmf(w) for w in range(v, r + 1))
    steepest = max(
        (sum(pmf(w) for w in range(max(v - i, 0), v)) / i for i in range(1, m + 1)), default=0.0
    )
    return min(1.0, tail + 2 * m * delta * steepest)


@given(data=st.data())
def test_p_value_equals_the_theorem_term_by_term(data):
    m = data.draw(st.integers(1, 40))
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(0, r))
    epsilon = data.draw(st.floats(0, 6))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-3, 0.1]))
    found = one_run_p_value(guesses(m, r, v), epsilon=epsilon, delta=delta)
    expected = 1.0 if v == 0 else slow_p_value(m, r, v, epsilon, delta)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-13)


def test_golden_value_of_the_paper():
    # Appendix D: 75 of 100 guesses about 1000 canaries, delta 1e-4, 95 percent.
    found = one_run_epsilon_lower_bound(guesses(1000, 100, 75), delta=1e-4, confidence=0.95)
    assert found == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.02])
def test_bound_is_above_the_truth_as_seldom_as_stated(epsilon, delta):
    # Randomised response that shows the coin itself with probability delta: every guess is right
    # with probability delta + (1 - delta) e**epsilon / (1 + e**epsilon), independently.
    rate = delta + (1 - delta) / (1 + math.exp(-epsilon))
    bound = partial(one_run_epsilon_lower_bound, delta=delta, confidence=0.9)
    assert missed(bound, binom.pmf(np.arange(61), 60, rate), epsilon) <= 0.1


def test_bound_survives_a_mechanism_that_sometimes_shows_everything():
    # (epsilon, delta)-DP: with probability delta all coins come out, else randomised response.
    m, epsilon, delta = 60, 1.0, 0.02
    probabilities = (1 - delta) * binom.pmf(np.arange(m + 1), m, 1 / (1 + math.exp(-epsilon)))
    probabilities[m] += delta
    bound = partial(one_run_epsilon_lower_bound, delta=delta, confidence=0.9)
    assert missed(bound, probabilities, epsilon) <= 0.1


# Under mu-GDP.


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
    assert not refutes_gaussian_dp(guesses(m, r, v), mu=mu, level=tail * 0.995)
    assert refutes_gaussian_dp(guesses(m, r, v), mu=mu, level=min(tail * 1.005, 1.0))


@pytest.mark.parametrize("mu", [0.2367, 0.8379, 2.0])
@pytest.mark.parametrize(
    "bound", [one_run_mu_lower_bound, independent_mu_lower_bound], ids=["any", "independent"]
)
def test_mu_bound_is_above_the_truth_of_a_gaussian_as_seldom_as_stated(mu, bound):
    # Canaries that do not overlap: the number of right guesses is binomial.
    probabilities = binom.pmf(np.arange(201), 200, norm.cdf(mu / 2))
    assert missed(partial(bound, confidence=0.9), probabilities, mu) <= 0.1


def test_mu_bound_survives_abstention_from_what_is_not_clear():
    rng, mu, m, r, confidence, runs = np.random.default_rng(5), 0.8379, 1000, 50, 0.9, 300
    missed, found = 0, []
    for _ in range(runs):
        coins = rng.integers(0, 2, m) - 0.5
        scores = mu * coins + rng.standard_normal(m)
        loudest = np.argsort(-np.abs(scores))[:r]
        correct = int((np.sign(scores) == np.sign(coins))[loudest].sum())
        found.append(one_run_mu_lower_bound(guesses(m, r, correct), confidence=confidence))
        missed += found[-1] > mu
    assert missed <= binom.isf(1e-4, runs, 1 - confidence)
    assert np.median(found) > 0.3
