"""Noise by printed analyses: Renyi bounds of samples without replacement, and a search."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from privacy.arrays import Floats
from privacy.errors import ConfigurationError

_LARGEST = 1e4
_PRECISION = 1e-3
"""Relative width at which the search ends, on the side of more noise."""


def sampled_bound(
    noise_multiplier: float, *, sample_size: int, population_size: int, orders: Sequence[int]
) -> Floats:
    """Renyi bound of one Gaussian draw on a sample without replacement, at each order.

    Theorem 27 of Wang, Balle and Kasiviswanathan (AISTATS 2019) for tables of a public size in
    which one record is replaced, as dp-accounting computes it. The multiplier is the noise over the
    sensitivity of a draw from given records, and the orders alpha are above 1.
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

    `is_enough` says whether an analysis claims what is wanted of a noise; it is true of every
    larger one as well. The search starts above 0; where no noise is enough, `otherwise` says what
    is expected, found and to do (ConfigurationError ``CALIBRATION_UNREACHABLE``).
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
