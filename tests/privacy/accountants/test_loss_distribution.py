import math
from itertools import product

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

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


def test_the_reference_agrees_with_integration():
    x = np.linspace(-12, 13, 2_000_001)
    nobody = norm.pdf(x, 0.0, 0.8)
    somebody = 0.8 * nobody + 0.2 * norm.pdf(x, 1.0, 0.8)
    found = np.maximum(somebody - math.exp(0.3) * nobody, 0.0).sum() * (x[1] - x[0])
    assert found == pytest.approx(float(one_step_delta(0.2, 0.8, 0.3)), abs=1e-9)


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


@pytest.mark.parametrize(
    ("probability", "noise", "count", "epsilon"),
    [
        (0.05, 1.0, 40, 1.0),
        (0.2, 2.0, 30, 0.8),
        pytest.param(0.02, 0.7, 60, 0.7, marks=pytest.mark.integration),
    ],
)
def test_composition_agrees_with_simulation(probability, noise, count, epsilon):
    # delta = E[(1 - exp(epsilon - L))+] over losses L of the first law of the pair. 200,000
    # composed draws with a fixed seed; six standard errors two-sided. Noise that is 0.9 times as
    # large has another delta by more than that, so the test can fail.
    generator = np.random.default_rng(20_240)
    sums = np.zeros((2, 200_000))
    for _ in range(count):
        x = generator.normal(0.0, noise, sums.shape)
        x[0] += generator.random(sums.shape[1]) < probability
        loss = np.logaddexp(
            math.log1p(-probability), math.log(probability) + (2 * x - 1) / (2 * noise**2)
        )
        sums += loss * np.array([[1.0], [-1.0]])
    terms = np.maximum(-np.expm1(np.minimum(epsilon - sums, 0.0)), 0.0)
    estimates = terms.mean(axis=1)
    worse = int(np.argmax(estimates))
    error = 6 * terms[worse].std() / math.sqrt(sums.shape[1])
    found = ADD_REMOVE.compose(repeated(probability, noise, count)).delta(epsilon=epsilon)
    assert abs(found - estimates[worse]) <= error + 1e-3 * found
    smaller = ADD_REMOVE.compose(repeated(probability, 0.9 * noise, count)).delta(epsilon=epsilon)
    assert smaller > estimates[worse] + error


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
