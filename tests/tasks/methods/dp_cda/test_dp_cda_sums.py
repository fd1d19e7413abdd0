import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.statistics import SUM_SCALE, class_counts
from tasks.measurement.vectors import VectorMap
from tasks.methods.dp_cda.group_sums import RecordMap, group_sums, groups_of

N_GROUPS = 3


def record_map(small, clip=0.9, centre=0.25, scale=0.5):
    return RecordMap(vectors=VectorMap(small.domain), centre=centre, scale=scale, l2_clip_norm=clip)


def scaled_slowly(mapping, codes):
    """One record after the other."""
    for vector in mapping.vectors.vectors(codes):
        moved = (vector - mapping.centre) / mapping.scale
        norm = np.linalg.norm(moved)
        yield moved if norm <= mapping.l2_clip_norm else moved * mapping.l2_clip_norm / norm


def test_records_are_scaled_and_clipped_one_by_one(small):
    mapping = record_map(small, clip=2.0)
    codes = small.rows(small.patients(60, 0)).codes
    scaled = mapping.scaled(codes)
    np.testing.assert_allclose(scaled, list(scaled_slowly(mapping, codes)), rtol=1e-14)
    norms = np.linalg.norm(scaled, axis=1)
    assert norms.max() == pytest.approx(2.0)
    assert norms.min() < 1.99


def test_group_sums_equal_a_loop_over_records(small, monkeypatch):
    monkeypatch.setattr("tasks.methods.dp_cda.group_sums._ROWS_AT_ONCE", 7)
    mapping, rows = record_map(small), small.rows(small.patients(40, 1))
    expected = np.zeros((N_GROUPS, 2, mapping.vectors.width), dtype=np.int64)
    group = groups_of(rows, n_groups=N_GROUPS)
    for row, vector in enumerate(scaled_slowly(mapping, rows.codes)):
        grid = np.trunc(vector * rows.weight[row] * SUM_SCALE).astype(np.int64)
        expected[group[row], rows.label[row]] += grid
    found = group_sums(rows, record_map=mapping, n_labels=2, n_groups=N_GROUPS)
    # A grid point of each record: the loop rounds the norm in another order.
    np.testing.assert_allclose(found, expected, atol=len(rows))
    assert found.dtype == np.int64


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_one_patient_moves_the_sums_by_at_most_the_clip_norm(small, seed):
    mapping, patients = record_map(small), small.patients(8, seed)
    with_patient, without = small.rows(patients), small.rows(patients[:-1])
    arguments = {"record_map": mapping, "n_labels": 2, "n_groups": N_GROUPS}
    moved = group_sums(with_patient, **arguments) - group_sums(without, **arguments)
    assert np.linalg.norm(moved) <= mapping.l2_clip_norm * SUM_SCALE
    counts = class_counts(with_patient, n_labels=2) - class_counts(without, n_labels=2)
    assert np.linalg.norm(counts) <= SUM_SCALE
