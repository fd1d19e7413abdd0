"""DP-MERF from plan to records, and as printed."""

import math

import numpy as np
import pytest
from measuring import released_of, sampled

from privacy.parameters import PrivacyParameters
from tasks.methods.dp_merf.config import DpMerfConfig
from tasks.methods.dp_merf.features import EmbeddingFeatures
from tasks.methods.dp_merf.synthesizer import CLASS_COUNTS, EMBEDDING, DpMerf
from tasks.papers.dp_merf import PaperDpMerf

QUICK = DpMerfConfig(
    fourier_features=40,
    hidden_units=(8,),
    code_dimensions=2,
    training_stages=2,
    steps_per_stage=75,
    batch_size=64,
    learning_rate=0.02,
)
OPPOSITE = np.array([[0, 0, 0], [3, 1, 2]], dtype=np.uint16)
"""A record of each label."""

PARAMETERS = PrivacyParameters(epsilon=1000.0, delta=1e-5)


def test_plan_splits_the_budget_by_the_shares(small):
    method = DpMerf(small.domain, QUICK)
    plan = method.plan(mu=0.5)
    counts, embedding = plan.statistics
    assert (counts.name, counts.shape) == (CLASS_COUNTS, (2,))
    assert (embedding.name, embedding.shape) == (EMBEDDING, (2, 40 + 8))
    # Sensitivity one, so one over mu in patients.
    assert counts.unit_noise_stddev == pytest.approx(1 / (0.5 * math.sqrt(0.02)), rel=1e-6)
    assert embedding.unit_noise_stddev == pytest.approx(1 / (0.5 * math.sqrt(0.98)), rel=1e-6)
    assert math.hypot(counts.mu, embedding.mu) <= 0.5
    names = [stage.name for stage in method.stages(mu=0.5)]
    assert names == ["embedding", "train-01-of-02", "train-02-of-02"]


def test_without_noise_the_records_come_back(small):
    method = DpMerf(small.domain, QUICK)
    patients = [(0, [((0, 0, 0), 0)])] * 30 + [(0, [((3, 1, 2), 1)])] * 10
    released = released_of(method, small.rows(patients), mu=1e4)
    np.testing.assert_allclose(released["label_frequencies"], [0.75, 0.25], atol=1e-6)
    features = EmbeddingFeatures.draw(small.domain, QUICK)
    phi = features.uncentred(features.phi(OPPOSITE))
    np.testing.assert_allclose(released["label_embeddings"], phi, atol=1e-6)
    codes, labels = sampled(method, small.domain, released, 5_000)
    assert labels.mean() == pytest.approx(0.25, abs=0.03)
    assert (codes == OPPOSITE[labels]).mean(axis=0).min() > 0.9


def test_paper_form_gives_back_the_records_where_the_noise_is_small(small):
    codes = np.repeat(OPPOSITE, [600, 200], axis=0)
    labels = np.repeat(np.array([0, 1], dtype=np.uint16), [600, 200])
    method = PaperDpMerf(small.domain, QUICK, PARAMETERS)
    made, drawn = method.synthesize(codes, labels, np.random.default_rng(0))
    assert (made.dtype, made.shape) == (np.uint16, (700, 3))
    assert drawn.mean() == pytest.approx(0.25, abs=0.05)
    assert (made == OPPOSITE[drawn]).mean(axis=0).min() > 0.6


def test_paper_length_scale_is_moved_by_one_private_record(small):
    """The first flaw of the docstring: the kernel itself depends on a record."""
    method = PaperDpMerf(small.domain, QUICK, PARAMETERS)
    aside = np.array([[0, 0, 0], [1, 0, 0]], dtype=np.uint16)
    neighbour = np.array([[0, 0, 0], [2, 0, 2]], dtype=np.uint16)
    assert not np.array_equal(
        method.features(aside).frequencies, method.features(neighbour).frequencies
    )
