"""Local perturbation and random projection: proven in slots, and as baselines on every record."""

import math
from itertools import combinations

import numpy as np
import pytest
from measuring import NoNoise, assert_valid, domain_with, every_record, random_records, released_of
from scipy.stats import norm

from privacy.accountants.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from tasks.measurement.projection import random_projection
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap
from tasks.methods.slots.config import LocalPerturbationConfig, RandomProjectionConfig
from tasks.methods.slots.synthesizer import SLOTS, NoisySlots, slots_of
from tasks.papers.noisy_records import PaperNoisyRecords

PARAMETERS = PrivacyParameters(epsilon=10.0, delta=1e-5)
LOCAL = LocalPerturbationConfig(n_slots=20)
PROJECTED = RandomProjectionConfig(n_projected=2, n_slots=25, l2_clip_norm=1.0, label_share=0.5)


@pytest.mark.parametrize(
    ("config", "shape", "bound"),
    [(LOCAL, (20, 6), math.sqrt(1.0 / 0.8)), (PROJECTED, (25, 2 + 2), math.sqrt(2.0))],
    ids=["local", "projected"],
)
def test_plan_is_one_gaussian_for_a_whole_record(small, config, shape, bound):
    method = NoisySlots(small.domain, config)
    [planned] = method.plan(mu=0.5).statistics
    assert [stage.name for stage in method.stages(mu=0.5)] == ["slots"]
    assert (planned.name, planned.shape, planned.is_series) == (SLOTS, shape, False)
    assert planned.l2_sensitivity == pytest.approx(bound * SUM_SCALE)
    assert planned.unit_noise_stddev == pytest.approx(2 * bound, rel=1e-6)


def test_a_record_alone_in_its_slot_comes_back_without_noise(small):
    method = NoisySlots(small.domain, LocalPerturbationConfig(n_slots=500))
    record, label = (3, 1, 2), 1
    released = released_of(method, small.rows([(0, [(record, label)])]), NoNoise(), mu=1.0)
    slot = int(slots_of(np.array([record], np.uint16), np.array([label]), n_slots=500)[0])
    codes, labels = method.vectors().decode(released[SLOTS])
    assert (codes[slot].tolist(), labels[slot]) == (list(record), label)


def wide_domain(n_columns):
    return domain_with(*(11,) * n_columns, numeric=range(n_columns))


def test_projection_is_public_and_keeps_squared_lengths_on_average():
    projection, again = (random_projection(wide_domain(40), n_projected=30) for _ in range(2))
    np.testing.assert_array_equal(projection.matrix, again.matrix)
    # 1,200 entries of variance 1/30: five standard errors of a variance.
    assert projection.matrix.var() == pytest.approx(1 / 30, rel=5 * math.sqrt(2 / 1_200))
    vectors = np.random.default_rng(0).standard_normal((400, 40))
    whole = projection.project(vectors)
    ratio = (whole**2).sum(axis=1) / (vectors**2).sum(axis=1)
    # Mean of ||P||_F^2 / 40 over directions: one, known to 1/30 of a chi-square of 1,200.
    assert ratio.mean() == pytest.approx(1.0, abs=5 * math.sqrt(2 / 1_200) + 0.05)
    assert ratio.max() <= projection.spectral_norm**2 * (1 + 1e-12)
    # A record is rounded without regard to the others.
    alone = np.concatenate([projection.project(vectors[i : i + 1]) for i in range(50)])
    np.testing.assert_array_equal(whole[:50], alone)


def test_back_projection_keeps_the_projection_and_starts_from_the_middle(small):
    projection = random_projection(small.domain, n_projected=2)
    # age in [0, 1] and its flag, ward 0/1, lab in [0, 1]: all middles are one half.
    np.testing.assert_array_equal(projection.centre, [0.5, 0.5, 0.5, 0.5])
    target = np.array([[0.3, -2.0], [5.0, 1.0]])
    origin = np.array([0.5, 0.0, 0.1, 0.2])
    back = projection.back(target, origin)
    np.testing.assert_allclose(projection.project(back - origin), target, atol=1e-12)
    # The nearest such vector to the centre: the difference has no part outside the rows of P.
    outside = np.eye(4) - np.linalg.pinv(projection.matrix) @ projection.matrix
    np.testing.assert_allclose((back - projection.centre) @ outside, 0.0, atol=1e-12)
    domain = domain_with(4, 10, numeric=[1])
    centre = random_projection(domain, n_projected=2).centre
    np.testing.assert_array_equal(centre, [0.25, 0.25, 0.25, 0.25, 0.5])


def test_paper_sensitivity_covers_all_pairs_of_projected_records(small):
    method = PaperNoisyRecords(small.domain, RandomProjectionConfig(n_projected=3), PARAMETERS)
    projection, (feature, label) = method.projection(), method.noise_stddevs()
    projected = projection.project(VectorMap(small.domain).vectors(every_record(small.domain)))
    largest = max(float(np.linalg.norm(a - b)) for a, b in combinations(projected, 2))
    assert largest <= projection.spectral_norm * 2.0
    mu = math.sqrt((projection.spectral_norm * 2.0) ** 2 / feature**2 + 2 / label**2)
    assert mu == pytest.approx(gdp_mu(epsilon=10.0, delta=1e-5))


def test_paper_form_gives_one_valid_record_per_record_each_by_itself(small):
    codes, labels = random_records(small.domain, 5_000, 0)
    method = PaperNoisyRecords(small.domain, LocalPerturbationConfig(), PARAMETERS)
    out, out_labels = method.synthesize(codes, labels, np.random.default_rng(1))
    assert_valid(small.domain, out, out_labels, 5_000)
    # The binary column is right if its noise is below one half.
    feature, _ = method.noise_stddevs()
    expected = norm.cdf(0.5 / feature)
    error = 5 * math.sqrt(expected * (1 - expected) / 5_000)
    assert (out[:, 1] == codes[:, 1]).mean() == pytest.approx(expected, abs=error)
    # Replacing one record changes that row of the output alone.
    other = codes.copy()
    other[77] = [0, 0, 0] if codes[77].any() else [1, 1, 1]
    again, _ = method.synthesize(other, labels, np.random.default_rng(1))
    assert set(np.flatnonzero((out != again).any(axis=1))) <= {77}
