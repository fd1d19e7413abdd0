"""The plan of a measurement: every look at the rows, its sensitivity and noise, set in advance.

A plan is made from public settings alone, before the private table is opened. It fixes how the
budget is split and every noise scale; a curator draws exactly what the plan says. A noisy statistic
is drawn once, or a fixed number of times with fresh noise, as the steps of a training are.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass

import numpy as np

from privacy.calibration import discrete_noise_stddev
from privacy.events import Composed, Gaussian, Repeated
from privacy.mechanisms import SUM_GRID_BITS, weighted_sum_l2_sensitivity
from privacy.parameters import Adjacency

_GIVEN_AWAY = 1e-12
"""Part of each share that rounding in a composition may use up."""


@dataclass(frozen=True, slots=True)
class SumRequest:
    """A weighted sum of vectors of norm at most `bound` that a method wants to measure.

    The shape is that of one draw. Its exact sum is an integer array in units of ``1 / scale``. All
    draws of a statistic together get ``share / sum of shares`` of ``mu**2``.
    """

    name: str
    shape: tuple[int, ...]
    _: KW_ONLY
    share: float
    bound: float = 1.0
    scale: int = 2**SUM_GRID_BITS
    n_draws: int = 1

    @property
    def l2_sensitivity(self) -> float:
        """Proven Euclidean sensitivity of one draw, in grid points, with a margin for rounding.

        Privacy
        -------
        Adjacency: add or remove one patient; `privacy.mechanisms.weighted_sum_l2_sensitivity`.
        """
        return weighted_sum_l2_sensitivity(bound=self.bound, scale=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatistic(SumRequest):
    """A statistic with the standard deviation of its noise, in grid points."""

    noise_stddev: float
    mu: float

    @property
    def unit_noise_stddev(self) -> float:
        """Standard deviation of the noise of one draw in the statistic's own units."""
        return self.noise_stddev / self.scale

    def event_of(self, n_draws: int) -> Gaussian | Repeated:
        """Event of the first `n_draws` draws."""
        draw = Gaussian(
            statistic=self.name,
            l2_sensitivity=self.l2_sensitivity,
            noise_stddev=self.noise_stddev,
            n_values=int(np.prod(self.shape)),
            adjacency=Adjacency.ADD_REMOVE,
        )
        return draw if self.n_draws == 1 else Repeated(event=draw, count=n_draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """All looks at the rows of a measurement, in the order in which they are drawn."""

    mu: float
    statistics: tuple[PlannedStatistic, ...]

    def __getitem__(self, name: str) -> PlannedStatistic:
        """Return what was planned under a name; KeyError if there is nothing."""
        for planned in self.statistics:
            if planned.name == name:
                return planned
        raise KeyError(f"expected a planned statistic, found {name!r}")

    @property
    def event(self) -> Composed:
        """The composition of all planned events."""
        return Composed(events=tuple(one.event_of(one.n_draws) for one in self.statistics))


def plan_measurement(requests: Sequence[SumRequest], *, mu: float) -> MeasurementPlan:
    """Split ``mu`` over the requests and calibrate each noise scale.

    Requests are in the order of drawing; names are unique, shares positive. It is a
    ConfigurationError if the noise of a part does not fit on the grid.

    Privacy
    -------
    Adaptive composition of Gaussian mechanisms: ``mu**2`` is the sum of the parts (Dong, Roth and
    Su 2019, Corollary 3.3), of which each of n draws has 1 / n. Parts are rounded to more noise.
    """
    if len({request.name for request in requests}) != len(requests):
        raise ValueError("expected every statistic of a plan to have its own name")
    total = sum(request.share for request in requests)
    planned = []
    for request in requests:
        part = mu * float(np.sqrt(request.share / total)) * (1.0 - _GIVEN_AWAY)
        noise_stddev = discrete_noise_stddev(
            l2_sensitivity=request.l2_sensitivity, mu=part / math.sqrt(request.n_draws)
        )
        planned.append(PlannedStatistic(**asdict(request), noise_stddev=noise_stddev, mu=part))
    return MeasurementPlan(mu=mu, statistics=tuple(planned))
