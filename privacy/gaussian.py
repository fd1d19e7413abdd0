r"""Exact accounting of Gaussian mechanisms by Gaussian differential privacy.

A mechanism is mu-GDP if telling two neighbours apart from its output is at least as hard as
telling ``N(0, 1)`` from ``N(mu, 1)``. Gaussian mechanisms compose exactly: the squares of their
``mu`` add up, also when each depends on earlier outputs (Dong, Roth and Su, "Gaussian differential
privacy", J. R. Stat. Soc. B 84, 2022, Theorem 2.7 and Corollary 3.3), and (epsilon, delta) follow
in closed form (Corollary 2.13).

**Discrete noise.** Let the statistic ``c`` be an integer vector of l2 sensitivity ``S`` and add to
each coordinate noise of the discrete Gaussian ``N_Z(0, sigma**2)``. The result is mu-GDP with
``mu = S / sqrt(sigma**2 - s**2)``, ``s = SMOOTHING_STDDEV = 4``.

*Proof.* Draw ``x ~ N(c, sigma**2 - s**2)``, a Gaussian mechanism with exactly this ``mu``; then
draw ``z`` on the integers with probability ``exp(-(z-x)**2 / (2 s**2)) / g(x)``,
``g(x) = sum_k exp(-(k-x)**2 / (2 s**2))``, which is post-processing. By Poisson summation
``g(x) = s sqrt(2 pi) (1 + 2 sum_{k>=1} q**(k*k) cos(2 pi k x))`` with ``q = exp(-2 pi**2 s**2)``,
so ``g(x) / (s sqrt(2 pi))`` lies in ``[1-t, 1+t]``, ``t = 2 q / (1-q)``. If ``g`` were constant,
the convolution of the two Gaussians would give ``P(z)`` proportional to
``exp(-(z-c)**2 / (2 sigma**2))``; hence ``P(z)`` and ``N_Z(c, sigma**2)(z)`` differ by a factor in
``[(1-t)/(1+t), (1+t)/(1-t)]`` (Peikert, "An efficient and parallel Gaussian sampler for lattices",
CRYPTO 2010, Theorem 3.1). For ``s = 4``, ``t < 1e-136``: over ``n`` coordinates, in all draws
together, epsilon grows by less than ``8 n t``, which for ``n < 2**63`` is below one rounding of
epsilon, and delta by the same factor; both are rounded up by more than that. []

Accounting by zero-concentrated DP needs about 7 percent more noise, as its conversion is loose.
"""

import math
import sys
from dataclasses import dataclass, replace
from typing import Self

from scipy.special import erfcx, ndtr

from privacy.errors import refusals, require
from privacy.events import Event, Gaussian, counted_draws
from privacy.parameters import Adjacency

refusal = refusals(__package__)

SMOOTHING_STDDEV = 4.0
"""Width, in grid units, of the post-processing step in the proof for discrete noise."""

MIN_DELTA = 1e-300
"""Smallest delta that is computed; below it double precision underflows."""

_ULP = 2.0**-50
"""Eight units of rounding: the margin given for each elementary function."""


def _require_mu(mu: float) -> None:
    require(math.isfinite(mu) and mu >= 0, "mu to be finite and at least 0", mu)


def gaussian_delta(*, epsilon: float, mu: float) -> float:
    r"""Smallest delta for which a mu-GDP mechanism is (epsilon, delta)-DP, rounded up.

    ``delta = Phi(-a) - exp(epsilon) Phi(-b)`` with ``a = epsilon/mu - mu/2``, ``b = a + mu``
    (Dong, Roth and Su 2022, Corollary 2.13). Both terms are written with the density of the
    normal law at ``a``, ``exp(epsilon) Phi(-b) = phi(a) Phi(-b) / phi(b)``, and with scaled
    complementary error functions, so that nothing overflows and little cancels.

    Epsilon is in nats; both are finite and at least 0 (ConfigurationError). The result exceeds the
    exact value by at most a small multiple of the rounding error; it is 0 only if `mu` is 0.
    """
    require(math.isfinite(epsilon) and epsilon >= 0, "epsilon to be finite and >= 0", epsilon)
    _require_mu(mu)
    if mu == 0:
        return 0.0
    ratio = epsilon / mu
    a, b = ratio - mu / 2, ratio + mu / 2
    if not math.isfinite(b):
        return sys.float_info.min
    # Rounding of a and b enters the density through its exponent, by |a| b, and each tail by b.
    tail_margin = min(1.0, _ULP * (4 + b))
    density_margin = min(1.0, _ULP * (4 + abs(a) * b))
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi) if abs(a) < 40 else 0.0
    upper = density * _mills_ratio(b) * (1 - tail_margin)
    if a >= 0:
        difference = _mills_ratio(a) * (1 + tail_margin) - _mills_ratio(b) * (1 - tail_margin)
        delta = density * (1 + density_margin) * difference
    else:
        delta = float(ndtr(-a)) * (1 + tail_margin) - upper * (1 - density_margin)
    return min(1.0, max(delta, sys.float_info.min))


