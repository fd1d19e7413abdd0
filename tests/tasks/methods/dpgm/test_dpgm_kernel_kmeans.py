import math
from dataclasses import replace
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
from tasks.methods.dpgm.kernel_kmeans import POINT_SCALE, cluster_sums, count_share

BOUND = weighted_sum_l2_sensitivity(bound=1.0, scale=SUM_SCALE)
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


@pytest.fixture(scope="module")
def public(small):
    clustering = small.clustering(small.embedding(), np.random.default_rng(3))
    return {"clustering": clustering, "vector_map": VectorMap(small.domain, with_label=True)}


def test_no_patient_moves_sizes_and_means_by_more_than_the_sensitivity(small, public):
    # A record in a corner of the domain is as far from its middle as any can be.
    assert 0.99 * BOUND < small.largest_norm(partial(cluster_means, **public)) <= BOUND
