r"""Accounting by zero-concentrated differential privacy (zCDP).

A mechanism is rho-zCDP if its Renyi divergence of every order ``alpha > 1`` between neighbours is
at most ``rho alpha``. Costs add up, also when each event depends on earlier outputs; a (discrete)
Gaussian draw costs exactly ``S**2 / (2 sigma**2)`` (Bun and Steinke, "Concentrated differential
privacy", TCC 2016, Lemma 2.3 and Proposition 2.4; Canonne, Kamath and Steinke, "The discrete
Gaussian for differential privacy", NeurIPS 2020, Theorem 4).

The conversion to (epsilon, delta) loses about 7 percent of the noise against the exact curve of
`privacy.accountants.gaussian`, so a release is never stated with it: it is the independent second
opinion, and the bound for mechanisms of which nothing but ``rho`` is known.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from privacy.accountants.bounded_range import selection_rho
from privacy.accountants.gaussian import (
    MIN_DELTA,
    adjacency_factor,
    group_size,
    refuse_sampled,
)
from privacy.errors import ConfigurationError
from privacy.events import (
    ComposedEvent,
    Event,
    ExponentialMechanismEvent,
    ParallelEvent,
    RepeatedEvent,
    UnsampledDraw,
)
from privacy.parameters import Adjacency

_ULP = 2.0**-50
_LEAST_LOG_EXCESS, _LARGEST_LOG_EXCESS = math.log(1e-9), math.log(1e12)
"""Range of ``log(alpha - 1)`` that is searched; any order in it gives a valid bound."""


def _require(condition: bool, expected: str, found: float) -> None:
    if not condition:
        raise ConfigurationError(
            "ACCOUNTANT_ARGUMENT_INVALID", f"expected {expected}, found {found!r}"
        )


def _least(bound: Callable[[float], float]) -> float:
    """Return the least value found of a function of ``alpha - 1`` with one minimum."""
    low, high = _LEAST_LOG_EXCESS, _LARGEST_LOG_EXCESS
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if bound(math.exp(left)) <= bound(math.exp(right)):
            high = right
        else:
            low = left
    return min(bound(math.exp(low)), bound(math.exp(high)))


def zcdp_epsilon(*, delta: float, rho: float) -> float:
    """Return epsilon of a rho-zCDP mechanism at `delta`, rounded up.

    The least over ``alpha`` of ``rho alpha + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1)``
    (Canonne, Kamath and Steinke 2020, Proposition 12).

    Parameters
    ----------
    delta : float
        From `privacy.accountants.gaussian.MIN_DELTA` to below 1.
    rho : float
        In nats, at least 0.

    Returns
    -------
    float
        At least 0. Valid whatever order the search ends at.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range.
    """
    _require(MIN_DELTA <= delta < 1, f"delta from {MIN_DELTA} to below 1", delta)
    _require(math.isfinite(rho) and rho >= 0, "rho to be finite and at least 0", rho)
    if rho == 0:
        return 0.0

    def bound(excess: float) -> float:
        # Each term with its own margin, upwards: the terms nearly cancel for some orders.
        log_alpha = math.log1p(excess)
        cost = rho * (1 + excess)
        gain = math.log(excess) - log_alpha
        tail = (math.log(delta) + log_alpha) / excess
        margin = _ULP * (cost + abs(gain) + abs(math.log(delta)) / excess + log_alpha / excess)
        return cost + gain - tail + margin

    return max(0.0, _least(bound))


def zcdp_delta(*, epsilon: float, rho: float) -> float:
    """Return delta of a rho-zCDP mechanism at `epsilon`, rounded up.

    The least over ``alpha`` of ``exp((alpha - 1)(rho alpha - epsilon)) / alpha
    (1 - 1/alpha)**(alpha - 1)`` (Canonne, Kamath and Steinke 2020, Proposition 12).

    Parameters
    ----------
    epsilon : float
        At least 0, in nats.
    rho : float
        In nats, at least 0.

    Returns
    -------
    float
        From above 0 to 1; 0 only if `rho` is 0.

    Raises
    ------
    ConfigurationError
        If an argument is negative, infinite or not a number.
    """
    _require(math.isfinite(epsilon) and epsilon >= 0, "epsilon to be finite and >= 0", epsilon)
    _require(math.isfinite(rho) and rho >= 0, "rho to be finite and at least 0", rho)
    if rho == 0:
        return 0.0

    def log_bound(excess: float) -> float:
        log_alpha = math.log1p(excess)
        cost = excess * rho * (1 + excess)
        gain = excess * epsilon
        shape = excess * (math.log(excess) - log_alpha)
        margin = _ULP * (cost + gain + abs(shape) + log_alpha)
        return cost - gain + shape - log_alpha + margin

    return min(1.0, max(math.exp(min(0.0, _least(log_bound))) * (1 + _ULP), sys.float_info.min))


def zcdp_rho(*, epsilon: float, delta: float) -> float:
    """Return the largest rho for which rho-zCDP implies (epsilon, delta)-DP, rounded down.

    Parameters
    ----------
    epsilon : float
        Above 0, in nats.
    delta : float
        As in `zcdp_epsilon`.

    Returns
    -------
    float
        Found by bisection; `zcdp_epsilon` at the result is at most `epsilon`.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range.
    """
    _require(math.isfinite(epsilon) and epsilon > 0, "epsilon to be finite and above 0", epsilon)
    low, high = 0.0, epsilon
    while zcdp_epsilon(delta=delta, rho=high) <= epsilon:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high and high - low > 2.0**-50 * high:
        if zcdp_epsilon(delta=delta, rho=middle) <= epsilon:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class ZCDPAccountant:
    """Total of the events so far; immutable, `compose` returns a new accountant.

    Parameters
    ----------
    adjacency : Adjacency
        The neighbours for which the guarantee is asked. From add or remove to replacement ``rho``
        grows four times (group privacy, Bun and Steinke 2016, Proposition 1.9).
    rho : float
        Sum of the costs so far.
    """

    adjacency: Adjacency
    rho: float = 0.0

    def compose(self, event: Event) -> "ZCDPAccountant":
        """Return the accountant after one more event on the same patients.

        Raises
        ------
        ConfigurationError
            If an adjacency does not allow it, or a draw is made from a sample of the patients.
        """
        return replace(self, rho=math.nextafter(self.rho + self._cost(event), math.inf))

    def _cost(self, event: Event) -> float:
        if isinstance(event, UnsampledDraw):
            factor = adjacency_factor(
                proven_for=event.adjacency, asked=self.adjacency, statistic=event.statistic
            )
            if isinstance(event, ExponentialMechanismEvent):
                return factor * selection_rho(event.epsilon) * (1 + _ULP)
            # The same for noise on the integers, without any loss for the grid.
            ratio = event.l2_sensitivity / event.noise_stddev
            return factor * ratio * ratio / 2 * (1 + _ULP)
        if isinstance(event, ComposedEvent):
            return math.fsum(map(self._cost, event.events)) * (1 + _ULP)
        if isinstance(event, ParallelEvent):
            return max(map(self._cost, event.events), default=0.0)
        if isinstance(event, RepeatedEvent):
            return event.count * self._cost(event.event) * (1 + _ULP)
        raise refuse_sampled(event)

    def for_group(self, n_patients: int) -> "ZCDPAccountant":
        """Return the accountant of neighbours that differ in `n_patients` patients: ``k**2 rho``.

        Raises
        ------
        ConfigurationError
            If the size is not an integer from 1 to a million.
        """
        return replace(self, rho=self.rho * group_size(n_patients) ** 2 * (1 + _ULP))

    def epsilon(self, *, delta: float) -> float:
        """Return epsilon at `delta`, see `zcdp_epsilon`."""
        return zcdp_epsilon(delta=delta, rho=self.rho)

    def delta(self, *, epsilon: float) -> float:
        """Return delta at `epsilon`, see `zcdp_delta`."""
        return zcdp_delta(epsilon=epsilon, rho=self.rho)
