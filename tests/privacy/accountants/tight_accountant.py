"""The tight epsilon of a schedule fixed in advance, for add or remove, by loss distributions."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce

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

GRID_STEP = 1e-4
"""Of the losses: fine against those of one draw in every schedule that is asked about."""


@lru_cache(maxsize=64)
def _distribution(mu, steps):
    distribution_of = partial(
        privacy_loss_distribution.from_gaussian_mechanism,
        pessimistic_estimate=True,
        value_discretization_interval=GRID_STEP,
    )
    parts = [
        distribution_of(noise, sampling_prob=probability).self_compose(count)
        for (probability, noise), count in steps
    ]
    if mu > 0:
        parts.append(distribution_of(1 / mu))
    return reduce(lambda first, second: first.compose(second), parts)


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
    def mu(self):
        return math.sqrt(self.mu_squared) * (1 + 2.0**-50)

    def epsilon(self, *, delta):
        if not self.steps:
            return gaussian_epsilon(delta=delta, mu=self.mu)
        distribution = _distribution(self.mu, self.steps)
        found = distribution.get_epsilon_for_delta(delta - DELTA_MARGIN)
        return float(found) * (1 + 1e-12) + 1e-12

    def delta(self, *, epsilon):
        if not self.steps:
            return gaussian_delta(epsilon=epsilon, mu=self.mu)
        distribution = _distribution(self.mu, self.steps)
        return max(float(distribution.get_delta_for_epsilon(epsilon)), 0.0) + DELTA_MARGIN
