r"""Booking draws from samples of the patients in the currency of the ledger, ``mu**2 / 2``.

A ledger adds up ``mu**2`` of releases that are chosen in view of earlier ones. A series of draws
from Poisson samples has no ``mu`` that shows the gain of sampling: far out in the tail its loss is
that of draws from everybody. So it is given the ``mu`` that holds outside an event of probability
``s = SLACK_DELTA``, and ``s`` is added to delta. Below, ``delta_M(eps)`` is the smallest delta of
``M`` at ``eps``, the larger of both orders of every pair of neighbours, and ``delta_mu(eps)`` is
that of ``N(0, 1)`` against ``N(mu, 1)`` (`privacy.accountants.gaussian.gaussian_delta`).

**Definition.** ``M`` is (mu, s)-approximately Gaussian DP if for both orders of every pair of
neighbours its trade-off function is at least that of ``C(mu, s)``: a coin with probability ``s``
for publishing which of the two tables it is, and a draw that is mu-GDP otherwise.

**Condition.** ``delta_M(eps) <= max(delta_mu(eps), s)`` for every ``eps >= 0``.

**(a) One series alone.** *At every delta >= s, the epsilon of mu-GDP holds for* ``M``, *without any
loss:* ``delta_M(eps) <= max(delta_mu(eps), s) <= delta`` where ``delta_mu(eps) <= delta``. []

**(b) With anything else.** *Let at most* ``k`` *events be booked by the condition and all others be
Gaussian, each event with its* ``mu`` *chosen in view of all earlier outputs, the sum of* ``mu**2``
*never above a cap* ``m**2`` *that was set in advance. Then everything together is (eps, delta)-DP
with* ``delta = 1 - (1-s)**k (1 - delta_m(eps)) <= k s + (1 - k s) delta_m(eps)``.

*Proof.* (1) The condition implies the definition. The divergence of ``C(mu, s)`` at ``eps`` is
``s + (1-s) delta_mu(eps)``, which is at least ``max(delta_mu(eps), s)``. This holds for every
``eps >= 0`` and both orders. ``C`` is the same in both orders, and for any pair
``delta_{P,Q}(-eps) = 1 - e**-eps + e**-eps delta_{Q,P}(eps)``, so it holds for negative ``eps``
too; all of these together say that the trade-off function lies above that of ``C`` (Dong, Roth and
Su, "Gaussian differential privacy", J. R. Stat. Soc. B 84, 2022, arXiv 2019, Proposition 2.12).
(2) Fix a pair of neighbours. By Blackwell's theorem (Dong, Roth and Su, Theorem 2.10; Blackwell,
"Equivalent comparisons of experiments", 1953) the output of ``M`` on both tables is one and the
same post-processing of the output of ``C(mu, s)``. So every event, given the earlier outputs, is
post-processing of its own coin and its own Gaussian draw. (3) Toss ``k`` coins of probability ``s``
in advance and let the next event that is booked by the condition use the next coin. Coins are
independent of the table and of all else, and so is the event ``N`` that none shows a table, of
probability ``(1-s)**k``. Given ``N``, all that happens is post-processing of Gaussian draws chosen
one after the other under the cap, which is m-GDP (Smith and Thakurta, "Fully adaptive composition
for Gaussian differential privacy", 2022: the filter for ``mu**2``). So for every set ``S``
of outcomes ``P(S) <= 1 - P(N) + P(N) P(S | N)
<= 1 - P(N) + P(N) (e**eps Q(S | N) + delta_m(eps)) <= e**eps Q(S) + 1 - P(N) (1 - delta_m(eps))``,
since ``P(N) = Q(N)``. []

**Where the condition is checked.** The pairs of a Poisson-sampled Gaussian draw for addition and
for removal are dominated each by a pair of one dimension, and dominating pairs compose, also where
a draw is chosen in view of earlier outputs as long as its probability and its noise multiplier were
fixed (Zhu, Dong and Wang, "Optimal accounting of differential privacy via characteristic function",
AISTATS 2022, Theorem 10, Theorem 11 and Proposition 30). So ``delta_M`` of a series, in both
orders, is bounded by `privacy.accountants.loss_distribution.series_curve`. Both sides of the
condition fall with ``eps``: on each interval of a grid the bound at its left end is held against
``delta_mu`` at its right end, rounded down, up to where the bound is at most ``s`` for good. Other
draws of the release between those of a series change nothing: a product of dominating pairs does
not depend on the order of its factors, and its factor for the series is post-processing of ``C``.

**Series one by one.** Every series of an event, however deep, has its own ``mu`` and its own ``s``.
So the amounts that a plan gives to its statistics add up to the amount of the plan exactly.

**Not for replacement.** A replacement is a removal and an addition, and what leaks in the first of
two steps is multiplied by ``e**eps`` in the second: the slack of a group has no fixed bound.
`privacy.accountants.renyi` has the value for replacement.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.special import erfcx, ndtr

from privacy.accountants.gaussian import (
    GaussianAccountant,
    gaussian_delta,
    gaussian_epsilon,
    unsampled_draw,
)
from privacy.accountants.loss_distribution import series_curve
from privacy.arrays import Floats
from privacy.errors import ConfigurationError
from privacy.events import Draw, Event, PoissonSampledGaussianEvent, UnsampledDraw, counted_draws
from privacy.parameters import Adjacency

SLACK_DELTA = 1e-9
"""Probability that a series of sampled draws may add to delta."""

MAX_SERIES = 64
"""Largest number of series of sampled draws in one event: each costs a second to account for."""

LEAST_SERIES_MU = 1e-6
"""No series is booked below it, although its slack alone may cover a tiny sample."""

_CURVE_POINTS = 4000
_ULP = 2.0**-50


def series_mu(*, sampling_probability: float, noise_multiplier: float, steps: int) -> float:
    """Smallest ``mu`` for which a series of Poisson samples meets the condition, rounded up.

    Probability and multiplier are those of each draw, in the ranges of
    `privacy.events.PoissonSampledGaussianEvent`, and there is at least one step. The multiplier is
    rounded down to a part in a million, so that noise which differs by a rounding is booked at the
    same amount. The result is for the slack `SLACK_DELTA` and add or remove; never above the exact
    value without sampling, ``sqrt(steps) / noise_multiplier``, nor below the smaller of that and
    `LEAST_SERIES_MU`.
    """
    everybody = math.sqrt(steps) / noise_multiplier * (1 + _ULP)
    fraction, exponent = math.frexp(noise_multiplier)
    rounded = math.ldexp(math.floor(fraction * 2**20) / 2**20, exponent)
    return min(everybody, _series_mu(float(sampling_probability), rounded, steps))


@lru_cache(maxsize=1024)
def _series_mu(probability: float, noise_multiplier: float, steps: int) -> float:
    curve = series_curve(
        sampling_probability=probability,
        noise_multiplier=noise_multiplier,
        steps=steps,
        floor=SLACK_DELTA,
        points=_CURVE_POINTS,
    )
    if curve is None:
        return math.inf
    epsilon, delta = curve

    def meets(mu: float) -> bool:
        right_end = np.maximum(_gaussian_delta_below(epsilon[1:], mu), SLACK_DELTA)
        return bool(np.all(delta[:-1] <= right_end))

    low, high = LEAST_SERIES_MU, math.sqrt(steps) / noise_multiplier * 2
    if meets(low):
        return low
    if not meets(high):
        return math.inf
    while high > low * (1 + 2.0**-30):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _gaussian_delta_below(epsilon: Floats, mu: float) -> Floats:
    """Return `gaussian_delta` for an array, with every rounding to the other side: down."""
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    tail_margin = np.minimum(1.0, _ULP * (4 + b))
    density_margin = np.minimum(1.0, _ULP * (4 + np.abs(a) * b))
    density = np.exp(-np.minimum(a * a / 2, 800.0)) / math.sqrt(2 * math.pi)
    scale = math.sqrt(math.pi / 2)
    upper = scale * erfcx(b / math.sqrt(2)) * (1 + tail_margin)
    # For a below 0 the first form overflows and is not used.
    first = scale * erfcx(np.maximum(a, 0.0) / math.sqrt(2)) * (1 - tail_margin) - upper
    above = density * (1 - density_margin) * first
    below = ndtr(-a) * (1 - tail_margin) - (density + 1e-300) * upper * (1 + density_margin)
    found = np.where(a >= 0, above, below)
    # Below this, numbers lose digits.
    result: Floats = np.where(found > 1e-300, found, 0.0)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateGaussianAccountant(GaussianAccountant):
    """Total of the events so far; immutable, `compose` returns a new accountant.

    Where no draw is made from a sample it is `GaussianAccountant`, to the last digit; ``mu`` is
    that of everything composed given that nothing leaks. The adjacency is add or remove where there
    are samples.

    ``n_series`` is the number of series of sampled draws of one patient so far, each with its
    slack; ``slack_adds`` says whether the slack is added to delta, (b) of the module, or is a lower
    limit of it, (a).
    """

    n_series: int = 0
    slack_adds: bool = False

    def compose(self, event: Event) -> Self:
        """Return the accountant after one more event on the same patients.

        The event may have been chosen in view of earlier outputs, as long as a total of ``mu**2``
        and a number of series are fixed in advance and every event that is executed is composed.
        Sampling probability, noise multiplier and length of a series are fixed before its first
        draw. The ConfigurationError is ``ACCOUNTANT_UNSUITABLE`` if a draw is made from a sample
        and the question is about replacement, or an event has more than `MAX_SERIES` series, and
        ``ADJACENCY_MISMATCH`` as of `GaussianAccountant`.
        """
        draws = list(counted_draws(event))
        n_sampled = sum(isinstance(draw, PoissonSampledGaussianEvent) for draw, _ in draws)
        if n_sampled == 0:
            gaussian = GaussianAccountant(adjacency=self.adjacency, mu_squared=self.mu_squared)
            mu_squared = gaussian.compose(event).mu_squared
            adds = self.slack_adds or (self.n_series > 0 and bool(draws))
            return replace(self, mu_squared=mu_squared, slack_adds=adds)
        if n_sampled > MAX_SERIES:
            raise ConfigurationError(
                "ACCOUNTANT_UNSUITABLE",
                f"expected at most {MAX_SERIES} series of sampled draws in an event, found more",
            )
        # Squares of mu with the number of slacks: what came before, then each draw.
        so_far = (self.mu_squared, self.n_series)
        parts = [so_far] * any(so_far) + [self._booked(draw, times) for draw, times in draws]
        total = parts[0][0]
        if len(parts) > 1:
            total = math.fsum(mu_squared for mu_squared, _ in parts) * (1 + _ULP)
        n_series = sum(slacks for _, slacks in parts)
        return replace(
            self,
            mu_squared=math.nextafter(total, math.inf),
            n_series=n_series,
            slack_adds=self.slack_adds or (n_series > 0 and len(parts) > 1),
        )

    def _booked(self, draw: Draw, times: int) -> tuple[float, int]:
        """Return ``mu**2`` and the number of slacks of a draw that happens so often."""
        exact = GaussianAccountant(adjacency=self.adjacency)
        if isinstance(draw, UnsampledDraw):
            return times * exact.compose(draw).mu_squared * (1 + _ULP), 0
        everybody = times * exact.compose(unsampled_draw(draw)).mu_squared * (1 + _ULP)
        if draw.sampling_probability == 1:
            return everybody, 0
        if self.adjacency is not Adjacency.ADD_REMOVE:
            raise ConfigurationError(
                "ACCOUNTANT_UNSUITABLE",
                f"expected the question about add_remove for the samples of {draw.statistic!r}, "
                "found replace_one, for which their slack has no fixed bound; use "
                "privacy.accountants.renyi",
            )
        booked = series_mu(
            sampling_probability=draw.sampling_probability,
            noise_multiplier=draw.noise_multiplier,
            steps=times,
        )
        return min(booked * booked * (1 + _ULP), everybody), 1

    @property
    def slack_delta(self) -> float:
        """Sum of the slacks: the number of series times `SLACK_DELTA`."""
        return self.n_series * SLACK_DELTA

    def epsilon(self, *, delta: float) -> float:
        """Return epsilon at `delta`, rounded up.

        It is that of mu-GDP at `delta` by (a), or at ``(delta - slack) / (1 - slack)`` by (b).
        Delta is from `slack_delta` to below 1, above it where several events are composed
        (ConfigurationError).
        """
        slack = self.slack_delta * (1 + _ULP) if self.slack_adds else self.slack_delta
        if delta < slack or (self.slack_adds and delta == slack):
            raise ConfigurationError(
                "ACCOUNTANT_ARGUMENT_INVALID",
                f"expected delta above the slack of the sampled draws, {self.slack_delta!r}, "
                f"found {delta!r}; choose a larger delta",
            )
        if self.slack_adds:
            delta = (delta - slack) * (1 - _ULP)
        return gaussian_epsilon(delta=delta, mu=self.mu)

    def delta(self, *, epsilon: float) -> float:
        """Return delta at `epsilon`, at least 0 and in nats, rounded up; see `epsilon`."""
        delta = gaussian_delta(epsilon=epsilon, mu=self.mu)
        if not self.slack_adds:
            return max(delta, self.slack_delta)
        return min(1.0, (delta + self.slack_delta * (1 - delta)) * (1 + _ULP))
