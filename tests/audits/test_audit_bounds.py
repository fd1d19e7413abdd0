import math
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from audits import bounds


def counts(false_positives, false_negatives, runs):
    return bounds.ErrorCounts(
        false_positives=np.array(false_positives),
        false_negatives=np.array(false_negatives),
        runs=runs,
    )


@given(
    runs=st.integers(1, 40), share=st.floats(0, 1), confidence=st.sampled_from([0.75, 0.95, 0.999])
)
def test_upper_limit_leaves_the_stated_tail(runs, share, confidence):
    errors = round(share * runs)
    limit = float(bounds.upper_limit(np.array(errors), runs, confidence=confidence))
    if errors == runs:
        assert limit == 1.0
    else:
        assert binom.cdf(errors, runs, limit) == pytest.approx(1 - confidence, rel=1e-6)


def miss_probability(bound, truth, runs, false_positive, false_negative):
    """Exact probability that a bound at 90 percent is above the truth, over all counts."""
    each = np.arange(runs + 1)
    found = bound(counts(*np.meshgrid(each, each, indexing="ij"), runs), confidence=0.9)
    probability = np.outer(
        binom.pmf(each, runs, false_positive), binom.pmf(each, runs, false_negative)
    )
    return probability[found > truth].sum()


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
    for runs in (10, 25, 100):
        assert miss_probability(bound, epsilon, runs, false_positive, false_negative) <= 0.1


@pytest.mark.parametrize("mu", [0.1, 0.8, 2.5])
@pytest.mark.parametrize("false_positive", [0.01, 0.1, 0.4])
def test_mu_bounds_are_above_the_truth_as_seldom_as_stated(mu, false_positive):
    false_negative = norm.cdf(norm.isf(false_positive) - mu)
    both = (bounds.mu_lower_bound, bounds.mu_lower_bound_balanced)
    for bound, runs in product(both, (10, 25, 100)):
        assert miss_probability(bound, mu, runs, false_positive, false_negative) <= 0.1
