import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import every_labelled_record

from privacy.mechanisms import weighted_sum_l2_sensitivity
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.dp_kmeans import cluster_means
from tasks.methods.dpgm.dp_sgd import (
    Descent,
    NormHistogram,
    TrainingStep,
    gradient_sums,
    split_draw,
)
from tasks.methods.dpgm.kernel_kmeans import POINT_SCALE, cluster_sums, count_share
from tasks.methods.dpgm.record_gradients import ClippedSum

BOUND = weighted_sum_l2_sensitivity(bound=1.0, scale=SUM_SCALE)
BINS = NormHistogram(max_norm=2.0, n_bins=5, share=0.2)
NO_BINS = NormHistogram(max_norm=2.0, n_bins=0, share=0.0)


@dataclass(frozen=True)
class LinearNetwork:
    """Loss ``factor * |parameters - vector|**2 / 2``: the simplest protocol that trains."""

    factor: float = 1.0

    def gradients(self, parameters, vectors, *, step_seed, state):
        return (self.factor * (parameters - vectors)).astype(np.float32)

    def clipped_sum(self, parameters, vectors, weights, *, l2_clip_norm, scale, step_seed, state):
        found = self.gradients(parameters, vectors, step_seed=step_seed, state=state)
        norms = np.linalg.norm(found.astype(np.float64), axis=1)
        factors = weights * np.minimum(1.0, l2_clip_norm / np.maximum(norms, 1e-300))
        amounts = np.trunc(found * factors[:, None] * scale)
        return ClippedSum(total=amounts.sum(axis=0).astype(np.int64), norms=norms)


def step_of(small, seed, *, histogram=BINS, l2_clip_norm=0.8, factor=1.0, n_clusters=3):
    vector_map, rng = VectorMap(small.domain, with_label=True), np.random.default_rng(seed)
    return TrainingStep(
        clustering=small.clustering(small.embedding(), rng, n_clusters),
        vector_map=vector_map,
        networks=tuple(LinearNetwork(factor) for _ in range(n_clusters)),
        parameters=rng.random((n_clusters, vector_map.width)),
        chains=np.zeros((n_clusters, 0, vector_map.width), dtype=np.float32),
        histogram=histogram,
        l2_clip_norm=l2_clip_norm,
        seed=7,
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), adaptive=st.booleans())
def test_a_draw_equals_a_record_by_record_reference(small, seed, adaptive):
    step = step_of(small, seed, histogram=BINS if adaptive else NO_BINS)
    rows = small.rows(small.patients(8, seed))
    found = gradient_sums(rows, step=step)
    assert found.shape == (step.histogram.n_bins + step.parameters.size,)
    counts = np.zeros(step.histogram.n_bins)
    gradients = np.zeros(step.parameters.shape)
    for index in range(len(rows)):
        one = slice(index, index + 1)
        cluster = step.clustering.assign(rows.codes[one], rows.label[one])[0]
        vector = step.vector_map.vectors(rows.codes[one], rows.label[one])[0]
        gradient = step.parameters[cluster] - vector
        norm = np.linalg.norm(gradient)
        gradients[cluster] += rows.weight[index] * gradient * min(1.0, 0.8 / norm)
        if adaptive:
            place = min(math.ceil(norm / 0.4), 5) - 1
            counts[place] += rows.weight[index]
    noisy_counts, noisy_gradients = split_draw(found / SUM_SCALE, step)
    assert noisy_gradients == pytest.approx(gradients, abs=1e-4)
    assert noisy_counts == pytest.approx(counts, abs=1e-4)


@pytest.mark.parametrize("histogram", [BINS, NO_BINS])
@pytest.mark.parametrize("l2_clip_norm", [0.05, 0.8, 2.0])
@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_no_patient_moves_a_draw_by_more_than_the_sensitivity(
    small, histogram, l2_clip_norm, factor
):
    """Whatever norm earlier histograms chose, the bound of the whole vector stays the same."""
    step = step_of(small, 1, histogram=histogram, l2_clip_norm=l2_clip_norm, factor=factor)
    largest = small.largest_norm(partial(gradient_sums, step=step))
    assert largest <= BOUND
    if factor > 1.0 or l2_clip_norm == 0.05:
        assert largest > 0.999 * BOUND


