"""Sizes and means of clusters: reference, sensitivity, agreement with the mean of all records."""

import numpy as np
import pytest
from measuring import every_labelled_record, norm_of

from privacy.sensitivity import weighted_sum_l2_sensitivity
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap
from tasks.synthesizers.dpgm.cluster_means import cluster_means, sizes_and_means

BOUND = weighted_sum_l2_sensitivity(bound=1.0, scale=SUM_SCALE)


@pytest.fixture(scope="module")
def public(small):
    clustering = small.clustering(small.embedding(), np.random.default_rng(3))
    return {"clustering": clustering, "vector_map": VectorMap(small.domain, with_label=True)}


def plain_means(rows, public):
    """Weight and mean of the vectors of each cluster, and of all, one record at a time."""
    cluster = public["clustering"].assign(rows.codes, rows.label)
    vectors = public["vector_map"].vectors(rows.codes, rows.label)
    groups = [*(cluster == index for index in range(3)), cluster >= 0]
    weights = [rows.weight[group].sum() for group in groups]
    sums = [(rows.weight[group, None] * vectors[group]).sum(axis=0) for group in groups]
    return np.array(weights), np.array(sums) / np.maximum(weights, 1e-9)[:, None]


def test_sizes_and_means_come_back_without_noise(small, public):
    rows = small.rows(small.patients(60, 3))
    noisy = cluster_means(rows, **public) / SUM_SCALE
    sizes, means = sizes_and_means(noisy, vector_map=public["vector_map"], noise_stddev=1e-9)
    weights, expected = plain_means(rows, public)
    assert sizes == pytest.approx(weights[:3], abs=1e-4)
    filled = weights[:3] > 0
    assert filled.sum() > 1
    assert means[filled] == pytest.approx(expected[:3][filled], abs=1e-4)


def test_no_patient_moves_the_draw_by_more_than_the_sensitivity(small, public):
    records, largest = every_labelled_record(small.domain), 0.0
    patients = [[record] for record in records]
    patients += [[a, b, records[0]] for a in records[::5] for b in records[::7]]
    for patient in patients:
        exact = cluster_means(small.rows([(0, patient)]), **public)
        assert exact.dtype == np.int64
        largest = max(largest, norm_of(exact))
    assert largest <= BOUND
    # A record in a corner of the domain is as far from its middle as any can be.
    assert largest > 0.99 * BOUND
    assert (cluster_means(small.rows([]), **public) == 0).all()
