import math
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest

from privacy.calibration import gdp_mu
from privacy.errors import ConfigurationError
from privacy.parameters import Guarantee, PrivacyParameters
from privacy.randomness import SeededNoise
from tasks.measurement.curator import Curator, InProcessCompute
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.projection import random_projection
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.synthesizer import measure
from tasks.measurement.vectors import VectorMap
from tasks.papers.random_projection import PaperRandomProjection
from tasks.synthesizers.slots.random_projection import RandomProjection
from tasks.synthesizers.slots.random_projection_config import RandomProjectionConfig
from tasks.synthesizers.slots.slot_release import SLOTS

PARAMETERS = PrivacyParameters(epsilon=10.0, delta=1e-5)


def wide_domain(n_columns):
    return EncodingDomain(
        column_names=tuple(f"c{i}" for i in range(n_columns)),
        n_codes=(11,) * n_columns,
        has_missing=(False,) * n_columns,
        numeric=(True,) * n_columns,
        label_levels=("no", "yes"),
    )


def test_projection_is_public_and_keeps_squared_lengths_on_average():
    domain = wide_domain(40)
    projection = random_projection(domain, n_projected=30)
    again = random_projection(domain, n_projected=30)
    np.testing.assert_array_equal(projection.matrix, again.matrix)
    # 1,200 entries of variance 1/30: five standard errors of a variance.
    assert projection.matrix.var() == pytest.approx(1 / 30, rel=5 * math.sqrt(2 / 1_200))
    vectors = np.random.default_rng(0).standard_normal((400, 40))
    ratio = (projection.project(vectors) ** 2).sum(axis=1) / (vectors**2).sum(axis=1)
    # Mean of ||P||_F^2 / 40 over directions: one, known to 1/30 of a chi-square of 1,200.
    assert ratio.mean() == pytest.approx(1.0, abs=5 * math.sqrt(2 / 1_200) + 0.05)
    assert ratio.max() <= projection.spectral_norm**2 * (1 + 1e-12)


def test_back_projection_keeps_the_projection_and_starts_from_the_middle(small):
    projection = random_projection(small.domain, n_projected=2)
    # age in [0, 1] and its flag, ward 0/1, lab in [0, 1]: all middles are one half.
    np.testing.assert_array_equal(projection.centre, [0.5, 0.5, 0.5, 0.5])
    target = np.array([[0.3, -2.0], [5.0, 1.0]])
    back = projection.back(target)
    np.testing.assert_allclose(projection.project(back), target, atol=1e-12)
    # The nearest such vector to the centre: the difference has no part outside the rows of P.
    outside = np.eye(4) - np.linalg.pinv(projection.matrix) @ projection.matrix
    np.testing.assert_allclose((back - projection.centre) @ outside, 0.0, atol=1e-12)
    np.testing.assert_allclose(
        projection.back(projection.project(projection.centre[None])), projection.centre[None]
    )


def test_centre_of_a_category_is_uniform():
    domain = EncodingDomain(
        column_names=("group", "age"),
        n_codes=(4, 10),
        has_missing=(False, False),
        numeric=(False, True),
        label_levels=("no", "yes"),
    )
    centre = random_projection(domain, n_projected=2).centre
    np.testing.assert_array_equal(centre, [0.25, 0.25, 0.25, 0.25, 0.5])


def test_a_record_is_rounded_without_regard_to_the_others():
    projection = random_projection(wide_domain(23), n_projected=7)
    vectors = np.random.default_rng(0).random((50, 23))
    whole = projection.project(vectors)
    alone = np.concatenate([projection.project(vectors[i : i + 1]) for i in range(50)])
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize(
    "bind",
    [RandomProjection, partial(PaperRandomProjection, parameters=PARAMETERS)],
    ids=["proven", "paper"],
)
def test_more_dimensions_than_coordinates_are_refused(small, bind):
    config = RandomProjectionConfig(n_projected=5)
    with pytest.raises(ConfigurationError) as refused:
        bind(small.domain, config)
    assert str(refused.value) == (
        "PROJECTION_INVALID: expected n_projected of at most 4, the width of a record's vector, "
        "found 5; lower n_projected"
    )


def test_plan_and_release_in_few_dimensions(small):
    config = RandomProjectionConfig(n_projected=2, n_slots=25, l2_clip_norm=1.0, label_share=0.5)
    method = RandomProjection(small.domain, config)
    [planned] = method.plan(mu=0.5).statistics
    assert method.guarantee is Guarantee.PROVEN
    assert [stage.name for stage in method.stages(mu=0.5)] == ["slots"]
    assert planned.shape == (25, 2 + 2)
    assert planned.l2_sensitivity == pytest.approx(math.sqrt(2.0) * SUM_SCALE)
    compute = InProcessCompute([small.rows(small.patients(40, 0))])
    curator = Curator(plan=method.plan(mu=0.5), compute=compute, noise_source=SeededNoise(0))
    released = measure(method, curator, mu=0.5)
    assert released[SLOTS].shape == (25, 4)
    codes, labels = method.sample(released, n_rows=60, rng=np.random.default_rng(0))
    assert (codes.shape, codes.dtype, labels.shape) == ((60, 3), np.uint16, (60,))
    assert (codes < [4, 2, 3]).all()
    assert (labels < 2).all()


def test_paper_sensitivity_covers_all_pairs_of_records(small):
    projection = random_projection(small.domain, n_projected=3)
    records = np.array(list(product(*map(range, small.domain.n_codes))), dtype=np.uint16)
    projected = projection.project(VectorMap(small.domain).vectors(records))
    largest = max(float(np.linalg.norm(a - b)) for a, b in combinations(projected, 2))
    config = RandomProjectionConfig(n_projected=3)
    feature, label = PaperRandomProjection(small.domain, config, PARAMETERS).noise_stddevs()
    assert largest <= projection.spectral_norm * 2.0
    mu = math.sqrt((projection.spectral_norm * 2.0) ** 2 / feature**2 + 2 / label**2)
    assert mu == pytest.approx(gdp_mu(epsilon=10.0, delta=1e-5))


def test_paper_form_without_noise_and_in_all_dimensions_is_the_identity(small, monkeypatch):
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(k, size=300) for k in (4, 2, 3)], axis=1).astype(np.uint16)
    labels = rng.integers(2, size=300).astype(np.uint16)
    method = PaperRandomProjection(small.domain, RandomProjectionConfig(n_projected=4), PARAMETERS)
    noisy, noisy_labels = method.synthesize(codes, labels, np.random.default_rng(1))
    assert (noisy.shape, noisy.dtype, noisy_labels.dtype) == (codes.shape, np.uint16, np.uint16)
    assert (noisy < [4, 2, 3]).all()
    assert (noisy != codes).any()
    monkeypatch.setattr(PaperRandomProjection, "noise_stddevs", lambda self: (0.0, 0.0))
    exact, exact_labels = method.synthesize(codes, labels, np.random.default_rng(1))
    np.testing.assert_array_equal(exact, codes)
    np.testing.assert_array_equal(exact_labels, labels)
