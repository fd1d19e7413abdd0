r"""Accounting by privacy loss distributions (PLD): the tight value for a schedule fixed in advance.

The engine is dp-accounting: the loss of a dominating pair is put on a grid and composed by FFT
(Koskela, Jalko and Honkela 2020; Doroshenko et al., "Connect the dots", PETS 2022, whose estimates
are pessimistic whatever the grid is). For a Poisson sample the pairs for addition and for removal
are composed separately and the worse total counts (Zhu, Dong and Wang, "Optimal accounting of
differential privacy via characteristic function", AISTATS 2022, Theorem 11 and Proposition 30).

**Fixed schedules only.** Distributions do not add up when later parameters depend on earlier
outputs, so no ledger books one. What a ledger books is read off the distribution of one series,
`series_curve`, by `privacy.accountants.approximate_gaussian`.

**Grid.** `_Schedule.grid_step`: at most 1e-4, finer where all losses are small, coarser where a
million points would not hold them. `series_curve` takes `_Schedule.coarse_grid_step`, up to ten
times as wide and as much quicker, which raises ``mu`` by about a part in 1,000. The step changes
the accuracy, never the side.

**Margin for the FFT.** The engine's pessimism ends at the rounding of its transform, some 1e-15 of
probability: without a margin it puts epsilon of a known Gaussian 1e-4 too low at delta = 1e-12.
Each delta is raised by `DELTA_MARGIN`, and deltas below `MIN_PLD_DELTA` are refused.

**Replacement.** The engine doubles the sensitivity for replacement by itself. It is therefore only
ever asked about add or remove, with a Gaussian part of the right ``mu``. Sampled draws are refused
for replacement, for which no proof of a dominating pair is at hand: `RenyiAccountant` covers them.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.accountants.gaussian import (
    adjacency_factor,
    event_mu_squared,
    gaussian_delta,
    gaussian_epsilon,
    require,
)
from privacy.errors import ConfigurationError
from privacy.events import Event, PoissonSampledGaussianEvent, counted_draws
from privacy.parameters import Adjacency

MIN_PLD_DELTA = 1e-10
"""Least delta that is answered; below it the rounding of the engine would be felt."""

DELTA_MARGIN = 1e-12
"""Added to every delta: a thousand times the rounding of the engine."""

MAX_STEPS = 10**6
"""Largest number of sampled steps of one patient."""

_GRID_POINTS = 1e6
_TAIL_STDDEVS = 12.0
_LARGEST_MEAN_LOSS = 1e4
"""In nats; beyond it the engine overflows, and the value without sampling is given."""

_LARGEST_EPSILON = 500.0
"""In nats; the engine computes many deltas at once by ``exp(epsilon)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """What happens to one patient: one Gaussian part and counted sampled steps.

    Parameters
    ----------
    mu_squared
        Of all draws without sampling together; they compose exactly.
    steps
        Sorted ``((sampling_probability, noise_multiplier), count)``.
    """

    mu_squared: float = 0.0
    steps: tuple[tuple[tuple[float, float], int], ...] = ()

    def mean_loss(self) -> float:
        """Return a bound of the mean loss, and for small losses of half its variance."""
        return self.mu_squared / 2 + sum(count * _mean_loss(step) for step, count in self.steps)

    def grid_step(self) -> float:
        """Return a step of the grid that suits the losses, of one draw and of all together."""
        return self._grid_step(min(1e-4, self._spread() / 2000, self._least_spread() / 10))

    def coarse_grid_step(self) -> float:
        """Return a step for `series_curve`.

        The engine keeps the mean of ``exp(-loss)`` when it moves a loss to the grid, so it adds a
        variance of at most ``step**2 / 4`` per draw: here a part in 200 at most.
        """
        return self._grid_step(min(self._spread() / 100, self._least_spread() / 10))

    def _grid_step(self, wanted: float) -> float:
        largest = max(0.5 / noise**2 + _TAIL_STDDEVS / noise for (_, noise), _ in self.steps)
        reach = 2 * (self.mean_loss() + _TAIL_STDDEVS * self._spread() + largest)
        return max(wanted, 1e-7, reach / _GRID_POINTS)

    def _spread(self) -> float:
        return math.sqrt(2 * self.mean_loss())

    def _least_spread(self) -> float:
        return min(math.sqrt(2 * _mean_loss(step)) for step, _ in self.steps)

    def unsampled_mu(self) -> float:
        """Return ``mu`` of the schedule as if every step read all patients, rounded up.

        The divergences of a mixture of pairs are at most those of the worst pair, and with a
        sample that leaves the patient out the pair is equal: no sample costs more than everybody.
        """
        total = self.mu_squared + sum(count / noise**2 for (_, noise), count in self.steps)
        return math.sqrt(total) * (1 + 2.0**-50) if total else 0.0


