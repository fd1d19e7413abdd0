"""The theorem of `privacy.gaussian` for discrete noise, checked on exact laws.

The laws here are sums over all integers that carry all but 1e-100 of the mass, computed with 60
digits; nothing is sampled.
"""

import mpmath
import numpy as np
import pytest

from privacy.gaussian import SMOOTHING_STDDEV, gaussian_delta

DIGITS = 60
TAIL_MASS = 1e-100
"""More than the mass beyond 22 standard deviations, where the laws are cut off."""


def discrete_gaussian_law(sigma, reach):
    """Probabilities of -reach..reach under the discrete Gaussian."""
    weights = [mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * sigma**2)) for z in range(-reach, reach + 1)]
    total = mpmath.fsum(weights)
    return [weight / total for weight in weights]


def hockey_stick(law, shift, epsilon):
    """Divergence of the law shifted by `shift` from the law, over the integers of both."""
    padding = [mpmath.mpf(0)] * shift
    factor = mpmath.exp(epsilon)
    first, second = padding + law, law + padding
    return mpmath.fsum(
        max(p - factor * q, mpmath.mpf(0)) for p, q in zip(first, second, strict=True)
    )


def grid_mu(distance, sigma):
    return distance / np.sqrt(sigma**2 - SMOOTHING_STDDEV**2)


@pytest.mark.parametrize("sigma", [8, 13.7, 30, 60])
@pytest.mark.parametrize("shift", [1, 5, 17])
def test_one_coordinate_is_gaussian_differentially_private(sigma, shift):
    with mpmath.workdps(DIGITS):
        law = discrete_gaussian_law(sigma, reach=int(22 * sigma))
        mu = grid_mu(shift, sigma)
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
            exact = hockey_stick(law, shift, epsilon)
            bound = gaussian_delta(epsilon=epsilon, mu=mu)
            assert exact <= bound + TAIL_MASS
            # The check can fail: a bound for half the shift does not hold.
            if epsilon == 0.0:
                assert exact > gaussian_delta(epsilon=epsilon, mu=mu / 2)


@pytest.mark.parametrize("sigma", [8, 15])
def test_two_adaptive_draws_compose_without_loss(sigma):
    # The second statistic depends on the first output: it moves by 2 or by 4 grid points. The cost
    # is that of the fixed budget for the dearer branch.
    reach = 14 * sigma
    line = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    line /= line.sum()
    first_moved, first_still = np.pad(line, (3, 0)), np.pad(line, (0, 3))
    outputs = np.arange(-reach, reach + 4)
    for epsilon in (0.0, 0.5, 1.0):
        exact = 0.0
        for branch, step in ((outputs < 0, 2), (outputs >= 0, 4)):
            second_moved, second_still = np.pad(line, (step, 0)), np.pad(line, (0, step))
            moved = np.multiply.outer(first_moved[branch], second_moved)
            still = np.multiply.outer(first_still[branch], second_still)
            exact += np.maximum(moved - np.exp(epsilon) * still, 0.0).sum()
        assert exact <= gaussian_delta(epsilon=epsilon, mu=grid_mu(5.0, sigma)) + 1e-12


def smoothing_gap(width):
    q = mpmath.exp(-2 * mpmath.pi**2 * width**2)
    return 2 * q / (1 - q)


@pytest.mark.parametrize("width", [0.4, 0.5, 0.7])
def test_the_two_step_law_stays_within_the_stated_factor(width):
    # Small widths, where the factor is large enough to be seen.
    sigma, reach = 2.0, 10
    with mpmath.workdps(30):
        inner = mpmath.sqrt(sigma**2 - mpmath.mpf(width) ** 2)
        law = discrete_gaussian_law(sigma, 60)[60 - reach : 60 + reach + 1]
        step = mpmath.mpf(1) / 16
        grid = [k * step for k in range(-16 * 30, 16 * 30 + 1)]

        def normaliser(x):
            near = int(mpmath.nint(x))
            return mpmath.fsum(
                mpmath.exp(-((k - x) ** 2) / (2 * width**2)) for k in range(near - 12, near + 13)
            )

        # The trapezoidal rule is exact to many digits for smooth, rapidly decaying integrands.
        outer = [step * mpmath.npdf(x, 0, inner) / normaliser(x - mpmath.floor(x)) for x in grid]
        gap = smoothing_gap(mpmath.mpf(width))
        low, high = (1 - gap) / (1 + gap), (1 + gap) / (1 - gap)
        largest = mpmath.mpf(0)
        for z in range(-reach, reach + 1, 2):
            two_step = mpmath.fsum(
                weight * mpmath.exp(-((z - x) ** 2) / (2 * width**2))
                for x, weight in zip(grid, outer, strict=True)
            )
            ratio = two_step / law[z + reach]
            assert low <= ratio <= high
            largest = max(largest, abs(ratio - 1))
        # The factor is not vacuous: the two laws do differ.
        assert largest > gap**2 / 8


def test_at_the_width_in_use_the_factor_is_below_one_rounding_of_epsilon():
    with mpmath.workdps(200):
        gap = smoothing_gap(mpmath.mpf(SMOOTHING_STDDEV))
        assert gap < mpmath.mpf("1e-136")
        growth = 2 * mpmath.log((1 + gap) / (1 - gap)) * 2**63
        assert growth < mpmath.mpf("1e-116")
