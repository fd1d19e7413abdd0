"""The plan of a measurement: every look at the rows, its sensitivity and noise, set in advance.

A plan is made from public settings alone, before the private table is opened. It fixes how the
budget is split and every noise scale; a curator draws exactly what the plan says, once each.
Three things can be planned: a noisy statistic; a series of noisy statistics, each on a fresh
secret sample of the patients; and the choice of one of several public candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from privacy.accountants.bounded_range import selection_epsilon
from privacy.accountants.calibration import booked_noise_multiplier, discrete_noise_stddev
from privacy.accountants.gaussian import (
    SMOOTHING_STDDEV,
    GaussianAccountant,
    discrete_noise_multiplier,
)
from privacy.errors import IntegrityError
from privacy.events import (
    MIN_DISCRETE_NOISE_STDDEV,
    ComposedEvent,
    DiscreteGaussianEvent,
    ExponentialMechanismEvent,
    PoissonSampledGaussianEvent,
    RepeatedEvent,
)
from privacy.parameters import Adjacency
from privacy.sensitivity import SUM_GRID_BITS, weighted_sum_l2_sensitivity

_GIVEN_AWAY = 1e-12
"""Part of each share that rounding in a composition may use up."""

_SLACK_SHARE = 5e-4
"""Part of ``mu`` that a plan with sampled draws leaves for the slack of their booking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticRequest:
    """What a method wants to measure.

    The shape is that of the released array, of one draw where there are several. The sensitivity is
    the proven Euclidean one of one draw under add or remove of one patient, in grid points; of a
    sampled draw, given that the patient is in the sample. The exact sum is an integer array in
    units of ``1 / scale``. A statistic gets ``share / sum of shares`` of ``mu**2``. Each draw is on
    its own sample, in which a patient is with a public probability, and with its own noise.
    """

    name: str
    shape: tuple[int, ...]
    l2_sensitivity: float
    scale: int
    share: float
    sampling_probability: float = 1.0
    n_draws: int = 1

    @property
    def is_series(self) -> bool:
        """Whether it is drawn on samples of the patients, or more than once."""
        return self.n_draws > 1 or self.sampling_probability < 1.0