def _mills_ratio(x: float) -> float:
    """Return ``Phi(-x) / phi(x)`` for ``x >= 0``."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def gaussian_epsilon(*, delta: float, mu: float) -> float:
    """Smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP, rounded up.

    By bisection: its `gaussian_delta` is at most `delta`, in [`MIN_DELTA`, 1) (ConfigurationError).
    """
    require(MIN_DELTA <= delta < 1, f"delta from {MIN_DELTA} to below 1", delta)
    _require_mu(mu)
    if gaussian_delta(epsilon=0.0, mu=mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon=high, mu=mu) > delta:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if not low < middle < high or high - low < 2.0**-52 * high:
            return math.nextafter(high, math.inf)
        too_small = gaussian_delta(epsilon=middle, mu=mu) > delta
        low, high = (middle, high) if too_small else (low, middle)


def privacy_loss_bound(*, chance: float, mu: float) -> float:
    r"""Privacy loss that a mu-GDP mechanism exceeds with a probability of at most `chance`.

    The loss of an output is the logarithm of the ratio of its probabilities if the hypothesis holds
    and if not; an observer's odds of a true hypothesis grow by its exponential. (epsilon, delta)
    does not bound the chance of a loss above epsilon by delta. This function gives such a bound.

    *Proof.* Let ``E`` be the outputs of a loss above ``L``, ``P`` their probability where the
    hypothesis holds, ``Q`` where it does not. Then ``Q(E) <= exp(-L) P(E)``, and for every epsilon
    below ``L`` ``P(E) <= exp(epsilon) Q(E) + delta(epsilon)``. So ``P(E)`` is at most
    ``delta(epsilon) / (1 - exp(epsilon - L))``; the least of these is taken over a grid. It holds
    for whatever is computed from the output as well. []

    A single Gaussian exceeds ``L`` with the smaller probability ``Phi(mu/2 - L/mu)``. That bound
    does not extend to an output that is processed further, or to draws that depend on earlier ones.

    `chance` is from 1e-12 to below 1 (ConfigurationError). The loss is in nats, rounded up.
    """
    require(1e-12 <= chance < 1, "chance from 1e-12 to below 1", chance)
    _require_mu(mu)
    if mu == 0:
        return 0.0

    def exceeded(loss: float) -> float:
        gaps = (2.0 ** (step / 8) for step in range(-96, 41))
        return min(
            gaussian_delta(epsilon=loss - gap, mu=mu) / -math.expm1(-gap)
            for gap in (*(gap for gap in gaps if gap < loss), loss)
        )

    low, high = 0.0, 1.0
    while exceeded(high) > chance:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeded(middle) > chance else (low, middle)
    return high


def event_mu_squared(event: Gaussian) -> float:
    """``mu**2 = S**2 / (sigma**2 - SMOOTHING_STDDEV**2)`` for the event's adjacency, rounded up."""
    variance = event.noise_stddev**2 - SMOOTHING_STDDEV**2
    return event.l2_sensitivity**2 / variance * (1 + _ULP)


def adjacency_factor(draw: Gaussian, *, asked: Adjacency) -> float:
    """Factor of ``mu**2`` from the adjacency of a sensitivity to the one that is asked about.

    It is 1 if they are equal, and 4 from add or remove to replacement, which is a removal followed
    by an addition and doubles ``mu`` (group privacy, Dong, Roth and Su 2022, Theorem 2.14). A
    sensitivity for replacement implies none for add or remove (ConfigurationError).
    """
    if draw.adjacency is asked:
        return 1.0
    if asked is Adjacency.REPLACE_ONE:
        return 4.0
    found = {"statistic": draw.statistic, "asked": asked.value, "found": draw.adjacency.value}
    raise refusal("ADJACENCY_MISMATCH", **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianAccountant:
    """Immutable total of composed events under one adjacency; see `adjacency_factor`."""

    adjacency: Adjacency
    mu_squared: float = 0.0

    def compose(self, event: Event) -> Self:
        """Return the accountant after one more event on the same patients.

        The event may depend on earlier outputs, as long as a total is fixed in advance and every
        executed event is composed. ConfigurationError as by `adjacency_factor`.
        """
        each = (
            times * event_mu_squared(draw) * adjacency_factor(draw, asked=self.adjacency)
            for draw, times in counted_draws(event)
        )
        cost = math.fsum(each) * (1 + _ULP)
        return replace(self, mu_squared=math.nextafter(self.mu_squared + cost, math.inf))

    @property
    def mu(self) -> float:
        """Parameter of Gaussian differential privacy of everything composed, rounded up."""
        return math.nextafter(math.sqrt(self.mu_squared), math.inf) if self.mu_squared else 0.0

    @property
    def rho(self) -> float:
        """``mu**2 / 2``, the amount that adds up in the ledger."""
        return self.mu_squared / 2

    def epsilon(self, *, delta: float) -> float:
        """Return epsilon at `delta`, see `gaussian_epsilon`."""
        return gaussian_epsilon(delta=delta, mu=self.mu)
