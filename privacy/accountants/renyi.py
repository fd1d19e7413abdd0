r"""Accounting by Renyi differential privacy (RDP), for draws from samples of the patients.

The state is a bound of the Renyi divergence between neighbours for each order in `ORDERS`. Bounds
add up, also when each event depends on earlier outputs with all parameters fixed in advance
(Mironov, "Renyi differential privacy", CSF 2017, Proposition 1). The engine is dp-accounting: for
Poisson samples and integer orders the exact divergence of the worse direction (Mironov, Talwar and
Zhang, "Renyi differential privacy of the sampled Gaussian mechanism", 2019, Section 3.3).

**Integer orders only.** For other orders dp-accounting sums a series by absolute values, which is
valid and up to orders of magnitude too large.

**Replacement.** dp-accounting's RDP takes a noise multiplier for the adjacency that it is asked
about, where its PLD doubles the sensitivity by itself. Neither is relied on: a Gaussian event for
add or remove costs four times its ``mu**2``, and a Poisson sample, whose bound is proven for add or
remove only, is a removal followed by an addition,
``D_a(P|Q) <= 2a/(2a-1) D_{2a-1}(P|R) + D_{2a}(R|Q)`` (Bun and Steinke, TCC 2016, Lemma 5.2 with
``k = 2``; tight for the Gaussian mechanism).

**Rounding.** The engine works in double precision and neither up nor down. Against 200 digits it
was found at most 3e-10 too small, relatively; every bound is raised by `_RELATIVE_MARGIN` and
`_ABSOLUTE_MARGIN`.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from privacy import events
from privacy.accountants.bounded_range import selection_rho
from privacy.accountants.gaussian import MIN_DELTA, adjacency_factor, event_mu_squared, require
from privacy.arrays import Floats
from privacy.parameters import Adjacency

ORDERS = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 512, 1024)
"""Orders of the bounds. Any set is valid; a missing order costs a little accuracy."""

_RELATIVE_MARGIN = 1e-8
_ABSOLUTE_MARGIN = 1e-11


@lru_cache(maxsize=64)
def _poisson_bound(noise_multiplier: float, probability: float, orders: tuple[int, ...]) -> Floats:
    """Bounds for one draw under add or remove, raised by the margins; read-only, being cached."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    noise = dp_event.GaussianDpEvent(noise_multiplier)
    event = dp_event.PoissonSampledDpEvent(probability, noise)
    engine = RdpAccountant(orders=list(orders))  # of the neighbours of add or remove
    # The engine takes logarithms of differences that may vanish; the result is checked here.
    with np.errstate(all="ignore"):
        engine.compose(event)
    bound = np.where(np.isnan(engine.rdp), np.inf, np.maximum(engine.rdp, 0.0))
    bound = bound * (1 + _RELATIVE_MARGIN) + _ABSOLUTE_MARGIN
    bound.setflags(write=False)
    return bound


def _sampled_bound(event: events.PoissonSampledGaussianEvent, asked: Adjacency) -> Floats:
    """Bound of one sampled draw for each order, never above that of the draw from all patients."""
    factor = adjacency_factor(event, asked=asked)
    noise = float(event.noise_multiplier)
    orders = np.asarray(ORDERS, dtype=np.float64)
    probability = float(event.sampling_probability)
    if asked is Adjacency.ADD_REMOVE:
        amplified = _poisson_bound(noise, probability, ORDERS)
    else:
        removal = _poisson_bound(noise, probability, tuple(2 * a - 1 for a in ORDERS))
        addition = _poisson_bound(noise, probability, tuple(2 * a for a in ORDERS))
        amplified = 2 * orders / (2 * orders - 1) * removal + addition
    # Renyi divergence is quasi-convex in the pair, so a sample never costs more than everybody.
    everybody = factor * orders / (2 * noise**2) * (1 + _RELATIVE_MARGIN)
    return np.minimum(amplified, everybody)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiAccountant:
    """Renyi divergences for each of `ORDERS`, of an adjacency; `compose` returns a new one."""

    adjacency: Adjacency
    bounds: tuple[float, ...] = field(default=(0.0,) * len(ORDERS))

    def compose(self, event: events.Event) -> "RenyiAccountant":
        """Return the accountant after an event fixed in advance; see `adjacency_factor`."""
        costs = [times * self._cost(draw) for draw, times in events.counted_draws(event)]
        total = np.sum([np.asarray(self.bounds), *costs], axis=0)
        total *= 1 + (1 + len(costs)) * 2.0**-50
        return replace(self, bounds=tuple(map(float, total)))

    def _cost(self, draw: events.Draw) -> Floats:
        if isinstance(draw, events.PoissonSampledGaussianEvent):
            return _sampled_bound(draw, self.adjacency)
        # zCDP is a bound at every order; for a selection it is below that of its mu.
        rho = (
            selection_rho(draw.epsilon)
            if isinstance(draw, events.ExponentialMechanismEvent)
            else event_mu_squared(draw) / 2
        )
        factor = adjacency_factor(draw, asked=self.adjacency)
        return factor * rho * np.asarray(ORDERS, dtype=np.float64) * (1 + 2.0**-50)

    def epsilon(self, *, delta: float) -> float:
        """Return epsilon at `delta`, rounded up.

        The least over the orders of the conversion of Canonne, Kamath and Steinke ("The discrete
        Gaussian for differential privacy", NeurIPS 2020, Proposition 12). Delta is from
        `privacy.accountants.gaussian.MIN_DELTA` to below 1 (ConfigurationError).
        """
        require(MIN_DELTA <= delta < 1, f"delta from {MIN_DELTA} to below 1", delta)
        if not any(self.bounds):
            return 0.0
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        # The engine squares delta and takes logarithms; the margin is far above its rounding.
        epsilon = float(compute_epsilon(ORDERS, self.bounds, delta * (1 - 1e-12))[0])
        return epsilon + 1e-12 * max(1.0, epsilon) if epsilon > 0 else 0.0
