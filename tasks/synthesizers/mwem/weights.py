"""Multiplicative weights: a distribution from a start and a history of noisy answers.

Everything here is post-processing of released values, and without randomness: the same history
gives the same distributions, so a run that is resumed only needs the history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tasks.synthesizers.mwem.distribution import FactoredDistribution

Tilt = Callable[[float, float], float]
"""Exponent of an update, from the measured and the present probability of a query."""

_SMALLEST = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyAnswer:
    """A query with its noisy answer, as a share of the patients in [0, 1]."""

    columns: tuple[int, ...]
    codes: tuple[int, ...]
    share: float


def printed_tilt(measured: float, present: float) -> float:
    """Return the exponent of Hardt et al. 2012, Figure 1: half the error of the share."""
    return (measured - present) / 2.0


def matching_tilt(measured: float, present: float) -> float:
    """Return the exponent after which the query has the measured probability.

    The update of the paper is a short step in the same direction. On a query with a small share
    it hardly moves: the step is half the error, and the share changes by a fraction of that.
    """
    return _log_odds(measured) - _log_odds(present)


def _log_odds(share: float) -> float:
    clipped = min(max(share, _SMALLEST), 1.0 - _SMALLEST)
    return math.log(clipped) - math.log1p(-clipped)


def update(
    distribution: FactoredDistribution, history: Sequence[NoisyAnswer], *, passes: int, tilt: Tilt
) -> None:
    """Apply all measurements so far, in order and so many times; changes the distribution."""
    for _ in range(passes):
        for measurement in history:
            present = distribution.probability(measurement.columns, measurement.codes)
            theta = tilt(measurement.share, present)
            distribution.tilt(measurement.columns, measurement.codes, theta)


def iterates(
    start: FactoredDistribution, history: Sequence[NoisyAnswer], *, passes: int, tilt: Tilt
) -> Iterator[FactoredDistribution]:
    """Yield the distribution after each round of a history; the next round changes it in place."""
    for n_known in range(1, len(history) + 1):
        update(start, history[:n_known], passes=passes, tilt=tilt)
        yield start
