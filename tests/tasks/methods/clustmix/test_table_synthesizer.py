from dataclasses import replace

import measuring
import numpy as np
import pytest
from measuring import sampled as sampled_of

from benchmarks.in_process import SeededNoise
from privacy.errors import IntegrityError
from tasks.measurement.method import measure
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tasks.methods.naive_bayes import NaiveBayes

DOMAIN = measuring.domain_with(
    *(5, 3, 2, 6, 3), numeric=(0, 3), missing=[3], labels=("home", "ward", "died"), patients=8_000
)
EFFORT = Effort(starts=1, steps=300, fit_rows=5_000)
BIG_MU = 200.0


def scores_of(codes):
    """Three labels that follow age up, and the lab both ways."""
    lab = np.where(codes[:, 3] == 5, 0.0, codes[:, 3] - 2.0)
    return np.column_stack(
        [0.5 - 0.6 * (codes[:, 0] - 2.0), 0.8 * lab, -0.5 - 0.8 * lab + 0.7 * (codes[:, 0] - 2.0)]
    )


def made_up_rows(n, seed):
    rng = np.random.default_rng(seed)
    age = rng.choice(5, n, p=[0.1, 0.2, 0.4, 0.2, 0.1])
    lab = np.where(rng.random(n) < 0.75, age, rng.integers(0, 6, n))
    ward, unit = rng.choice(3, (2, n), p=[0.5, 0.3, 0.2])
    codes = np.column_stack([age, ward, rng.integers(0, 2, n), lab, unit])
    label = (scores_of(codes) + rng.gumbel(size=(n, 3))).argmax(axis=1)
    return measuring.rows_with(codes, label, fold=rng.integers(0, 5, n))


@pytest.fixture(scope="module")
def rows():
    return made_up_rows(8_000, 0)


@pytest.fixture(scope="module")
def method():
    return TableClustMix(DOMAIN, EFFORT)


@pytest.fixture(scope="module")
def sampled(rows, method):
    released = measuring.released_of(method, rows, SeededNoise(1), mu=BIG_MU)
    return method.sample(released, n_rows=20_000, rng=np.random.default_rng(2))


def pair_distance(rows, codes, first, second):
    real, made = (
        np.histogram2d(some[:, first], some[:, second], bins=(np.arange(7), np.arange(7)))[0]
        / len(some)
        for some in (rows.codes, codes)
    )
    return 0.5 * np.abs(real - made).sum()


def test_labels_follow_the_columns_as_they_do(sampled):
    codes, labels = sampled
    scores = scores_of(codes)
    true = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for label in range(3):
        parts = np.array_split(np.argsort(true[:, label]), 10)
        for part in parts:
            assert (labels[part] == label).mean() == pytest.approx(
                true[part, label].mean(), abs=0.06
            )


@pytest.mark.parametrize(
    "changes",
    [
        {"column_names": ("x",), "n_codes": (5,), "has_missing": (False,), "numeric": (True,)},
        {"label_levels": tuple(f"level {i}" for i in range(50))},
        {"rows_per_patient": 30},
        {"n_codes": (5, 3, 2, 6, 1), "patients": None},
    ],
    ids=["one column", "fifty labels", "many rows of a patient", "a constant column"],
)
def test_domains_at_the_edge(changes):
    domain, effort = replace(DOMAIN, **changes), Effort(starts=1, steps=20, fit_rows=500)
    method, rng = TableClustMix(domain, effort), np.random.default_rng(4)
    n_rows = rng.integers(1, domain.rows_per_patient + 1, 200)
    codes, labels = measuring.random_records(domain, int(n_rows.sum()), 4)
    rows = measuring.rows_with(codes, labels, weight=np.repeat(1.0 / n_rows, n_rows))
    released = measuring.released_of(method, rows, SeededNoise(5), mu=2.0)
    sampled_of(method, domain, released, 3_000)


def test_patients_with_more_rows_count_for_more_rows():
    domain, rng = replace(DOMAIN, rows_per_patient=3), np.random.default_rng(6)
    base = made_up_rows(6_000, 7)
    # Patients of the last unit have three rows, others one.
    n_rows = np.where(base.codes[:, 4] == 2, 3, 1)
    index = np.repeat(np.arange(6_000), n_rows)
    rows = replace(measuring.take(base, index), weight=np.repeat(1.0 / n_rows, n_rows))
    method = TableClustMix(domain, EFFORT)
    released = measuring.released_of(method, rows, SeededNoise(8), mu=BIG_MU)
    codes, labels = method.sample(released, n_rows=20_000, rng=rng)
    assert (codes[:, 4] == 2).mean() == pytest.approx((rows.codes[:, 4] == 2).mean(), abs=0.02)
    for label in range(3):
        assert (labels == label).mean() == pytest.approx((rows.label == label).mean(), abs=0.01)


def test_more_budget_is_no_worse_and_naive_bayes_is_beaten(rows, method):
    def error_of(synthesizer, mu, seed):
        released = measuring.released_of(synthesizer, rows, SeededNoise(seed), mu=mu)
        codes, _ = synthesizer.sample(released, n_rows=20_000, rng=np.random.default_rng(seed))
        return sum(pair_distance(rows, codes, *pair) for pair in ((0, 3), (1, 4), (2, 3)))

    errors = [error_of(method, mu, 0) for mu in (0.1, 0.4, 1.6)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < error_of(NaiveBayes(DOMAIN), 0.4, 0)


def test_what_two_columns_say_together_is_learned_by_the_kernel_round(method):
    rng = np.random.default_rng(4)
    codes = rng.integers(0, (5, 3, 2, 6, 3), (8_000, 5))
    differ = (codes[:, 2] == 1) != (codes[:, 1] == 2)
    label = np.where(rng.random(8_000) < 0.9, np.where(differ, 2, 0), 1)
    rows = measuring.rows_with(codes, label)
    released = measuring.released_of(method, rows, SeededNoise(3), mu=20.0)
    made, labels = sampled_of(method, DOMAIN, released, 20_000)
    differ = (made[:, 2] == 1) != (made[:, 1] == 2)
    told = (labels[differ] == 2).mean() - (labels[~differ] == 2).mean()
    assert told > 0.4


def test_a_plan_of_another_budget_is_found_before_the_last_draws(rows, method):
    curator = measuring.curator_of(method, [rows], SeededNoise(1), mu=2.0)
    curator.plan = replace(curator.plan, mu=1.0)
    with pytest.raises(IntegrityError, match="expected exactly the planned draws so far"):
        measure(method, curator)
    assert [event.statistic for event in curator.event.events] == ["label_counts", "pair_tables"]
