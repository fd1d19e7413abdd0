"""Draws that the tests of the accountants book: a Gaussian one, a sample, a series of samples."""

from privacy.events import GaussianEvent, PoissonSampledGaussianEvent, RepeatedEvent
from privacy.parameters import Adjacency


def draw(mu, adjacency=Adjacency.ADD_REMOVE):
    return GaussianEvent(
        statistic="g", l2_sensitivity=mu, noise_stddev=1.0, n_values=1, adjacency=adjacency
    )


def poisson(probability, noise):
    return PoissonSampledGaussianEvent(
        statistic="p", noise_multiplier=noise, sampling_probability=probability, n_values=1
    )


def series(probability, noise, count):
    return RepeatedEvent(event=poisson(probability, noise), count=count)
