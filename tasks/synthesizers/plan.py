"""The plan of a measurement: every noisy statistic, its sensitivity and noise, set in advance.

A plan is made from public settings alone, before the private table is opened. It fixes how the
budget is split and every noise scale; a curator draws exactly what the plan says, once each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy.calibration import discrete_noise_stddev
from privacy.events import ComposedEvent, DiscreteGaussianEvent
from privacy.parameters import Adjacency


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticRequest:
    """What a method wants to measure.

    Parameters
    ----------
    name
        Public name of the statistic.
    shape
        Shape of the released array.
    l2_sensitivity
        Proved Euclidean sensitivity under add or remove of one patient, in grid points.
    scale
        Grid points per unit: the exact sum is an integer array in units of ``1 / scale``.
    share
        Weight of this statistic in the budget; it gets ``share / sum of shares`` of ``mu**2``.
    """

    name: str
    shape: tuple[int, ...]
    l2_sensitivity: float
    scale: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatistic:
    """A statistic with its noise. ``noise_stddev`` and ``l2_sensitivity`` are in grid units."""

    name: str
    shape: tuple[int, ...]
    scale: int
    l2_sensitivity: float
    noise_stddev: float
    mu: float

    @property
    def unit_noise_stddev(self) -> float:
        """Standard deviation of the noise in the statistic's own units."""
        return self.noise_stddev / self.scale

    @property
    def event(self) -> DiscreteGaussianEvent:
        """The event that drawing this statistic will emit."""
        return DiscreteGaussianEvent(
            statistic=self.name,
            l2_sensitivity=self.l2_sensitivity,
            noise_stddev=self.noise_stddev,
            n_values=int(np.prod(self.shape)),
            adjacency=Adjacency.ADD_REMOVE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """All statistics of a measurement, in the order in which they are drawn."""

    mu: float
    statistics: tuple[PlannedStatistic, ...]

    def __getitem__(self, name: str) -> PlannedStatistic:
        for statistic in self.statistics:
            if statistic.name == name:
                return statistic
        raise KeyError(f"expected a planned statistic, found {name!r}")

    @property
    def event(self) -> ComposedEvent:
        """The composition of all planned events."""
        return ComposedEvent(events=tuple(statistic.event for statistic in self.statistics))


def plan_measurement(requests: list[StatisticRequest], *, mu: float) -> MeasurementPlan:
    """Split ``mu`` over the requested statistics and calibrate each noise scale.

    Parameters
    ----------
    requests
        Statistics in the order of drawing; names are unique, shares positive.
    mu
        Total Gaussian-DP budget of the measurement.

    Privacy
    -------
    Adaptive composition of Gaussian mechanisms: ``mu**2`` is the sum of the parts (Dong, Roth
    and Su 2019, Corollary 3.3). Every part is rounded to more noise, never to less.
    """
    if len({request.name for request in requests}) != len(requests):
        raise ValueError("expected every statistic of a plan to have its own name")
    total = sum(request.share for request in requests)
    statistics = []
    for request in requests:
        part = mu * float(np.sqrt(request.share / total))
        # One part in 1e12 is given away so that rounding in the composition stays inside mu.
        part *= 1.0 - 1e-12
        statistics.append(
            PlannedStatistic(
                name=request.name,
                shape=request.shape,
                scale=request.scale,
                l2_sensitivity=request.l2_sensitivity,
                noise_stddev=discrete_noise_stddev(l2_sensitivity=request.l2_sensitivity, mu=part),
                mu=part,
            )
        )
    return MeasurementPlan(mu=mu, statistics=tuple(statistics))