def _mean_loss(step: tuple[float, float]) -> float:
    # The divergence of order 2 bounds the mean.
    probability, noise = step
    amplified = math.log1p(probability**2 * math.expm1(min(noise**-2, 700.0)))
    return min(0.5 / noise**2, amplified)


@lru_cache(maxsize=64)
def _distribution(schedule: _Schedule) -> Any:
    """Return the distribution of the loss on the fine grid."""
    return _distribution_on_grid(schedule, schedule.grid_step())


def _distribution_on_grid(schedule: _Schedule, grid_step: float) -> Any:
    """Return dp-accounting's distribution of the loss, pessimistic, for add or remove."""
    from dp_accounting.pld import privacy_loss_distribution

    parts = []
    if schedule.mu_squared > 0:
        noise = math.nextafter(1 / math.nextafter(math.sqrt(schedule.mu_squared), math.inf), 0.0)
        parts.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                standard_deviation=noise,
                pessimistic_estimate=True,
                value_discretization_interval=grid_step,
            )
        )
    for (probability, noise), count in schedule.steps:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=noise,
            pessimistic_estimate=True,
            value_discretization_interval=grid_step,
            sampling_prob=probability,
        )
        parts.append(one.self_compose(count))
    return reduce(lambda first, second: first.compose(second), parts)


