"""The Gaussian mechanism: the only place where noise meets an exact statistic."""

from dataclasses import dataclass

import numpy as np

from privacy.arrays import Integers
from privacy.errors import ConfigurationError
from privacy.events import Gaussian
from privacy.parameters import Adjacency
from privacy.randomness import NoiseSource

MAX_EXACT_VALUE = 2**61
"""Largest magnitude of an exact statistic: with the noise it stays inside a 64-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStatistic:
    """A released statistic, read-only and in grid units, with the event of its draw."""

    values: Integers
    event: Gaussian


def discrete_gaussian_mechanism(
    exact: Integers,
    *,
    statistic: str,
    l2_sensitivity: float,
    noise_stddev: float,
    adjacency: Adjacency,
    noise_source: NoiseSource,
) -> NoisyStatistic:
    """Add discrete Gaussian noise to an exact integer statistic.

    Call it once per statistic and keep the result: a second call is a second draw, with its own
    event, and the average of two draws has less noise.

    `exact` is a private int64 array, not empty; it, the proven Euclidean sensitivity of the whole
    array and the parameter of the noise are in grid units; the adjacency is that for which the
    sensitivity was proven. The result is public and has the shape of `exact`.

    It is a ConfigurationError if `exact` is not an int64 array or is empty or too large, or the
    event is not acceptable, for example because the noise is too small for the grid. Nothing is
    drawn then.

    Privacy
    -------
    Adjacency: as given. Sensitivity: as given, the caller has proven it. Event: one
    `Gaussian`; ``mu = S / sqrt(sigma**2 - 16)``, proof in `privacy.gaussian`.
    """
    if not isinstance(exact, np.ndarray) or exact.dtype != np.int64 or exact.size == 0:
        raise ConfigurationError(
            "STATISTIC_INVALID",
            f"expected the exact statistic {statistic!r} to be an int64 array that is not empty; "
            "put it on an integer grid first",
        )
    event = Gaussian(
        statistic=statistic,
        l2_sensitivity=l2_sensitivity,
        noise_stddev=noise_stddev,
        n_values=exact.size,
        adjacency=adjacency,
    )
    # Two comparisons, because the magnitude of the smallest int64 is not an int64.
    if exact.max() > MAX_EXACT_VALUE or exact.min() < -MAX_EXACT_VALUE:
        raise ConfigurationError(
            "STATISTIC_INVALID",
            f"expected the exact statistic {statistic!r} to stay below 2**61 in magnitude; "
            "use a coarser grid",
        )
    values = exact + noise_source.discrete_gaussian(exact.shape, noise_stddev=noise_stddev)
    values.setflags(write=False)
    return NoisyStatistic(values=values, event=event)
