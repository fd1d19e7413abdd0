import math

import numpy as np
import pytest
from measuring import assert_valid, random_records

from privacy.parameters import PrivacyParameters
from tasks.measurement.method_settings import LabelNoiseSettings
from tasks.measurement.vectors import VectorMap
from tasks.methods.dp_mix.config import DPMixConfig
from tasks.papers import dp_mix as printed
from tasks.papers.dp_mix import PaperDPMix, printed_epsilon, printed_noise_multiplier

PARAMETERS = PrivacyParameters(epsilon=10.0, delta=1e-5)


def dp_mix(small, *, parameters=PARAMETERS, ratio=1.0, **settings):
    config = DPMixConfig(**settings, published=LabelNoiseSettings(label_noise_ratio=ratio))
    return PaperDPMix(small.domain, config, parameters)


@pytest.mark.parametrize("ratio", [1.0, 0.25, 4.0])
def test_noise_solves_the_printed_formula(small, ratio):
    order, n_records = 8, 500
    method = dp_mix(small, order_of_mixture=order, n_mixtures=200, ratio=ratio)
    feature_stddev, label_stddev = method.noise_stddevs(n_records)
    assert label_stddev == pytest.approx(ratio * feature_stddev)
    # Remark 1 of the DP-CDA paper at alpha = 1: d_x = 4 coordinates, d_y = 2 labels.
    printed = (4 / feature_stddev**2 + 2 / label_stddev**2) / (2 * order**2)
    noise_multiplier = printed_noise_multiplier(
        parameters=PARAMETERS, order_of_mixture=order, n_records=n_records, n_mixtures=200
    )
    assert printed == pytest.approx(1 / (2 * noise_multiplier**2))


def test_bisection_ends_just_inside_epsilon():
    schedule = {"order_of_mixture": 4, "n_records": 2_000, "n_mixtures": 300}
    noise = printed_noise_multiplier(parameters=PARAMETERS, **schedule)
    assert printed_epsilon(noise_multiplier=noise, delta=1e-5, **schedule) <= 10.0
    assert printed_epsilon(noise_multiplier=noise * 0.998, delta=1e-5, **schedule) > 10.0


def test_bound_at_order_two_is_the_printed_one(monkeypatch):
    # Wang, Balle and Kasiviswanathan at alpha = 2: log(1 + p^2 min(4(e^e2 - 1), 2 e^e2)).
    monkeypatch.setattr(printed, "ORDERS", (2,))
    for noise_multiplier in (0.5, 3.0):
        p, e2 = 5 / 1000, 2 / (2 * noise_multiplier**2)
        draw = math.log(1 + p**2 * min(4 * (math.exp(e2) - 1), 2 * math.exp(e2)))
        claimed = printed_epsilon(
            noise_multiplier=noise_multiplier,
            order_of_mixture=5,
            n_records=1000,
            n_mixtures=40,
            delta=1e-5,
        )
        assert claimed == pytest.approx(40 * draw + math.log(1e5), rel=1e-9)


def test_mixtures_have_the_moments_of_samples_without_replacement(small):
    n_records, order, n_mixtures = 60, 6, 3_000
    codes, labels = random_records(small.domain, n_records, 0)
    method = dp_mix(small, order_of_mixture=order, n_mixtures=n_mixtures)
    feature_stddev, label_stddev = method.noise_stddevs(n_records)
    parts = list(method.mixtures(codes, labels, np.random.default_rng(1)))
    assert [len(features) for features, _ in parts] == [1_000] * 3
    vectors = VectorMap(small.domain).vectors(codes)
    for mixed, exact, noise in (
        (np.concatenate([x for x, _ in parts]), vectors, feature_stddev),
        (np.concatenate([y for _, y in parts]), np.eye(2)[labels], label_stddev),
    ):
        # Variance of a mean of l of N without replacement, and the noise on top.
        correction = (n_records - order) / (n_records - 1)
        variance = exact.var(axis=0) / order * correction + noise**2
        errors = 5 * np.sqrt(variance / n_mixtures)
        assert (np.abs(mixed.mean(axis=0) - exact.mean(axis=0)) <= errors).all()
        np.testing.assert_allclose(mixed.var(axis=0), variance, rtol=5 * math.sqrt(2 / n_mixtures))


def test_single_records_come_back_without_noise(small, monkeypatch):
    codes, labels = random_records(small.domain, 200, 0)
    monkeypatch.setattr(PaperDPMix, "noise_stddevs", lambda self, n: (0.0, 0.0))
    method = dp_mix(small, order_of_mixture=1, n_mixtures=50)
    out, out_labels = method.synthesize(codes, labels, np.random.default_rng(0))
    assert_valid(small.domain, out, out_labels, 50)
    real = {(*c, y) for c, y in zip(codes.tolist(), labels.tolist(), strict=True)}
    assert {(*c, y) for c, y in zip(out.tolist(), out_labels.tolist(), strict=True)} <= real
