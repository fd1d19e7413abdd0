"""Noise of the rivals: by printed analyses, and by dp-accounting for what is accounted here."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from privacy.arrays import AnyFloats, Floats
from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyParameters

_LARGEST = 1e4
_PRECISION = 1e-3
"""Relative width at which the search ends, on the side of more noise."""


def sampled_bound(
    noise_multiplier: float, *, sample_size: int, population_size: int, orders: Sequence[int]
) -> Floats:
    """Renyi bound, at orders above 1, of one Gaussian draw on a sample without replacement.

    Theorem 27 of Wang, Balle and Kasiviswanathan (AISTATS 2019) for a replaced record in a table of
    a public size, as dp-accounting computes it; the multiplier is noise over sensitivity.
    """
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    engine = RdpAccountant(
        orders=list(orders), neighboring_relation=NeighboringRelation.REPLACE_ONE
    )
    noise = dp_event.GaussianDpEvent(noise_multiplier)
    # The engine takes logarithms of differences that may vanish.
    with np.errstate(all="ignore"):
        engine.compose(
            dp_event.SampledWithoutReplacementDpEvent(population_size, sample_size, noise)
        )
    bound: Floats = np.where(np.isnan(engine.rdp), np.inf, engine.rdp)
    return bound


def claimed_epsilon(of_all_draws: Floats, *, orders: Sequence[int], delta: float) -> float:
    """Epsilon at `delta` by the conversion of Mironov 2017, least over the orders."""
    beside = math.log(1.0 / delta) / (np.asarray(orders, dtype=np.float64) - 1.0)
    return float(np.min(of_all_draws + beside))


def least_noise(is_enough: Callable[[float], bool], *, otherwise: str, start: float = 1.0) -> float:
    """Return the least noise that is enough, by bisection: the upper end.

    `is_enough` holds for larger noise too; if it never does, `otherwise` says so
    (ConfigurationError).
    """
    high = start
    while not is_enough(high):
        high *= 2.0
        if high > _LARGEST:
            raise ConfigurationError("CALIBRATION_UNREACHABLE", otherwise)
    low = high / 2.0
    while is_enough(low):
        low, high = low / 2.0, low
    while high > low * (1.0 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def clip_rows(points: AnyFloats, *, l2_clip_norm: float) -> AnyFloats:
    """Scale rows of shape (n, d) down to the norm, where they are longer."""
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    clipped: AnyFloats = points / np.maximum(1.0, norms / l2_clip_norm)
    return clipped


@lru_cache(maxsize=64)
def poisson_noise_multiplier(
    parameters: PrivacyParameters, *, probability: float, n_draws: int
) -> float:
    """Return noise over sensitivity of Gaussian draws on Poisson samples, add or remove."""
    from dp_accounting import calibrate_dp_mechanism, dp_event
    from dp_accounting.pld import PLDAccountant

    def event(noise_multiplier: float) -> dp_event.DpEvent:
        draw = dp_event.GaussianDpEvent(noise_multiplier)
        return dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(probability, draw), n_draws
        )

    found = calibrate_dp_mechanism(
        lambda: PLDAccountant(value_discretization_interval=1e-3),
        event,
        parameters.epsilon,
        parameters.delta,
        tol=1e-3,
    )
    return float(found)


@lru_cache(maxsize=64)
def concentrated_rho(parameters: PrivacyParameters) -> float:
    """Return the largest rho of zero-concentrated privacy that implies epsilon and delta."""
    from dp_accounting import calibrate_dp_mechanism, dp_event
    from dp_accounting.rdp import RdpAccountant

    found = calibrate_dp_mechanism(
        RdpAccountant, dp_event.ZCDpEvent, parameters.epsilon, parameters.delta
    )
    return float(found)
