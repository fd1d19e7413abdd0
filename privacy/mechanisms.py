"""The Gaussian mechanism, and the sensitivity of the sums that it releases, with its proof.

Only here does noise meet an exact statistic. A patient has rows ``r`` with public vectors ``v_r``
and weights ``w_r >= 0`` that sum to at most one (``1 / m`` each for ``m`` rows). The vectors are
truncated toward zero on an integer grid and added up in 64-bit integers, exactly in any order.
"""

import math
from dataclasses import dataclass

import numpy as np

from privacy.arrays import Integers
from privacy.errors import refusals, require
from privacy.events import Gaussian
from privacy.parameters import Adjacency
from privacy.randomness import NoiseSource

refusal = refusals(__package__)

SUM_GRID_BITS = 24
"""A weighted sum has ``2**SUM_GRID_BITS`` grid points per unit."""

FLOAT_MARGIN = 2.0**-40
"""Relative margin of every bound below, for vectors and weights computed in double precision.

In double precision a norm of 1 may be ``1 + n 2**-53``, and three weights of one third may sum to a
little more than one. The margin covers more than 4,000 such roundings, for 1e-12 more noise.
"""


def weighted_sum_l2_sensitivity(*, bound: float, scale: float) -> float:
    r"""Sensitivity of ``sum_r trunc(w_r v_r scale)`` with ``||v_r|| <= bound``, in grid units.

    *Proof.* A patient adds ``sum_r trunc(w_r v_r scale)``. Truncation shrinks magnitudes, so each
    term has norm at most ``w_r bound scale``; by the triangle inequality the norm of the sum is
    at most ``scale bound sum_r w_r <= scale bound``, wherever in the array the rows fall: to cells,
    labels or folds that depend on the row and on public values alone. []

    The bound and the scale are above 0 (ConfigurationError). The result, in grid units with
    `FLOAT_MARGIN`, is attained by a patient with one row.

    Privacy
    -------
    Adjacency: add or remove one patient. For replacement the accountant doubles ``mu``.
    """
    require(math.isfinite(bound) and bound > 0, "bound to be finite and above 0", bound)
    require(math.isfinite(scale) and scale > 0, "scale to be finite and above 0", scale)
    return scale * bound * (1 + FLOAT_MARGIN)


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

    The private `exact`, its proven Euclidean sensitivity as a whole and the noise parameter are in
    grid units; the adjacency is that of the proof. The result is public, shaped like `exact`.

    It is a ConfigurationError, and nothing is drawn, if `exact` is not an int64 array or is empty
    or too large, or the event is not acceptable, as with noise too small for the grid.

    Privacy
    -------
    Adjacency: as given. Sensitivity: as given, the caller has proven it. Event: one
    `Gaussian`; ``mu = S / sqrt(sigma**2 - 16)``, proof in `privacy.gaussian`.
    """
    if not isinstance(exact, np.ndarray) or exact.dtype != np.int64 or exact.size == 0:
        raise refusal("STATISTIC_INVALID type", statistic=statistic)
    event = Gaussian(
        statistic=statistic,
        l2_sensitivity=l2_sensitivity,
        noise_stddev=noise_stddev,
        n_values=exact.size,
        adjacency=adjacency,
    )
    # Two comparisons, because the magnitude of the smallest int64 is not an int64.
    if exact.max() > MAX_EXACT_VALUE or exact.min() < -MAX_EXACT_VALUE:
        raise refusal("STATISTIC_INVALID size", statistic=statistic)
    values = exact + noise_source.discrete_gaussian(exact.shape, noise_stddev=noise_stddev)
    values.setflags(write=False)
    return NoisyStatistic(values=values, event=event)
