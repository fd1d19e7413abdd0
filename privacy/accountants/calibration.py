"""From a target (epsilon, delta) to a budget, and from a budget to noise; rounded to the safe side.

The budget of a release is a whole number of ``RHO_STEP``, the unit of the ledger. So what a release
is charged, what a lifetime epsilon allows and what the noise is calibrated to are the same number,
and a lifetime cap equal to one release pays for exactly one release.
"""

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from functools import lru_cache

from privacy.accountants.approximate_gaussian import ApproximateGaussianAccountant
from privacy.accountants.gaussian import (
    SMOOTHING_STDDEV,
    event_mu_squared,
    gaussian_delta,
    gaussian_epsilon,
)
from privacy.charges import RHO_STEP
from privacy.errors import ConfigurationError
from privacy.events import (
    MAX_NOISE_MULTIPLIER,
    MIN_DISCRETE_NOISE_STDDEV,
    MIN_NOISE_MULTIPLIER,
    DiscreteGaussianEvent,
    Event,
    PoissonSampledGaussianEvent,
    RepeatedEvent,
)
from privacy.parameters import Adjacency, PrivacyParameters

_MULTIPLIER_PRECISION = 1e-3
"""Relative width at which the search for a noise multiplier stops."""

_ROOM = 1 - 2.0**-18
"""The booked multiplier is checked a little lower, for roundings on the way to its event."""


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
        raise ConfigurationError(
            "EPSILON_INVALID",
            f"expected epsilon and delta that allow a rho of at least {RHO_STEP}, found "
            f"epsilon {epsilon!r} with delta {delta!r}; choose a larger epsilon",
        )
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
    """Budget of a release of this guarantee in mu under add or remove, rounded down.

    ``mu**2 / 2`` is at most `release_rho`.
    """
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
    # What is left may be the charge of the next one to the last digit, and the search is rounded.
    next_one = PrivacyParameters(epsilon=above, delta=delta)
    return above if release_rho(next_one, adjacency=adjacency) <= rho else below


def discrete_noise_stddev(*, l2_sensitivity: float, mu: float) -> float:
    """Least standard deviation of discrete Gaussian noise that is mu-GDP, rounded up.

    The sensitivity is Euclidean, in grid units, and so is the result, which is at least
    `privacy.events.MIN_DISCRETE_NOISE_STDDEV`. The accountant finds at most ``mu`` for it. It is a
    ConfigurationError if an argument is not finite and above 0, or no event has these values, for
    example because the noise does not fit in 64 bits.
    """
    _check_positive(l2_sensitivity=l2_sensitivity, mu=mu)
    noise_stddev = max(math.hypot(l2_sensitivity / mu, SMOOTHING_STDDEV), MIN_DISCRETE_NOISE_STDDEV)
    while True:
        event = DiscreteGaussianEvent(
            statistic="calibration",
            l2_sensitivity=l2_sensitivity,
            noise_stddev=noise_stddev,
            n_values=1,
        )
        # The margin is for the roundings of an accountant that composes the event.
        if event_mu_squared(event) <= mu * mu * (1 - 2.0**-48):
            return noise_stddev
        noise_stddev *= 1 + 2.0**-50


