"""The tight epsilon of a schedule fixed in advance, for add or remove, by loss distributions."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

from dp_accounting.pld import privacy_loss_distribution

from privacy.accountants.gaussian import (
    adjacency_factor,
    event_mu_squared,
    gaussian_delta,
    gaussian_epsilon,
)
from privacy.accountants.loss_distribution import DELTA_MARGIN
from privacy.events import PoissonSampledGaussianEvent, counted_draws
from privacy.parameters import Adjacency


@lru_cache(maxsize=64)
def _distribution(mu_squared, steps):
    grid_step = _grid_step(mu_squared, steps)
    parts = []
    if mu_squared > 0:
        noise = math.nextafter(1 / math.nextafter(math.sqrt(mu_squared), math.inf), 0.0)
        parts.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                standard_deviation=noise,
                pessimistic_estimate=True,
                value_discretization_interval=grid_step,
            )
        )
    for (probability, noise), count in steps:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=noise,
            pessimistic_estimate=True,
            value_discretization_interval=grid_step,
            sampling_prob=probability,
        )
        parts.append(one.self_compose(count))
    return reduce(lambda first, second: first.compose(second), parts)


def _mean_loss(step):
    probability, noise = step
    amplified = math.log1p(probability**2 * math.expm1(min(noise**-2, 700.0)))
    return min(0.5 / noise**2, amplified)


def _total_loss(mu_squared, steps):
    return mu_squared / 2 + sum(count * _mean_loss(step) for step, count in steps)


def _grid_step(mu_squared, steps):
    loss = _total_loss(mu_squared, steps)
    spread, least = math.sqrt(2 * loss), min(math.sqrt(2 * _mean_loss(step)) for step, _ in steps)
    largest = max(0.5 / noise**2 + 12 / noise for (_, noise), _ in steps)
    reach = 2 * (loss + 12 * spread + largest)
    return max(min(1e-4, spread / 2000, least / 10), 1e-7, reach / 1e6)


@dataclass(frozen=True)
class TightAccountant:
    """Total of the events so far; deltas from 1e-10."""

    mu_squared: float = 0.0
    steps: tuple = ()

    def compose(self, event):
        mu_squared, steps = self.mu_squared, Counter(dict(self.steps))
        for draw, times in counted_draws(event):
            if isinstance(draw, PoissonSampledGaussianEvent):
                steps[float(draw.sampling_probability), float(draw.noise_multiplier)] += times
            else:
                factor = adjacency_factor(draw, asked=Adjacency.ADD_REMOVE)
                mu_squared += times * event_mu_squared(draw) * factor
        return replace(self, mu_squared=mu_squared, steps=tuple(sorted(steps.items())))

    @property
    def of_everybody(self):
        """Mu as if every step read all patients: no sample costs more."""
        total = self.mu_squared + sum(count / noise**2 for (_, noise), count in self.steps)
        return math.sqrt(total) * (1 + 2.0**-50)

    @property
    def has_distribution(self):
        return bool(self.steps) and _total_loss(self.mu_squared, self.steps) <= 1e4

    def epsilon(self, *, delta):
        everybody = gaussian_epsilon(delta=delta, mu=self.of_everybody)
        if not self.has_distribution:
            return everybody
        found = _distribution(self.mu_squared, self.steps).get_epsilon_for_delta(
            delta - DELTA_MARGIN
        )
        return min(everybody, float(found) * (1 + 1e-12) + 1e-12)

    def delta(self, *, epsilon):
        everybody = gaussian_delta(epsilon=epsilon, mu=self.of_everybody)
        if not self.has_distribution:
            return everybody
        found = _distribution(self.mu_squared, self.steps).get_delta_for_epsilon(epsilon)
        return min(everybody, max(float(found), 0.0) + DELTA_MARGIN)
