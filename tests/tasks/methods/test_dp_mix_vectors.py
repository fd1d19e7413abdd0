"""Vectors of records and labels, sums of samples and slots: sensitivity by brute force."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import every_labelled_record, take
from scipy.optimize import linear_sum_assignment

from privacy.sensitivity import weighted_sum_l2_sensitivity
from tasks.measurement.encoded import row_slices
from tasks.measurement.labelled_vectors import LabelledVectors, matched_labels
from tasks.measurement.projection import random_projection
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.dp_mix import synthesizer as mixtures
from tasks.methods.dp_mix.synthesizer import mixture_sums
from tasks.methods.slots import synthesizer as slots
from tasks.methods.slots.synthesizer import slot_sums, slots_of

N_DRAWS, N_SLOTS = 5, 7


@dataclass(frozen=True)
class FixedCoins:
    """Samples written down: row t says which patients are in the sample of draw t."""

    inside: np.ndarray

    def rows(self, rows):
        return [np.flatnonzero(draw[rows.patient]) for draw in self.inside]


def vectors_of(domain, *, clip=None, share=0.2, n_projected=None):
    projection = None
    if n_projected is not None:
        projection = random_projection(domain, n_projected=n_projected)
    return LabelledVectors(
        domain=domain, l2_clip_norm=clip, label_share=share, projection=projection
    )


GEOMETRIES = [
    {},
    {"share": 0.5},
    {"clip": 0.7},
    {"clip": 100.0},
    {"n_projected": 2},
    {"n_projected": 3, "clip": 0.4, "share": 0.9},
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_no_vector_is_longer_than_the_bound_and_no_label_is_shortened(small, geometry):
    vectors = vectors_of(small.domain, **geometry)
    rows = small.rows([(0, [record]) for record in every_labelled_record(small.domain)])
    table = vectors.vectors(rows.codes, rows.label)
    assert table.shape == (2 * 4 * 2 * 3, vectors.width)
    norms = np.linalg.norm(table, axis=1)
    assert norms.max() <= vectors.l2_bound * (1 + 1e-12)
    label_part = table[:, vectors.record_width :]
    np.testing.assert_array_equal(label_part, vectors.label_scale * np.eye(2)[rows.label])
    share = vectors.label_scale**2 / vectors.l2_bound**2
    assert share == pytest.approx(geometry.get("share", 0.2))


def test_sums_equal_a_slow_reference(small, monkeypatch):
    for module in (mixtures, slots):
        monkeypatch.setattr(module, "row_slices", partial(row_slices, size=3))
    rows = small.rows(small.patients(30, 1))
    vectors = vectors_of(small.domain, clip=1.1, share=0.3)
    inside = np.random.default_rng(2).random((N_DRAWS, 30)) < 0.3
    mixed = np.zeros((N_DRAWS, vectors.width), dtype=np.int64)
    slotted = np.zeros((N_SLOTS, vectors.width), dtype=np.int64)
    for row in range(len(rows)):
        codes, label = rows.codes[row : row + 1], rows.label[row : row + 1]
        vector = vectors.vectors(codes, label)[0]
        grid = [int(float(rows.weight[row]) * float(value) * SUM_SCALE) for value in vector]
        mixed[inside[:, rows.patient[row]]] += grid
        slotted[slots_of(codes, label, n_slots=N_SLOTS)[0]] += grid
    for found, expected in (
        (mixture_sums(rows, coins=FixedCoins(inside), vectors=vectors), mixed),
        (slot_sums(rows, vectors=vectors, n_slots=N_SLOTS), slotted),
    ):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_brute_force_neighbours_of_both_statistics(small, geometry):
    """Every patient removed in turn: what changes is inside the sensitivity of the plan."""
    vectors = vectors_of(small.domain, **geometry)
    bound = weighted_sum_l2_sensitivity(bound=vectors.l2_bound, scale=SUM_SCALE)
    # One patient per possible record, and some with several.
    patients = [(0, [record]) for record in every_labelled_record(small.domain)]
    rows = small.rows(patients + small.patients(20, 3))
    n_patients = int(rows.patient.max()) + 1
    inside = np.random.default_rng(0).random((N_DRAWS, n_patients)) < 0.5
    whole = mixture_sums(rows, coins=FixedCoins(inside), vectors=vectors)
    slotted = slot_sums(rows, vectors=vectors, n_slots=N_SLOTS)
    largest = 0.0
    for patient in range(n_patients):
        rest = take(rows, rows.patient != patient)
        change = whole - mixture_sums(rest, coins=FixedCoins(inside), vectors=vectors)
        norms = np.linalg.norm(change.astype(float), axis=1)
        assert (norms[~inside[:, patient]] == 0.0).all()
        assert norms.max() <= bound
        moved = slotted - slot_sums(rest, vectors=vectors, n_slots=N_SLOTS)
        largest = max(largest, float(np.linalg.norm(moved.astype(float))))
    assert largest <= bound
    if geometry == {"clip": 0.7}:
        # Most records are as long as the clip norm: the bound is attained but for the grid.
        assert largest >= bound * (1 - 1e-6)


def test_slots_are_a_function_of_the_record_and_spread_evenly():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (20_000, 6)).astype(np.uint16)
    labels = rng.integers(0, 10, 20_000).astype(np.uint16)
    chosen = slots_of(codes, labels, n_slots=50)
    order = rng.permutation(len(codes))
    np.testing.assert_array_equal(slots_of(codes[order], labels[order], n_slots=50), chosen[order])
    # Chi-square with 49 degrees of freedom: mean 49, standard deviation 10; five of them.
    counts = np.bincount(chosen, minlength=50)
    assert ((counts - 400) ** 2 / 400).sum() < 49 + 5 * math.sqrt(2 * 49)
    # The label and the order of the columns count.
    assert (slots_of(codes, (labels + 1).astype(np.uint16), n_slots=50) != chosen).mean() > 0.9
    assert (slots_of(codes[:, ::-1], labels, n_slots=50) != chosen).mean() > 0.9
    # A public constant: another value would put records of old releases in other slots.
    one = slots_of(np.array([[1, 2, 3]], np.uint16), np.array([1], np.uint16), n_slots=2**31)
    assert one.tolist() == [1917295107]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.integers(1, 12), st.integers(0, 10**6))
def test_matched_labels_maximise_the_score_for_their_counts(n_labels, n_rows, seed):
    scores = np.random.default_rng(seed).random((n_rows, n_labels))
    labels = matched_labels(scores)
    counts = np.bincount(labels, minlength=n_labels)
    # The best assignment of rows to that many places of each label, by brute force.
    places = np.repeat(np.arange(n_labels), counts)
    chosen = linear_sum_assignment(-scores[:, places])
    best = scores[:, places][chosen].sum()
    assert scores[np.arange(n_rows), labels].sum() == pytest.approx(best)
