import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from tasks.audit.one_run import GuessCounts, one_run_epsilon_lower_bound, one_run_p_value


def guesses(canaries, made, correct):
    return GuessCounts(canaries=canaries, guesses=made, correct=correct)


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


def test_guesses_by_chance_bound_nothing():
    assert one_run_epsilon_lower_bound(guesses(100, 100, 50), delta=0.0, confidence=0.9) == 0.0
    assert one_run_epsilon_lower_bound(guesses(100, 10, 0), delta=0.0, confidence=0.9) == 0.0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.02])
def test_bound_is_above_the_truth_as_seldom_as_stated(epsilon, delta):
    # Randomised response that shows the coin itself with probability delta: every guess is right
    # with probability delta + (1 - delta) e**epsilon / (1 + e**epsilon), independently.
    m, confidence = 60, 0.9
    rate = delta + (1 - delta) / (1 + math.exp(-epsilon))
    missed = sum(
        binom.pmf(v, m, rate)
        for v in range(m + 1)
        if one_run_epsilon_lower_bound(guesses(m, m, v), delta=delta, confidence=confidence)
        > epsilon
    )
    assert missed <= 1 - confidence


def test_bound_survives_a_mechanism_that_sometimes_shows_everything():
    # (epsilon, delta)-DP: with probability delta all coins come out, else randomised response.
    m, epsilon, delta, confidence = 60, 1.0, 0.02, 0.9
    rate = 1 / (1 + math.exp(-epsilon))
    probabilities = (1 - delta) * binom.pmf(np.arange(m + 1), m, rate)
    probabilities[m] += delta
    missed = sum(
        p
        for v, p in enumerate(probabilities)
        if one_run_epsilon_lower_bound(guesses(m, m, v), delta=delta, confidence=confidence)
        > epsilon
    )
    assert missed <= 1 - confidence


def test_bound_is_close_when_canaries_are_many():
    m, epsilon = 50_000, 1.0
    correct = round(m / (1 + math.exp(-epsilon)))
    found = one_run_epsilon_lower_bound(guesses(m, m, correct), delta=1e-9, confidence=0.999)
    assert 0.95 < found < epsilon


def test_bad_counts_are_refused():
    for bad in ((10, 0, 0), (10, 11, 5), (10, 5, 6), (10, 5, -1)):
        with pytest.raises(ValueError, match="expected correct <= guesses <= canaries and a guess"):
            guesses(*bad)
