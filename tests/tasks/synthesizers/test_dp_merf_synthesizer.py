"""DP-MERF from plan to records, and as printed."""

import math

import measuring
import numpy as np
import pytest
from measuring import NoNoise

from privacy.parameters import PrivacyParameters
from tasks.measurement.synthesizer import measure
from tasks.papers.dp_merf import PaperDpMerf
from tasks.synthesizers.dp_merf.config import DpMerfConfig
from tasks.synthesizers.dp_merf.features import EmbeddingFeatures
from tasks.synthesizers.dp_merf.synthesizer import CLASS_COUNTS, EMBEDDING, DpMerf

QUICK = DpMerfConfig(
    fourier_features=40,
    hidden_units=(8,),
    code_dimensions=2,
    training_stages=2,
    steps_per_stage=75,
    batch_size=64,
    learning_rate=0.02,
)
PARAMETERS = PrivacyParameters(epsilon=1000.0, delta=1e-5)


def curator_of(small, patients, noise_source, *, mu):
    method = DpMerf(small.domain, QUICK)
    return method, measuring.curator_of(method, [small.rows(patients)], noise_source, mu=mu)


def opposite_patients(n_no, n_yes):
    return [(0, [((0, 0, 0), 0)])] * n_no + [(0, [((3, 1, 2), 1)])] * n_yes


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
    method, curator = curator_of(small, opposite_patients(30, 10), NoNoise(), mu=1e4)
    released = measure(method, curator, mu=1e4)
    assert curator.event == method.plan(mu=1e4).event
    np.testing.assert_allclose(released["label_frequencies"], [0.75, 0.25], atol=1e-6)
    phi = EmbeddingFeatures.draw(small.domain, QUICK).phi(
        np.array([[0, 0, 0], [3, 1, 2]], dtype=np.uint16)
    )
    np.testing.assert_allclose(released["label_embeddings"], phi, atol=1e-6)
    codes, labels = method.sample(released, n_rows=5_000, rng=np.random.default_rng(0))
    assert (codes.dtype, codes.shape) == (np.uint16, (5_000, 3))
    assert (labels.dtype, labels.shape) == (np.uint16, (5_000,))
    assert labels.mean() == pytest.approx(0.25, abs=0.03)
    records = np.array([[0, 0, 0], [3, 1, 2]])
    assert (codes == records[labels]).mean(axis=0).min() > 0.9


def test_paper_form_gives_back_the_records_where_the_noise_is_small(small):
    codes = np.repeat(np.array([[0, 0, 0], [3, 1, 2]], dtype=np.uint16), [600, 200], axis=0)
    labels = np.repeat(np.array([0, 1], dtype=np.uint16), [600, 200])
    method = PaperDpMerf(small.domain, QUICK, PARAMETERS)
    made, drawn = method.synthesize(codes, labels, np.random.default_rng(0))
    assert (made.dtype, made.shape) == (np.uint16, (700, 3))
    assert drawn.mean() == pytest.approx(0.25, abs=0.05)
    records = np.array([[0, 0, 0], [3, 1, 2]])
    assert (made == records[drawn]).mean(axis=0).min() > 0.6


def test_paper_length_scale_is_moved_by_one_private_record(small):
    """The first flaw of the docstring: the kernel itself depends on a record."""
    method = PaperDpMerf(small.domain, QUICK, PARAMETERS)
    aside = np.array([[0, 0, 0], [1, 0, 0]], dtype=np.uint16)
    neighbour = np.array([[0, 0, 0], [2, 0, 2]], dtype=np.uint16)
    assert not np.array_equal(
        method.features(aside).frequencies, method.features(neighbour).frequencies
    )
    proven = DpMerf(small.domain, QUICK)
    assert proven.plan(mu=1.0) == proven.plan(mu=1.0)