def test_the_first_steps_are_those_of_the_formulas():
    gradient, zeros = np.array([[0.5, -3.0]]), np.zeros((1, 2))
    still = {"learning_rate": 0.1, "parameters": zeros, "first": zeros, "second": zeros}
    adam = Descent(kind="adam", momentum=0.9, n_steps=0, **still).step(gradient)
    assert adam.parameters == pytest.approx(np.array([[-0.1, 0.1]]), rel=1e-6)
    heavy = Descent(kind="momentum", momentum=0.5, n_steps=0, **still).step(gradient)
    assert heavy.step(gradient).parameters == pytest.approx(-0.1 * gradient * (1.0 + 1.5))


SEEDS = st.integers(0, 2**32 - 1)
FORMS = [
    {"features": "fourier", "length_scale": 0.7, "l2_clip_norm": None},
    {"features": "fourier", "length_scale": 1e-3, "l2_clip_norm": None},
    {"features": "plain", "length_scale": None, "l2_clip_norm": None},
    {"features": "plain", "length_scale": None, "l2_clip_norm": 0.9},
]


def clustering_of(small, form, seed):
    clustering = small.clustering(
        small.embedding(public_seed=5, **form), np.random.default_rng(seed)
    )
    return replace(clustering, alive=np.array([True, True, False]))


@pytest.mark.parametrize("form", FORMS)
def test_points_are_whole_numbers_of_norm_at_most_one(small, form):
    rows = small.rows([(0, [record]) for record in every_labelled_record(small.domain)])
    points = small.embedding(public_seed=5, **form).points(rows.codes, rows.label)
    assert (points == np.trunc(points)).all()
    norms = np.array([math.sqrt(sum(Fraction(v) ** 2 for v in p)) for p in points]) / POINT_SCALE
    assert norms.max() <= 1.0
    if form["features"] == "fourier":
        assert norms.min() > 1.0 - 1e-5


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, form=st.sampled_from(FORMS))
def test_sums_equal_a_record_by_record_reference(small, seed, form):
    clustering = clustering_of(small, form, seed)
    rows = small.rows(small.patients(9, seed))
    share = count_share(clustering.embedding.width)
    expected = np.zeros((3, 1 + clustering.embedding.width), dtype=np.int64)
    for index in range(len(rows)):
        one = slice(index, index + 1)
        point = clustering.embedding.points(rows.codes[one], rows.label[one])[0]
        distances = [
            sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(point, centre, strict=True))
            for centre in clustering.centres[:2]
        ]
        line = [math.sqrt(share), *(point * (math.sqrt(1 - share) / POINT_SCALE))]
        cluster = distances.index(min(distances))
        for place, value in enumerate(line):
            expected[cluster, place] += int(value * (rows.weight[index] * SUM_SCALE))
    assert (cluster_sums(rows, clustering=clustering) == expected).all()


@pytest.mark.parametrize("form", FORMS)
def test_no_patient_moves_counts_and_sums_by_more_than_the_sensitivity(small, form):
    clustering = clustering_of(small, form, 1)
    largest = small.largest_norm(partial(cluster_sums, clustering=clustering))
    assert largest <= BOUND
    # Attained, but by plain vectors only where a record is as long as the clipping norm.
    if form["features"] == "fourier" or form["l2_clip_norm"]:
        assert largest > 0.99 * BOUND


def test_no_patient_moves_sizes_and_means_by_more_than_the_sensitivity(small):
    clustering = small.clustering(small.embedding(), np.random.default_rng(3))
    public = {"clustering": clustering, "vector_map": VectorMap(small.domain, with_label=True)}
    # A record in a corner of the domain is as far from its middle as any can be.
    assert 0.99 * BOUND < small.largest_norm(partial(cluster_means, **public)) <= BOUND
