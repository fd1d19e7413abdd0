"""Features and sums of DP-MERF: slow references, bit-exact records, brute-force sensitivity."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import domain_with, every_record, norm_of

from privacy.errors import ConfigurationError
from privacy.sensitivity import weighted_sum_l2_sensitivity
from tasks.measurement.statistics import SUM_SCALE, class_counts
from tasks.methods.dp_merf import training
from tasks.methods.dp_merf.config import DpMerfConfig
from tasks.methods.dp_merf.features import (
    EmbeddingFeatures,
    draw_frequencies,
    embedding_sums,
    vector_map_of,
)
from tasks.methods.dp_merf.generator import draw_blocks

SENSITIVITY = weighted_sum_l2_sensitivity(bound=1.0, scale=SUM_SCALE)


def features_of(small, **settings_of_features):
    config = DpMerfConfig(**{"fourier_features": 6, **settings_of_features})
    return EmbeddingFeatures.draw(small.domain, config)


def reference_phi(features, vector, linear_share):
    """Cosines and sines in pairs, from phases in rational arithmetic."""
    half = len(features.frequencies)
    phases = [
        float(sum(Fraction(round(float(v) * 2**16), 2**16) * Fraction(float(w)) for v, w in zip(
            vector, row, strict=True)))
        for row in features.frequencies
    ]  # fmt: skip
    scale = math.sqrt((1 - linear_share) / half)
    middle = features.vector_map.middle
    norm = features.vector_map.radius(middle)
    return [
        *(scale * math.cos(phase) for phase in phases),
        *(scale * math.sin(phase) for phase in phases),
        *(math.sqrt(linear_share) * v / norm for v in (vector - middle) if linear_share),
    ]


@pytest.mark.parametrize("linear_share", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["one_hot", "ordinal"])
def test_features_equal_the_reference(small, kind, linear_share):
    features = features_of(small, features=kind, linear_share=linear_share)
    codes = every_record(small.domain)
    vectors = features.vector_map.vectors(codes)
    expected = [reference_phi(features, vector, linear_share) for vector in vectors]
    assert features.phi(codes).shape == (len(codes), features.n_features)
    np.testing.assert_allclose(features.phi(codes), expected, atol=1e-14)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**16), n=st.integers(2, 60))
def test_features_of_a_record_do_not_depend_on_the_others(seed, n):
    domain = domain_with(*(7,) * 10, numeric=range(10), missing=range(0, 10, 2))
    features = EmbeddingFeatures.draw(
        domain, DpMerfConfig(fourier_features=34, features="ordinal", length_scale=0.1)
    )
    codes = np.random.default_rng(seed).integers(0, 7, size=(n, 10)).astype(np.uint16)
    together = features.phi(codes)
    apart = np.concatenate([features.phi(codes[i : i + 1]) for i in range(n)])
    assert (together == apart).all()


def test_kernel_approaches_the_gaussian_and_the_linear_one(small):
    features = features_of(small, fourier_features=20_000, features="ordinal", linear_share=0.25)
    codes = every_record(small.domain)[::3]
    vectors = features.vector_map.vectors(codes)
    length_scale = 0.8 * features.vector_map.typical_distance
    distance = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    gaussian = np.exp(-(distance**2) / (2 * length_scale**2))
    middle = features.vector_map.middle
    centred = (vectors - middle) / features.vector_map.radius(middle)
    linear = centred @ centred.T
    phi = features.phi(codes)
    np.testing.assert_allclose(phi @ phi.T, 0.75 * gaussian + 0.25 * linear, atol=0.02)


def test_sums_equal_a_loop_over_records(small):
    rows = small.rows(small.patients(40, 3))
    features = features_of(small)
    expected = np.zeros((2, features.n_features), dtype=np.int64)
    for i in range(len(rows)):
        phi = features.phi(rows.codes[i : i + 1])[0]
        expected[rows.label[i]] += [
            int(value) for value in phi * (float(rows.weight[i]) * SUM_SCALE)
        ]
    found = embedding_sums(rows, features=features, n_labels=2)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)
    counts = class_counts(rows, n_labels=2)
    np.testing.assert_allclose(counts.sum() / SUM_SCALE, 40, atol=1e-5)


@pytest.mark.parametrize("kind", ["one_hot", "ordinal"])
@pytest.mark.parametrize("linear_share", [0.0, 0.9])
def test_no_patient_moves_the_statistics_by_more_than_the_sensitivity(small, kind, linear_share):
    """Every patient of one record, and many with several, beside a table of others."""
    features = features_of(small, features=kind, linear_share=linear_share)
    others = small.patients(5, 1)
    records = every_record(small.domain)
    candidates = [(0, [(codes, label)]) for codes in records for label in (0, 1)]
    candidates += small.patients(60, 2)
    candidates += [(0, [(codes, 0)] * 3) for codes in records[::4]]
    public = {"features": features, "n_labels": 2}
    base = embedding_sums(small.rows(others), **public)
    base_counts = class_counts(small.rows(others), n_labels=2)
    largest = largest_count = 0.0
    for patient in candidates:
        rows = small.rows([*others, patient])
        change = embedding_sums(rows, **public) - base
        largest = max(largest, norm_of(change))
        counts = class_counts(rows, n_labels=2) - base_counts
        largest_count = max(largest_count, norm_of(counts))
    assert largest_count == SUM_SCALE <= SENSITIVITY
    assert largest <= SENSITIVITY
    if linear_share == 0:
        assert largest > 0.9999 * SENSITIVITY


def test_phases_that_would_be_rounded_are_refused(small):
    vector_map = vector_map_of(small.domain, DpMerfConfig())
    frequencies = draw_frequencies(2, vector_map.width, length_scale=1e-6)
    with pytest.raises(ConfigurationError, match="expected phases below 2") as caught:
        EmbeddingFeatures(
            vector_map=vector_map, frequencies=frequencies, fourier_scale=1.0, linear_scales=None
        )
    assert caught.value.code == "LENGTH_SCALE_TOO_SMALL"


@pytest.mark.parametrize(
    ("kind", "most_exact", "tolerance"),
    [("one_hot", 32, 0.02), ("ordinal", 32, 0.02), ("ordinal", 0, 0.05)],
)
def test_expected_features_are_the_mean_of_drawn_records(
    small, monkeypatch, kind, most_exact, tolerance
):
    monkeypatch.setattr(training, "MAX_EXACT_BINARY", most_exact)
    features = features_of(small, features=kind, length_scale=1.0)
    blocks = features.vector_map.blocks
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((1, features.vector_map.width))
    drawn = draw_blocks(np.repeat(logits, 20_000, axis=0), blocks, rng)
    phases = drawn @ features.frequencies.T
    sampled = np.concatenate(
        [
            features.fourier_scale * np.cos(phases).mean(axis=0),
            features.fourier_scale * np.sin(phases).mean(axis=0),
            features.linear_scales * drawn.mean(axis=0),
        ]
    )
    with jax.disable_jit():
        expected = training.expected_features(
            jnp.asarray(logits),
            jnp.asarray(features.frequencies),
            jnp.asarray(features.linear_scales),
            blocks=blocks,
            fourier_scale=features.fourier_scale,
        )
    np.testing.assert_allclose(expected[0], sampled, atol=tolerance)
