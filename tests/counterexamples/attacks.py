"""Findings of an attack: from events seen on two tables, or from the exact sums of a run."""

import math

import numpy as np
from measuring import transcript_of
from scipy.stats import beta


def rates(hits, alarms, n_runs, *, confidence=0.999):
    """Least probability of the event on the first table, largest on the second."""
    error = (1 - confidence) / 2
    least = beta.ppf(error, hits, n_runs - hits + 1) if hits else 0.0
    most = beta.ppf(1 - error, alarms + 1, n_runs - alarms) if alarms < n_runs else 1.0
    return least, most


def measured_epsilon(first, second, *, threshold, delta):
    """Lower bound of epsilon from scores on both tables, at a threshold fixed in advance."""
    hits, alarms = (int((np.asarray(scores) > threshold).sum()) for scores in (first, second))
    least, most = rates(hits, alarms, len(first))
    return math.log(max(least - delta, 1e-300) / most)


def mu_between(method, first, second, *, mu):
    """Mu that a run of a proven method has between two tables, at the arguments it released."""
    draws, _ = transcript_of(method, first, mu=mu)
    loss = 0.0
    for noisy, contribution, public in draws:
        moved = contribution(first, **public) - contribution(second, **public)
        loss += float((moved.astype(float) ** 2).sum()) / (noisy.event.noise_stddev**2 - 16)
    return math.sqrt(loss)


def least_noise(epsilon_of, claim, *, between, within):
    """Noise, rounded up, of which an epsilon is no more than a claim."""
    low, high = between
    while high - low > within:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle) > claim else (low, middle)
    return high
