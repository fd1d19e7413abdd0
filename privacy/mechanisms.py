"""The two mechanisms: the only place where noise meets an exact statistic or private scores."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from privacy.arrays import Integers
from privacy.errors import ConfigurationError
from privacy.events import DiscreteGaussianEvent, ExponentialMechanismEvent
from privacy.parameters import Adjacency
from privacy.randomness import NoiseSource

MAX_EXACT_VALUE = 2**61
"""Largest magnitude of an exact statistic: with the noise it stays inside a 64-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStatistic:
    """A released statistic, read-only and in grid units, with the event of its draw."""

    values: Integers
    event: DiscreteGaussianEvent


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedCandidate:
    """A privately selected candidate, by its index alone, with the event of its draw."""

    index: int
    event: ExponentialMechanismEvent


def exponential_mechanism(
    scores: Integers,
    *,
    statistic: str,
    score_sensitivity: int,
    epsilon: float,
    adjacency: Adjacency,
    noise_source: NoiseSource,
) -> SelectedCandidate:
    """Select one of several public candidates, more likely one with a high score.

    Candidate ``j`` is drawn with probability proportional to ``exp(epsilon u_j / (2 D))`` (McSherry
    and Talwar, "Mechanism design via differential privacy", FOCS 2007). Scores are integers and the
    draw is exact: no probability is rounded. The private scores ``u_j`` (n_candidates,) are int64,
    not empty and in grid units, as is ``D``, the proven largest change of a single score between
    neighbours, from 1 to 2**61; scores may change in both directions and all at once. Epsilon is in
    nats, as in `privacy.events.ExponentialMechanismEvent`. The result is public.

    It is a ConfigurationError if `scores` is no such array or too large, or the sensitivity is not
    acceptable (``STATISTIC_INVALID``), or the event is not (``EVENT_INVALID``). Nothing is drawn
    then.

    Privacy
    -------
    Adjacency: as given. Sensitivity: as given, the caller has proven it. Event: one
    `ExponentialMechanismEvent`; (epsilon, 0)-DP and of range epsilon, ``mu`` and proof in
    `privacy.accountants.bounded_range`.
    """
    if (
        not isinstance(scores, np.ndarray)
        or scores.dtype != np.int64
        or scores.ndim != 1
        or scores.size == 0
    ):
        raise ConfigurationError(
            "STATISTIC_INVALID",
            f"expected the scores of {statistic!r} to be an int64 array of one dimension that is "
            "not empty; put them on an integer grid first",
        )
    if (
        not isinstance(score_sensitivity, int)
        or isinstance(score_sensitivity, bool)
        or not 1 <= score_sensitivity <= MAX_EXACT_VALUE
    ):
        raise ConfigurationError(
            "STATISTIC_INVALID",
            f"expected the sensitivity of the scores of {statistic!r} to be an integer from 1 to "
            "2**61, in grid units",
        )
    event = ExponentialMechanismEvent(
        statistic=statistic, epsilon=epsilon, n_candidates=scores.size, adjacency=adjacency
    )
    if scores.max() > MAX_EXACT_VALUE or scores.min() < -MAX_EXACT_VALUE:
        raise ConfigurationError(
            "STATISTIC_INVALID",
            f"expected the scores of {statistic!r} to stay below 2**61 in magnitude; "
            "use a coarser grid",
        )
    scale = _selection_scale(score_sensitivity, epsilon)
    return SelectedCandidate(index=noise_source.select_max(scores, scale=scale), event=event)


def _selection_scale(score_sensitivity: int, epsilon: float) -> float:
    """Return ``2 D / epsilon`` rounded up, so that no rounding makes epsilon larger."""
    exact = 2 * Fraction(score_sensitivity) / Fraction(epsilon)
    scale = float(exact)
    return scale if Fraction(scale) >= exact else math.nextafter(scale, math.inf)
