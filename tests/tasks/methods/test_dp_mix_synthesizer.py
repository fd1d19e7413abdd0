import math

import numpy as np
import pytest
from measuring import NoNoise, domain_with, released_of

from privacy.errors import ConfigurationError
from privacy.randomness import SeededNoise
from tasks.measurement.labelled_vectors import matched_labels
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.dp_mix.config import DPMixConfig
from tasks.methods.dp_mix.synthesizer import CENTRED, MIXTURES, NOISE, DPMix


def sums_of(released):
    names = sorted(name for name in released if name.startswith(MIXTURES))
    return np.concatenate([released[name] for name in names])


def dp_mix(small, **settings):
    defaults = {
        "order_of_mixture": 20,
        "declared_patients": 100,
        "n_mixtures": 400,
        "one_hot_levels": 0,
    }
    return DPMix(small.domain, DPMixConfig(**defaults | settings))


def test_plan_is_one_series_at_the_public_rate(small):
    method = dp_mix(small)
    [planned] = method.plan(mu=1.0).statistics
    assert (planned.name, planned.shape, planned.n_draws) == (MIXTURES, (6,), 400)
    assert planned.sampling_probability == 0.2
    # Records one away from the middle at most, and a label with a fifth of the square.
    assert planned.l2_sensitivity == pytest.approx(math.sqrt(1.0 / 0.8) * SUM_SCALE)


def test_sums_have_the_moments_of_poisson_samples(small):
    rows = small.rows(small.patients(100, 0))
    method = dp_mix(small)
    released = released_of(method, rows, NoNoise(1), mu=3.0)
    sums = sums_of(released)
    vectors = method._vectors().vectors(rows.codes, rows.label) * rows.weight[:, None]
    per_patient = np.zeros((100, 6))
    np.add.at(per_patient, rows.patient, vectors)
    mean, variance = 0.2 * per_patient.sum(axis=0), 0.16 * (per_patient**2).sum(axis=0)
    # 400 independent draws: five standard errors of the mean and of the variance either way.
    errors = 5 * np.sqrt(variance / 400)
    assert (np.abs(sums.mean(axis=0) - mean) <= errors).all()
    np.testing.assert_allclose(sums.var(axis=0), variance, rtol=5 * math.sqrt(2 / 400))


def test_numbers_are_those_of_the_mixtures_and_every_mixture_is_used():
    domain = domain_with(256, 256, numeric=(0, 1))
    method = DPMix(domain, DPMixConfig(n_mixtures=30, declared_patients=30))
    sums = np.random.default_rng(0).normal(4.0, 2.0, (30, 4))
    released = {f"{MIXTURES}_000001": sums, NOISE: np.array(1.0), CENTRED: np.array(True)}
    codes, labels = method.sample(released, n_rows=75, rng=np.random.default_rng(0))
    vectors = method._vectors()
    expected, expected_labels = vectors.decode(sums)
    np.testing.assert_array_equal(expected_labels, matched_labels(vectors.label_counts(sums)))
    assert {(*c, y) for c, y in zip(codes.tolist(), labels, strict=True)} == {
        (*c, y) for c, y in zip(expected.tolist(), expected_labels, strict=True)
    }


def test_columns_of_a_sample_depend_on_the_label_as_in_the_table(small):
    # Ward and lab say the label; age says nothing.
    patients = [(0, [((n % 3, n % 2, 2 * (n % 2)), n % 2)]) for n in range(1_200)]
    method = dp_mix(
        small, declared_patients=1_200, order_of_mixture=8, n_mixtures=500, one_hot_levels=32
    )
    released = released_of(method, small.rows(patients), SeededNoise(0), mu=8.0)
    codes, labels = method.sample(released, n_rows=4_000, rng=np.random.default_rng(0))
    assert labels.mean() == pytest.approx(0.5, abs=0.05)
    assert (codes[:, 1] == labels).mean() > 0.75
    assert (codes[:, 2] == 2 * labels).mean() > 0.75
    np.testing.assert_allclose(np.bincount(codes[:, 0]) / 4_000, [1 / 3] * 3, atol=0.05)


@pytest.mark.parametrize("declared", [400, 1_600, 6_400])
def test_a_wrong_number_of_declared_patients_does_not_shrink_the_records(small, declared):
    # Everybody has the largest bin of lab: divided by too much it would be the middle one.
    patients = [(0, [((0, 0, 2), 0)])] * 1_600
    method = dp_mix(small, declared_patients=declared, order_of_mixture=200, n_mixtures=50)
    released = released_of(method, small.rows(patients), NoNoise(0), mu=3.0)
    codes, labels = method.sample(released, n_rows=50, rng=np.random.default_rng(0))
    assert (codes[:, 2] == 2).mean() > 0.9
    assert (labels == 0).all()


def test_more_records_in_a_mixture_than_patients_is_refused_before_any_plan(small):
    with pytest.raises(ConfigurationError) as refused:
        dp_mix(small, order_of_mixture=101)
    assert str(refused.value) == (
        "ORDER_OF_MIXTURE_INVALID: expected order_of_mixture of at most declared_patients, so "
        "that the sampling probability is at most 1, found 101 and 100; lower order_of_mixture "
        "or declare more patients"
    )
