import math
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from tasks.audit import bounds


def counts(false_positives, absent_runs, false_negatives, present_runs):
    return bounds.ErrorCounts(
        false_positives=false_positives,
        absent_runs=absent_runs,
        false_negatives=false_negatives,
        present_runs=present_runs,
    )


def exact_tail(errors, runs, rate):
    """P[Binomial(runs, rate) <= errors] in exact fractions."""
    rate = Fraction(rate)
    return sum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(errors + 1))


@given(
    runs=st.integers(1, 40), share=st.floats(0, 1), confidence=st.sampled_from([0.75, 0.95, 0.999])
)
def test_upper_limit_leaves_the_stated_tail(runs, share, confidence):
    errors = round(share * runs)
    limit = bounds.upper_limit(errors, runs, confidence=confidence)
    if errors == runs:
        assert limit == 1.0
    else:
        assert float(exact_tail(errors, runs, limit)) == pytest.approx(1 - confidence, rel=1e-6)


def test_bounds_do_not_change_when_the_tables_are_exchanged():
    errors, mirrored = counts(3, 200, 150, 300), counts(150, 300, 3, 200)
    for bound in (partial(bounds.epsilon_lower_bound, delta=1e-3), bounds.mu_lower_bound):
        assert bound(errors, confidence=0.95) == bound(mirrored, confidence=0.95) > 0


def test_an_attack_that_guesses_bounds_nothing():
    for wrong in (50, 100):
        errors = counts(wrong, 100, wrong, 100)
        assert bounds.epsilon_lower_bound(errors, delta=0.0, confidence=0.9) == 0.0
        assert bounds.mu_lower_bound_balanced(errors, confidence=0.9) == 0.0
    assert bounds.mu_lower_bound(counts(50, 100, 50, 100), confidence=0.9) == 0.0


def miss_probability(bound, truth, runs, false_positive, false_negative):
    """Exact probability that a bound at 90 percent is above the truth, over all counts."""
    positives = binom.pmf(np.arange(runs + 1), runs, false_positive)
    negatives = binom.pmf(np.arange(runs + 1), runs, false_negative)
    return sum(
        positives[fp] * negatives[fn]
        for fp, fn in product(range(runs + 1), repeat=2)
        if bound(counts(fp, runs, fn, runs), confidence=0.9) > truth
    )


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("false_positive", [0.001, 0.05, 0.2])
def test_epsilon_bound_is_above_the_truth_as_seldom_as_stated(epsilon, delta, false_positive):
    # The best attack that (epsilon, delta)-DP allows at this false positive rate.
    false_negative = max(
        0.0,
        1 - delta - math.exp(epsilon) * false_positive,
        math.exp(-epsilon) * (1 - delta - false_positive),
    )
    bound = partial(bounds.epsilon_lower_bound, delta=delta)
    for runs in (10, 25):
        assert miss_probability(bound, epsilon, runs, false_positive, false_negative) <= 0.1


@pytest.mark.parametrize("mu", [0.1, 0.8, 2.5])
@pytest.mark.parametrize("false_positive", [0.01, 0.1, 0.4])
def test_mu_bounds_are_above_the_truth_as_seldom_as_stated(mu, false_positive):
    false_negative = norm.cdf(norm.isf(false_positive) - mu)
    for bound, runs in product((bounds.mu_lower_bound, bounds.mu_lower_bound_balanced), (10, 25)):
        assert miss_probability(bound, mu, runs, false_positive, false_negative) <= 0.1


def test_mu_bounds_are_close_when_runs_are_many():
    # Expected counts of the best test of N(0, 1) against N(0.8, 1) at its middle.
    runs = 100_000
    errors = counts(*(round(runs * norm.sf(0.4)), runs) * 2)
    apart, balanced = (
        bound(errors, confidence=0.999)
        for bound in (bounds.mu_lower_bound, bounds.mu_lower_bound_balanced)
    )
    assert 0.76 < apart < balanced < 0.8
    assert balanced > 0.78