def series_curve(
    *, sampling_probability: float, noise_multiplier: float, steps: int, floor: float, points: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return bounds of delta of a series of Poisson samples, for add or remove, at many epsilons.

    Parameters
    ----------
    sampling_probability, noise_multiplier : float
        Of each draw, in the ranges of `privacy.events.PoissonSampledGaussianEvent`.
    steps : int
        Number of draws, at least 1.
    floor : float
        Delta down to which the curve is wanted, at least `MIN_PLD_DELTA`.
    points : int
        Number of epsilons.

    Returns
    -------
    epsilon : float64 array of shape (points,)
        From 0, evenly spaced.
    delta : float64 array of shape (points,)
        Bound of delta in both directions, with the margin for rounding; the last one is at most
        `floor`. Delta decreases, so a bound holds at every larger epsilon too.

    None stands for a series that the engine does not carry: more than `MAX_STEPS` draws, or losses
    so large that they overflow or that it puts them at infinity.
    """
    step = (float(sampling_probability), float(noise_multiplier))
    schedule = _Schedule(steps=((step, steps),))
    if steps > MAX_STEPS or schedule.mean_loss() > _LARGEST_MEAN_LOSS:
        return None
    distribution = _distribution_on_grid(schedule, schedule.coarse_grid_step())
    last = float(distribution.get_epsilon_for_delta(floor - 4 * DELTA_MARGIN))
    if last > _LARGEST_EPSILON:
        return None
    epsilon = np.linspace(0.0, last, points)
    found = np.asarray(distribution.get_delta_for_epsilon(epsilon), dtype=np.float64)
    # The engine adds up to a million terms; the rest is the margin for its transform.
    delta = np.maximum(found, 0.0) * (1 + 1e-9) + DELTA_MARGIN
    return (epsilon, delta) if delta[-1] <= floor else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDistributionAccountant:
    """Total of the events so far; immutable, `compose` returns a new accountant.

    Parameters
    ----------
    adjacency : Adjacency
        The neighbours for which the guarantee is asked.
    schedule : _Schedule
        What was drawn so far; made by `compose`.
    """

    adjacency: Adjacency
    schedule: _Schedule = _Schedule()

    def compose(self, event: Event) -> "LossDistributionAccountant":
        """Return the accountant after one more event on the same patients.

        Parameters
        ----------
        event : Event
            Part of a schedule that was fixed before the first draw.

        Raises
        ------
        ConfigurationError
            If a draw is sampled and the question is about replacement, or the adjacency of an
            event does not allow it, or there are more than `MAX_STEPS` sampled steps.
        """
        mu_squared, steps = self.schedule.mu_squared, Counter(dict(self.schedule.steps))
        for draw, times in counted_draws(event):
            if not isinstance(draw, PoissonSampledGaussianEvent):
                cost = times * event_mu_squared(draw) * adjacency_factor(draw, asked=self.adjacency)
                mu_squared = (mu_squared + cost) * (1 + 2.0**-50)
            elif self.adjacency is Adjacency.ADD_REMOVE:
                step = (float(draw.sampling_probability), float(draw.noise_multiplier))
                steps[step] += times
            else:
                raise ConfigurationError(
                    "ACCOUNTANT_UNSUITABLE",
                    "expected the question about add_remove for the Poisson samples of "
                    f"{draw.statistic!r}, found replace_one; use RenyiAccountant",
                )
        if steps.total() > MAX_STEPS:
            raise ConfigurationError(
                "ACCOUNTANT_UNSUITABLE",
                f"expected at most {MAX_STEPS} sampled steps, found more; use RenyiAccountant",
            )
        schedule = _Schedule(mu_squared=mu_squared, steps=tuple(sorted(steps.items())))
        return replace(self, schedule=schedule)

    def epsilon(self, *, delta: float) -> float:
        """Return epsilon at `delta`, rounded up.

        Parameters
        ----------
        delta : float
            From `MIN_PLD_DELTA` to below 1.

        Returns
        -------
        float
            At least 0, at most the value without sampling.

        Raises
        ------
        ConfigurationError
            If `delta` is outside its range.
        """
        require(MIN_PLD_DELTA <= delta < 1, f"delta from {MIN_PLD_DELTA} to below 1", delta)
        everybody = gaussian_epsilon(delta=delta, mu=self.schedule.unsampled_mu())
        if not self.schedule.steps or self.schedule.mean_loss() > _LARGEST_MEAN_LOSS:
            return everybody
        epsilon = float(_distribution(self.schedule).get_epsilon_for_delta(delta - DELTA_MARGIN))
        return min(everybody, epsilon * (1 + 1e-12) + 1e-12)

    def delta(self, *, epsilon: float) -> float:
        """Return delta at `epsilon`, rounded up.

        Parameters
        ----------
        epsilon : float
            At least 0, in nats.

        Returns
        -------
        float
            At most the value without sampling.

        Raises
        ------
        ConfigurationError
            If `epsilon` is negative, infinite or not a number.
        """
        require(math.isfinite(epsilon) and epsilon >= 0, "epsilon to be finite and >= 0", epsilon)
        everybody = gaussian_delta(epsilon=epsilon, mu=self.schedule.unsampled_mu())
        if not self.schedule.steps or self.schedule.mean_loss() > _LARGEST_MEAN_LOSS:
            return everybody
        delta = float(_distribution(self.schedule).get_delta_for_epsilon(epsilon))
        return min(everybody, max(delta, 0.0) + DELTA_MARGIN)
