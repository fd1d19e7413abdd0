import math

import numpy as np
import pytest

from privacy.randomness import SeededNoise
from tasks.measurement.curator import Curator, InProcessCompute
from tasks.measurement.synthesizer import measure
from tasks.synthesizers.naive_bayes import HISTOGRAMS, NaiveBayes


class NoNoise:
    tainted = True

    def discrete_gaussian(self, shape, *, noise_stddev):
        return np.zeros(shape, dtype=np.int64)


def released_of(small, patients, noise_source, mu=1e4):
    method = NaiveBayes(small.domain)
    compute = InProcessCompute([small.rows(patients)])
    curator = Curator(plan=method.plan(mu=mu), compute=compute, noise_source=noise_source)
    return method, curator, measure(method, curator, mu=mu)


def test_equals_a_hand_calculation_without_noise(small):
    patients = [
        (0, [((0, 0, 0), 0)]),
        (1, [((0, 1, 1), 0)]),
        (2, [((3, 1, 2), 1), ((1, 1, 2), 1)]),
        (3, [((3, 1, 2), 0), ((2, 0, 0), 1)]),
    ]
    method, curator, released = released_of(small, patients, NoNoise())
    # Label 0 has 2.5 patients, label 1 has 1.5.
    np.testing.assert_allclose(released["label_frequencies"], [0.625, 0.375], atol=1e-6)
    no = [2 / 2.5, 0, 0, 0.5 / 2.5, 1 / 2.5, 1.5 / 2.5, 1 / 2.5, 1 / 2.5, 0.5 / 2.5]
    yes = [0, 0.5 / 1.5, 0.5 / 1.5, 0.5 / 1.5, 0.5 / 1.5, 1 / 1.5, 0.5 / 1.5, 0, 1 / 1.5]
    np.testing.assert_allclose(released["marginals"], [no, yes], atol=1e-6)
    assert curator.event == method.plan(mu=1e4).event


def test_samples_follow_the_released_probabilities(small):
    method, _, released = released_of(small, small.patients(300, 0), NoNoise())
    codes, labels = method.sample(released, n_rows=30_000, rng=np.random.default_rng(0))
    assert (codes.dtype, codes.shape, labels.shape) == (np.uint16, (30_000, 3), (30_000,))
    frequencies = np.bincount(labels, minlength=2) / 30_000
    np.testing.assert_allclose(frequencies, released["label_frequencies"], atol=0.015)
    for label in (0, 1):
        shares = np.concatenate(
            [
                np.bincount(codes[labels == label, j], minlength=n) / (labels == label).sum()
                for j, n in enumerate(small.domain.n_codes)
            ]
        )
        np.testing.assert_allclose(shares, released["marginals"][label], atol=0.025)


def test_more_noise_than_signal_still_gives_probabilities(small):
    _, _, released = released_of(small, small.patients(1, 0), SeededNoise(0), mu=0.01)
    assert released["label_frequencies"].sum() == pytest.approx(1.0)
    assert (released["label_frequencies"] > 0).all()
    assert released["marginals"].min() >= 0.0
    assert released["marginals"].sum() == pytest.approx(2 * 3)


def test_noise_of_the_histograms_has_the_planned_size(small):
    method = NaiveBayes(small.domain)
    plan = method.plan(mu=0.5)
    [statistic] = plan.statistics
    assert statistic.name == HISTOGRAMS
    # Sensitivity one, so one over mu in the statistic's own units.
    assert statistic.unit_noise_stddev == pytest.approx(2.0, rel=1e-6)
    empty = InProcessCompute([small.rows([])])
    draws = []
    for seed in range(100):
        curator = Curator(
            plan=plan,
            compute=empty,
            noise_source=SeededNoise(seed),
            seal=lambda _, noisy: draws.append(noisy.values / 2**24),
        )
        measure(method, curator, mu=0.5)
    values = np.concatenate(draws, axis=None)
    # 1,800 values: the standard deviation is known to 1.7 percent; five of these either way.
    assert values.std() == pytest.approx(2.0, rel=5 / math.sqrt(2 * values.size))
