import numpy as np
import pytest
from measuring import released_of
from pydantic import ValidationError

from benchmarks.in_process import SeededNoise
from privacy.errors import ConfigurationError
from privacy.events import Gaussian
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap
from tasks.methods.dp_cda.dp_cda import COUNTS, SUMS, DpCda, RecordMap, group_sums, groups_of
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig


def scaled_slowly(mapping, codes):
    for vector in mapping.vectors.vectors(codes):
        moved = (vector - mapping.centre) / mapping.scale
        norm = np.linalg.norm(moved)
        yield moved if norm <= mapping.l2_clip_norm else moved * mapping.l2_clip_norm / norm


def test_group_sums_are_those_of_scaled_and_clipped_records_one_by_one(small, monkeypatch):
    monkeypatch.setattr("tasks.methods.dp_cda.dp_cda._ROWS_AT_ONCE", 7)
    mapping = RecordMap(vectors=VectorMap(small.domain), centre=0.25, scale=0.5, l2_clip_norm=2.0)
    rows = small.rows(small.patients(40, 1))
    slowly = list(scaled_slowly(mapping, rows.codes))
    np.testing.assert_allclose(mapping.scaled(rows.codes), slowly, rtol=1e-14)
    norms = np.linalg.norm(slowly, axis=1)
    assert norms.min() < 1.99 < norms.max()
    expected = np.zeros((3, 2, mapping.vectors.width), dtype=np.int64)
    group = groups_of(rows, n_groups=3)
    for row, vector in enumerate(slowly):
        grid = np.trunc(vector * rows.weight[row] * SUM_SCALE).astype(np.int64)
        expected[group[row], rows.label[row]] += grid
    found = group_sums(rows, record_map=mapping, n_labels=2, n_groups=3)
    # A grid point of each record: the loop rounds the norm in another order.
    np.testing.assert_allclose(found, expected, atol=len(rows))
    assert found.dtype == np.int64


def test_plan_of_groups_is_two_gaussians(small):
    config = DpCdaConfig(declared_patients=40, order_of_mixture=5, one_hot_levels=0)
    plan = DpCda(small.domain, config).plan(mu=0.5)
    counts, sums = plan.statistics
    assert (counts.name, counts.shape) == (COUNTS, (2,))
    # 20 patients in a class, five in a group; age with its flag, ward, lab: four coordinates.
    assert (sums.name, sums.shape, sums.n_draws) == (SUMS, (4, 2, 4), 1)
    assert all(isinstance(event, Gaussian) for event in plan.event.events)
    assert counts.unit_noise_stddev == pytest.approx(1 / 0.5 / np.sqrt(0.02), rel=1e-6)
    # Three columns, one of them with a flag, are at most one away from the middle.
    assert sums.unit_noise_stddev == pytest.approx(1.0 / 0.5 / np.sqrt(0.98), rel=1e-6)


@pytest.mark.parametrize(("centre", "scale"), [(None, 1.0), (0.3, 0.4)])
def test_columns_of_a_sample_depend_on_each_other_as_in_the_table(small, centre, scale):
    # In each class ward and lab are even, and they are equal in all records.
    values = [(n % 3, n % 2, 2 * (n % 2)) for n in range(12)]
    patients = [(fold, [(value, y)]) for value in values for y in (0, 1) for fold in range(200)]
    config = DpCdaConfig(declared_patients=4_800, order_of_mixture=8, centre=centre, scale=scale)
    method = DpCda(small.domain, config)
    released = released_of(method, small.rows(patients), SeededNoise(0), mu=20.0)
    codes, labels = method.sample(released, n_rows=4_000, rng=np.random.default_rng(0))
    assert labels.mean() == pytest.approx(released["label_frequencies"][1], abs=0.04)
    assert codes[:, 1].mean() == pytest.approx(0.5, abs=0.03)
    # From the shares of eight records, not spread, it would be (1 + 1 / 8) / 2.
    assert (codes[:, 2] == 2 * codes[:, 1]).mean() > 0.7
    ages = np.bincount(codes[:, 0], minlength=4) / 4_000
    np.testing.assert_allclose(ages, [1 / 3, 1 / 3, 1 / 3, 0], atol=0.03)


def test_class_sizes_are_declared_or_equal_and_not_below_the_order():
    assert DpCdaConfig(declared_patients=600, order_of_mixture=4).smallest_class(3) == 200.0
    assert DpCdaConfig(class_sizes=(500, 80), order_of_mixture=80).smallest_class(2) == 80.0
    for sizes in ((500, 79), ()):
        with pytest.raises(
            ValidationError,
            match=r"as many patients as order_of_mixture.*; lower order_of_mixture, or join or",
        ):
            DpCdaConfig(class_sizes=sizes, order_of_mixture=80)


def test_mixtures_that_fill_the_memory_are_refused(small, monkeypatch):
    monkeypatch.setattr("tasks.methods.dp_cda.dp_cda.MAX_VALUES", 31)
    config = DpCdaConfig(declared_patients=40, order_of_mixture=5, one_hot_levels=0)
    with pytest.raises(ConfigurationError, match=r"MIXTURES_TOO_MANY: .* at most 31 numbers"):
        DpCda(small.domain, config)
