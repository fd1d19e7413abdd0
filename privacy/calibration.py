"""Conversion of (epsilon, delta) to a budget, and of a budget to noise; rounded to the safe side.

The budget of a release is a whole number of ``RHO_STEP``, the ledger's unit. Charge, lifetime cap
and noise calibration all use this number, so a cap equal to one release pays for exactly one.
"""

import math
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from functools import lru_cache

from privacy.charges import RHO_STEP
from privacy.errors import refusals, require
from privacy.events import MIN_DISCRETE_NOISE_STDDEV, Gaussian
from privacy.gaussian import SMOOTHING_STDDEV, event_mu_squared, gaussian_delta, gaussian_epsilon
from privacy.parameters import Adjacency, PrivacyParameters

refusal = refusals(__package__)


@lru_cache(maxsize=256)
def gdp_rho(*, epsilon: float, delta: float) -> Decimal:
    """Largest ``rho = mu**2 / 2`` for which mu-GDP implies (epsilon, delta)-DP, rounded down.

    It is a positive multiple of `privacy.charges.RHO_STEP`; a target that is outside the range of
    `privacy.parameters.PrivacyParameters`, or allows less than one step, is a ConfigurationError.
    """
    PrivacyParameters(epsilon=epsilon, delta=delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon=epsilon, mu=high) <= delta:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        allowed = gaussian_delta(epsilon=epsilon, mu=middle) <= delta
        low, high = (middle, high) if allowed else (low, middle)
    # Exact rational arithmetic: no rounding of the square can end above the bound.
    steps = math.floor(Fraction(low) ** 2 / 2 / Fraction(RHO_STEP))
    if steps < 1:
        raise refusal("EPSILON_INVALID small", least=RHO_STEP, epsilon=epsilon, delta=delta)
    return steps * RHO_STEP


@lru_cache(maxsize=256)
def gdp_mu(*, epsilon: float, delta: float) -> float:
    """Largest ``mu`` for which mu-GDP implies (epsilon, delta)-DP, rounded down.

    ``mu**2 / 2`` is at most `gdp_rho`, and by less than one part in 1e15; errors are the same.
    """
    bound = 2 * Fraction(gdp_rho(epsilon=epsilon, delta=delta))
    mu = math.sqrt(bound)
    while Fraction(mu) ** 2 > bound:
        mu = math.nextafter(mu, 0.0)
    return mu


def release_rho(parameters: PrivacyParameters, *, adjacency: Adjacency) -> Decimal:
    """Amount that a release of this guarantee is charged, in rho under add or remove.

    Replacing a patient is removing one and adding one, so a replace-one target is charged a
    quarter: its ``mu`` is half. The amount is a multiple of `privacy.charges.RHO_STEP`.
    """
    rho = gdp_rho(epsilon=parameters.epsilon, delta=parameters.delta)
    if adjacency is Adjacency.ADD_REMOVE:
        return rho
    return (rho / 4).quantize(RHO_STEP, rounding=ROUND_FLOOR)


def release_mu(parameters: PrivacyParameters, *, adjacency: Adjacency) -> float:
    """Budget in mu under add or remove, rounded down: ``mu**2 / 2`` is at most `release_rho`."""
    if adjacency is Adjacency.ADD_REMOVE:
        return gdp_mu(epsilon=parameters.epsilon, delta=parameters.delta)
    # Rounded down twice over, so that mu**2 / 2 is at most the charge.
    rho = float(release_rho(parameters, adjacency=adjacency))
    return math.nextafter(math.sqrt(2.0 * rho), 0.0) * (1.0 - 1e-15)


def affordable_epsilon(rho: Decimal, *, delta: float, adjacency: Adjacency) -> float:
    """Largest epsilon, of three decimals, of a release whose `release_rho` is at most `rho`."""
    whole = rho if adjacency is Adjacency.ADD_REMOVE else 4 * rho
    found = gaussian_epsilon(delta=delta, mu=math.sqrt(2.0 * float(whole))) if rho else 0.0
    below, above = (math.floor(found * 1_000) / 1_000, math.floor(found * 1_000 + 1) / 1_000)
    # The search is rounded, and `rho` may be exactly the charge of `above`: compare the charges.
    next_one = PrivacyParameters(epsilon=above, delta=delta)
    return above if release_rho(next_one, adjacency=adjacency) <= rho else below


def discrete_noise_stddev(*, l2_sensitivity: float, mu: float) -> float:
    """Least standard deviation of discrete Gaussian noise that is mu-GDP, rounded up.

    The sensitivity is Euclidean, in grid units, and so is the result, which is at least
    `privacy.events.MIN_DISCRETE_NOISE_STDDEV`. The accountant finds at most ``mu`` for it. It is a
    ConfigurationError if an argument is not finite and above 0, or no event has these values, for
    example because the noise does not fit in 64 bits.
    """
    for name, value in (("l2_sensitivity", l2_sensitivity), ("mu", mu)):
        require(math.isfinite(value) and value > 0, f"{name} to be finite and above 0", value)
    noise_stddev = max(math.hypot(l2_sensitivity / mu, SMOOTHING_STDDEV), MIN_DISCRETE_NOISE_STDDEV)
    while True:
        event = Gaussian(
            statistic="calibration",
            l2_sensitivity=l2_sensitivity,
            noise_stddev=noise_stddev,
            n_values=1,
        )
        # The margin is for the roundings of an accountant that composes the event.
        if event_mu_squared(event) <= mu * mu * (1 - 2.0**-48):
            return noise_stddev
        noise_stddev *= 1 + 2.0**-50