def sum_request(
    name: str,
    shape: tuple[int, ...],
    *,
    share: float,
    bound: float = 1.0,
    sampling_probability: float = 1.0,
    n_draws: int = 1,
) -> StatisticRequest:
    """Request a weighted sum of vectors of norm at most `bound`, in units of ``2**-SUM_GRID_BITS``.

    Privacy
    -------
    Sensitivity of `privacy.sensitivity.weighted_sum_l2_sensitivity`, with its margin for rounding.
    """
    scale = 2**SUM_GRID_BITS
    return StatisticRequest(
        name=name,
        shape=shape,
        l2_sensitivity=weighted_sum_l2_sensitivity(bound=bound, scale=scale),
        scale=scale,
        share=share,
        sampling_probability=sampling_probability,
        n_draws=n_draws,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRequest:
    """A choice among public candidates; a patient moves a score by so many grid points at most."""

    name: str
    n_candidates: int
    score_sensitivity: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatistic(StatisticRequest):
    """A statistic with its noise. ``noise_stddev`` and ``l2_sensitivity`` are in grid units."""

    noise_stddev: float
    mu: float

    @property
    def unit_noise_stddev(self) -> float:
        """Standard deviation of the noise of one draw in the statistic's own units."""
        return self.noise_stddev / self.scale

    @property
    def event(self) -> DiscreteGaussianEvent | RepeatedEvent:
        """The event that drawing this statistic, all of it, will emit."""
        return self.event_of(self.n_draws)

    def event_of(self, n_draws: int) -> DiscreteGaussianEvent | RepeatedEvent:
        """Event of the first draws of a series, or of the one draw of a statistic."""
        n_values = int(np.prod(self.shape))
        if not self.is_series:
            return DiscreteGaussianEvent(
                statistic=self.name,
                l2_sensitivity=self.l2_sensitivity,
                noise_stddev=self.noise_stddev,
                n_values=n_values,
                adjacency=Adjacency.ADD_REMOVE,
            )
        step = PoissonSampledGaussianEvent(
            statistic=self.name,
            noise_multiplier=discrete_noise_multiplier(
                l2_sensitivity=self.l2_sensitivity, noise_stddev=self.noise_stddev
            ),
            sampling_probability=self.sampling_probability,
            n_values=n_values,
        )
        return RepeatedEvent(event=step, count=n_draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSelection(SelectionRequest):
    """A choice with the epsilon of its exponential mechanism."""

    epsilon: float
    mu: float

    @property
    def event(self) -> ExponentialMechanismEvent:
        """The event that choosing will emit."""
        return ExponentialMechanismEvent(
            statistic=self.name, epsilon=self.epsilon, n_candidates=self.n_candidates
        )


Request = StatisticRequest | SelectionRequest
Planned = PlannedStatistic | PlannedSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """All looks at the rows of a measurement, in the order in which they are drawn."""

    mu: float
    statistics: tuple[Planned, ...]

    def __getitem__(self, name: str) -> PlannedStatistic:
        planned = self.planned(name)
        if not isinstance(planned, PlannedStatistic):
            raise KeyError(f"expected a planned statistic, found the choice {name!r}")
        return planned

    def selection(self, name: str) -> PlannedSelection:
        """Return a planned choice; KeyError if there is none of this name."""
        planned = self.planned(name)
        if not isinstance(planned, PlannedSelection):
            raise KeyError(f"expected a planned choice, found the statistic {name!r}")
        return planned

    @property
    def event(self) -> ComposedEvent:
        """The composition of all planned events."""
        return ComposedEvent(events=tuple(planned.event for planned in self.statistics))

    def planned(self, name: str) -> Planned:
        """Return what was planned under a name; KeyError if there is nothing."""
        for planned in self.statistics:
            if planned.name == name:
                return planned
        raise KeyError(f"expected a planned statistic, found {name!r}")


def plan_measurement(requests: Sequence[Request], *, mu: float) -> MeasurementPlan:
    """Split ``mu`` over what is requested and calibrate each noise scale.

    Requests are in the order of drawing; names are unique, shares positive. It is a
    ConfigurationError if the noise of a series that meets its part is outside the range of the
    accountants.

    Privacy
    -------
    Adaptive composition of Gaussian mechanisms: ``mu**2`` is the sum of the parts (Dong, Roth and
    Su 2019, Corollary 3.3). A series is booked by `privacy.accountants.approximate_gaussian`, a
    choice by the ``mu`` of its epsilon. Every part is rounded to more noise, never to less.
    """
    if len({request.name for request in requests}) != len(requests):
        raise ValueError("expected every statistic of a plan to have its own name")
    total = sum(request.share for request in requests)
    sampled = any(
        isinstance(request, StatisticRequest) and request.sampling_probability < 1.0
        for request in requests
    )
    # With other draws beside it, the slack of a series raises delta by as much at the same mu.
    usable = mu * (1.0 - _SLACK_SHARE) if sampled and len(requests) > 1 else mu
    planned: list[Planned] = []
    for request in requests:
        part = usable * float(np.sqrt(request.share / total)) * (1.0 - _GIVEN_AWAY)
        if isinstance(request, SelectionRequest):
            epsilon = selection_epsilon(mu=part)
            planned.append(PlannedSelection(**asdict(request), epsilon=epsilon, mu=part))
        else:
            planned.append(_plan_statistic(request, part))
    return MeasurementPlan(mu=mu, statistics=tuple(planned))


def _plan_statistic(request: StatisticRequest, mu: float) -> PlannedStatistic:
    if request.is_series:
        multiplier = booked_noise_multiplier(
            sampling_probability=request.sampling_probability, steps=request.n_draws, mu=mu
        )
        noise_stddev = _series_noise_stddev(request.l2_sensitivity, multiplier)
    else:
        noise_stddev = discrete_noise_stddev(l2_sensitivity=request.l2_sensitivity, mu=mu)
    return PlannedStatistic(**asdict(request), noise_stddev=noise_stddev, mu=mu)


def _series_noise_stddev(l2_sensitivity: float, noise_multiplier: float) -> float:
    """Discrete noise that is no worse than continuous noise of this multiplier."""
    noise_stddev = max(
        math.hypot(l2_sensitivity * noise_multiplier, SMOOTHING_STDDEV), MIN_DISCRETE_NOISE_STDDEV
    )
    while (
        discrete_noise_multiplier(l2_sensitivity=l2_sensitivity, noise_stddev=noise_stddev)
        < noise_multiplier
    ):
        noise_stddev *= 1.0 + 2.0**-50
    return noise_stddev


def hold_against(plan: MeasurementPlan, happened: ComposedEvent, *, mu: float) -> float:
    """Return the ``mu`` left; IntegrityError if an event or the plan is not as planned."""
    planned = plan.event.events
    if happened.events != planned[: len(happened.events)]:
        raise IntegrityError(
            "PLAN_BROKEN",
            "expected exactly the planned draws so far, found another draw; nothing is released",
        )
    accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
    if accountant.compose(plan.event).mu > mu:
        raise IntegrityError(
            "PLAN_OVER_BUDGET", "expected a plan within the budget, found more; nothing is released"
        )
    spent = accountant.compose(happened).mu
    return math.sqrt(max(mu**2 - spent**2, 0.0))