@lru_cache(maxsize=256)
def booked_noise_multiplier(*, sampling_probability: float, steps: int, mu: float) -> float:
    """Noise multiplier with which a series of Poisson samples is booked at `mu`, rounded up.

    Patients are in each of `steps` samples with this probability, above 0 and at most 1; all three
    numbers are public. The result is the upper end of a search to one part in 1,000, or
    ``sqrt(steps) / mu`` where everybody is in each sample. `ApproximateGaussianAccountant` finds at
    most `mu` for it, for add or remove, and still does for a multiplier that is smaller by a part
    in 300,000 or larger. It is a ConfigurationError if `mu` is not finite and above 0
    (``CALIBRATION_ARGUMENT_INVALID``), another argument is outside its range (``EVENT_INVALID``),
    or no multiplier up to `MAX_NOISE_MULTIPLIER` is enough (``CALIBRATION_UNREACHABLE``).
    """
    _check_positive(mu=mu)
    limit = mu * mu * (1 - 2.0**-48)

    def spent(noise_multiplier: float) -> float:
        series = _series(sampling_probability, noise_multiplier, steps)
        accountant = ApproximateGaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
        return accountant.compose(series).mu_squared

    def excess(noise_multiplier: float) -> float:
        found = spent(max(noise_multiplier * _ROOM, MIN_NOISE_MULTIPLIER))
        return math.log(found / limit) if found > 0 else -math.inf

    _series(sampling_probability, 1.0, steps)
    if sampling_probability == 1:
        found: float | None = max(math.sqrt(steps) / mu, MIN_NOISE_MULTIPLIER)
        while found is not None and found <= MAX_NOISE_MULTIPLIER and spent(found) > limit:
            found *= 1 + 2.0**-50
    else:
        found = _least_multiplier(excess, start=_limit_multiplier(sampling_probability, steps, mu))
    if found is None or found > MAX_NOISE_MULTIPLIER:
        raise ConfigurationError(
            "CALIBRATION_UNREACHABLE",
            f"expected mu that some noise multiplier up to {MAX_NOISE_MULTIPLIER} meets, found "
            f"{mu!r} for {steps} samples with probability {sampling_probability!r}: epsilon is too "
            "small for the schedule; choose a larger epsilon or fewer and smaller samples",
        )
    return found


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigurationError(
                "CALIBRATION_ARGUMENT_INVALID",
                f"expected {name} to be finite and above 0, found {value!r}",
            )


def _series(sampling_probability: float, noise_multiplier: float, steps: int) -> Event:
    step = PoissonSampledGaussianEvent(
        statistic="calibration",
        noise_multiplier=noise_multiplier,
        sampling_probability=sampling_probability,
        n_values=1,
    )
    return RepeatedEvent(event=step, count=steps)


def _limit_multiplier(sampling_probability: float, steps: int, mu: float) -> float:
    """Return the multiplier of the central limit, ``mu = q sqrt(T (exp(1/z**2) - 1))``.

    A guess to start from (Bu, Dong, Long and Su, "Deep learning with Gaussian differential
    privacy", Harvard Data Science Review 2020, Corollary 4).
    """
    guess = 1 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / steps))
    return min(max(guess, MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER)


def _least_multiplier(excess: Callable[[float], float], *, start: float) -> float | None:
    """Return the least multiplier whose excess, which falls with it, is at most 0."""
    high, above = start, excess(start)
    low, below = high, above
    factor = 1.1
    while above > 0:
        if high >= MAX_NOISE_MULTIPLIER:
            return None
        low, below = high, above
        high = min(high * factor, MAX_NOISE_MULTIPLIER)
        above, factor = excess(high), factor * factor
    while below <= 0 and low > MIN_NOISE_MULTIPLIER:
        high, above = low, below
        low = max(low / factor, MIN_NOISE_MULTIPLIER)
        below, factor = excess(low), factor * factor
    if below <= 0:
        return low
    steps = 0
    while high > low * (1 + _MULTIPLIER_PRECISION):
        # By turns a little above and a little below where the line through both ends is 0, and
        # every third time the middle, which ends the search whatever the curve is.
        span = math.log(high / low)
        part = below / (below - above) if math.isfinite(above) and steps % 3 < 2 else 0.5
        aim = part * span + (0.3, -0.3, 0.0)[steps % 3] * _MULTIPLIER_PRECISION
        middle = low * math.exp(min(max(aim, 0.01 * span), 0.99 * span))
        found = excess(middle)
        if found <= 0:
            high, above = middle, found
        else:
            low, below = middle, found
        steps += 1
    return high
