import numpy as np
import pytest
from measuring import released_of

from benchmarks.marginal_distance import marginal_distance
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.mwem.config import MwemConfig
from tasks.methods.mwem.distribution import FactoredDistribution
from tasks.methods.mwem.synthesizer import Mwem
from tasks.methods.mwem.workload import workload_answers


def dependent_patients(n, seed):
    """Draw patients with one record each whose columns and label depend on each other."""
    rng = np.random.default_rng(seed)
    ward = rng.random(n) < 0.3
    age = np.where(ward, rng.integers(2, 4, n), rng.integers(0, 3, n))
    lab = np.where(age == 3, 2, rng.integers(0, 3, n))
    label = (ward ^ (rng.random(n) < 0.1)) & (age > 0)
    return [(0, [((age[i], int(ward[i]), lab[i]), int(label[i]))]) for i in range(n)]


def measured(small, patients, **settings):
    """A method and what it releases where there is no noise."""
    method = Mwem(small.domain, MwemConfig(**settings))
    return method, released_of(method, small.rows(patients), mu=1e4)


def distance_of(small, patients, method, released):
    rows = small.rows(patients)
    codes, labels = method.sample(released, n_rows=30_000, rng=np.random.default_rng(0))
    return marginal_distance(
        np.column_stack([codes, labels]),
        np.column_stack([rows.codes, rows.label]),
        (*small.domain.n_codes, small.domain.n_labels),
    ).two_way


@pytest.mark.parametrize("start", ["uniform", "histograms"])
def test_error_falls_with_the_rounds_when_there_is_no_noise(small, start):
    patients = dependent_patients(2_000, 1)
    found = []
    for rounds in (1, 6, 24):
        method = measured(small, patients, rounds=rounds, start=start, output="last")
        found.append(distance_of(small, patients, *method))
    assert found[0] > found[1] > found[2]
    assert found[2] < 0.02


def test_the_first_choice_is_the_worst_query_and_its_measurement_is_met(small):
    patients = dependent_patients(1_000, 2)
    method, released = measured(small, patients, rounds=1, start="uniform", output="last")
    workload = method.workload
    shares = workload_answers(small.rows(patients), workload=workload) / SUM_SCALE / 1_000
    uniform = FactoredDistribution.uniform(workload.n_codes).answers(workload)
    [query] = released["chosen_queries"]
    assert query == np.argmax(np.abs(shares - uniform))
    assert released["measured_counts"] == pytest.approx([1_000 * shares[query]])
    codes, labels = method.sample(released, n_rows=40_000, rng=np.random.default_rng(0))
    sampled = np.column_stack([codes, labels])[:, workload.columns[query]]
    share = (sampled == workload.codes[query]).all(axis=1).mean()
    assert share == pytest.approx(shares[query], abs=0.012)


def test_the_mean_of_the_distributions_is_sampled_round_by_round(small):
    patients = dependent_patients(400, 5)
    method, released = measured(small, patients, rounds=2, start="uniform", output="average")
    last = Mwem(small.domain, MwemConfig(rounds=2, start="uniform", output="last"))
    first = {**released, "chosen_queries": released["chosen_queries"][:1]}
    first["measured_counts"] = released["measured_counts"][:1]

    def shares(synthesizer, known):
        codes, labels = synthesizer.sample(known, n_rows=40_000, rng=np.random.default_rng(1))
        cell = np.ravel_multi_index((*codes.T, labels), (4, 2, 3, 2))
        return np.bincount(cell, minlength=48) / 40_000

    mean = (shares(last, first) + shares(last, released)) / 2
    np.testing.assert_allclose(shares(method, released), mean, atol=0.012)
