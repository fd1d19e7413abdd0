import math
from itertools import product

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution

from privacy.accountants.gaussian import gaussian_epsilon
from privacy.accountants.loss_distribution import DELTA_MARGIN
from tests.privacy.accountants.draws import poisson
from tests.privacy.accountants.draws import series as repeated
from tests.privacy.accountants.tight_accountant import TightAccountant

ADD_REMOVE = TightAccountant()


def one_step_delta(probability, noise, epsilon):
    """Hockey-stick divergence of one sampled draw, the worse direction, with 40 digits.

    The density ratio grows with the output, so each divergence is taken over a half-line.
    """
    with mpmath.workdps(40):
        q, s, e = mpmath.mpf(probability), mpmath.mpf(noise), mpmath.exp(epsilon)

        def crossing(ratio):
            return s**2 * mpmath.log((ratio - 1 + q) / q) + mpmath.mpf(1) / 2

        def nobody(x):
            return mpmath.ncdf(x / s)

        def somebody(x):
            return (1 - q) * nobody(x) + q * mpmath.ncdf((x - 1) / s)

        above = crossing(e)
        removed = 1 - somebody(above) - e * (1 - nobody(above))
        if 1 / e <= 1 - q:
            return removed
        below = crossing(1 / e)
        return max(removed, nobody(below) - e * somebody(below))


DECISIVE = ((0.01, 0.8, 0.3), (0.2, 0.8, 1.0), (0.2, 3.0, 0.01), (0.9, 0.8, 0.3), (0.9, 3.0, 1.0))


@pytest.mark.parametrize(
    ("probability", "noise", "epsilon"),
    [
        pytest.param(*case, marks=[] if case in DECISIVE else pytest.mark.integration)
        for case in product((0.01, 0.2, 0.9), (0.8, 3.0), (0.01, 0.3, 1.0))
    ],
)
def test_one_step_is_the_exact_value_rounded_up(probability, noise, epsilon):
    exact = one_step_delta(probability, noise, epsilon)
    found = ADD_REMOVE.compose(poisson(probability, noise)).delta(epsilon=epsilon)
    assert exact <= found
    assert found <= exact * (1 + 1e-3) + 2 * DELTA_MARGIN


@pytest.mark.parametrize("delta", [1e-10, 1e-8, 1e-6, 1e-3])
@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_a_sample_of_everybody_is_never_below_the_exact_value(delta, count):
    found = ADD_REMOVE.compose(repeated(1.0, math.sqrt(count), count)).epsilon(delta=delta)
    exact = gaussian_epsilon(delta=delta, mu=1.0)
    assert exact <= found <= exact * (1 + 1e-9)


def test_the_margin_covers_the_rounding_of_the_engine():
    # A known Gaussian, composed by the engine from 1,000 draws. Its pessimism ends at the rounding
    # of its transform, whose sign is the processor's: below the exact delta by a tenth of the
    # margin at most, so that with the margin no epsilon is too low.
    engine = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=math.sqrt(1000), value_discretization_interval=1e-4
    ).self_compose(1000)
    for delta in (1e-10, 1e-9, 1e-8, 1e-6):
        exact = gaussian_epsilon(delta=delta, mu=1.0)
        assert engine.get_delta_for_epsilon(exact) > delta - DELTA_MARGIN / 10
        assert engine.get_epsilon_for_delta(delta - DELTA_MARGIN) >= exact
