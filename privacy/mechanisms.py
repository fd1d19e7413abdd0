"""The discrete Gaussian mechanism: the only place where noise meets an exact statistic."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.errors import ConfigurationError
from privacy.events import DiscreteGaussianEvent
from privacy.parameters import Adjacency
from privacy.randomness import NoiseSource

MAX_EXACT_VALUE = 2**61
"""Largest magnitude of an exact statistic: with the noise it stays inside a 64-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStatistic:
    """A released statistic with the event of its draw.

    Parameters
    ----------
    values : int64 array
        Exact statistic plus noise, in grid units; read-only.
    event : DiscreteGaussianEvent
        What the draw costs.
    """

    values: NDArray[np.int64]
    event: DiscreteGaussianEvent


def discrete_gaussian_mechanism(
    exact: NDArray[np.int64],
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

    Parameters
    ----------
    exact : int64 array, not empty
        Private exact statistic, in grid units.
    statistic : str
        Public name of the statistic.
    l2_sensitivity : float
        Proven Euclidean sensitivity of the whole array, in grid units.
    noise_stddev : float
        Parameter of the noise, in grid units.
    adjacency : Adjacency
        The neighbours for which the sensitivity was proven.
    noise_source : NoiseSource
        Where the noise comes from.

    Returns
    -------
    NoisyStatistic
        Public; of the shape of `exact`.

    Raises
    ------
    ConfigurationError
        If `exact` is not an int64 array or is empty or too large, or the event is not acceptable,
        for example because the noise is too small for the grid. Nothing is drawn then.

    Privacy
    -------
    Adjacency: as given. Sensitivity: as given, the caller has proven it. Event: one
    `DiscreteGaussianEvent`; ``mu = S / sqrt(sigma**2 - 16)``, proof in
    `privacy.accountants.gaussian`.
    """
    if not isinstance(exact, np.ndarray) or exact.dtype != np.int64 or exact.size == 0:
        raise ConfigurationError(
            "STATISTIC_INVALID",
            f"expected the exact statistic {statistic!r} to be an int64 array that is not empty; "
            "put it on an integer grid first",
        )
    event = DiscreteGaussianEvent(
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
