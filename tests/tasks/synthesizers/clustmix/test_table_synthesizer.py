"""ClustMix on tables as a whole, on made-up tables."""

from dataclasses import replace

import numpy as np
import pytest
from measuring import curator_of

from privacy.errors import IntegrityError
from privacy.randomness import SeededNoise
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.synthesizer import measure
from tasks.synthesizers.clustmix.tables.synthesizer import Effort, TableClustMix
from tasks.synthesizers.naive_bayes import NaiveBayes

DOMAIN = EncodingDomain(
    column_names=("age", "ward", "sex", "lab", "unit"),
    n_codes=(5, 3, 2, 6, 3),
    has_missing=(False, False, False, True, False),
    numeric=(True, False, False, True, False),
    label_levels=("home", "ward", "died"),
    patients=8_000,
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
    codes = np.column_stack([age, ward, rng.integers(0, 2, n), lab, unit]).astype(np.uint16)
    label = (scores_of(codes) + rng.gumbel(size=(n, 3))).argmax(axis=1)
    return EncodedRows(
        codes=codes,
        label=label.astype(np.uint16),
        weight=np.ones(n),
        fold=rng.integers(0, 5, n).astype(np.uint8),
    )


@pytest.fixture(scope="module")
def rows():
    return made_up_rows(8_000, 0)


@pytest.fixture(scope="module")
def method():
    return TableClustMix(DOMAIN, EFFORT)


@pytest.fixture(scope="module")
def released(rows, method):
    return measure(method, curator_of(method, [rows], SeededNoise(1), mu=BIG_MU), mu=BIG_MU)


@pytest.fixture(scope="module")
def sampled(method, released):
    return method.sample(released, n_rows=20_000, rng=np.random.default_rng(2))


def test_shares_of_columns_and_labels_are_near_the_truth(rows, sampled):
    codes, labels = sampled
    assert (codes.shape, codes.dtype, labels.dtype) == ((20_000, 5), np.uint16, np.uint16)
    for column, width in enumerate(DOMAIN.n_codes):
        real, made = (
            np.bincount(some[:, column], minlength=width) / len(some)
            for some in (rows.codes, codes)
        )
        assert 0.5 * np.abs(real - made).sum() < 0.015
    real, made = (np.bincount(some, minlength=3) / len(some) for some in (rows.label, labels))
    assert np.abs(real - made).max() < 0.005


def test_dependence_between_columns_survives(rows, sampled):
    for first, second in ((0, 3), (0, 1)):
        real, made = (
            np.histogram2d(some[:, first], some[:, second], bins=(np.arange(6), np.arange(7)))[0]
            / len(some)
            for some in (rows.codes, sampled[0])
        )
        assert 0.5 * np.abs(real - made).sum() < 0.04


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


def test_any_sharding_gives_the_same_codes(rows, method, released, sampled):
    parts = [
        EncodedRows(
            codes=rows.codes[part],
            label=rows.label[part],
            weight=rows.weight[part],
            fold=rows.fold[part],
        )
        for part in np.array_split(np.random.default_rng(0).permutation(len(rows)), 7)
    ]
    again = measure(method, curator_of(method, parts, SeededNoise(1), mu=BIG_MU), mu=BIG_MU)
    for name, array in released.items():
        np.testing.assert_array_equal(again[name], array)
    codes, labels = method.sample(again, n_rows=20_000, rng=np.random.default_rng(2))
    np.testing.assert_array_equal(codes, sampled[0])
    np.testing.assert_array_equal(labels, sampled[1])


@pytest.mark.parametrize("n_patients", [0, 1, 3])
def test_hardly_any_rows_give_a_table_of_the_same_shape(n_patients, method, released):
    # No exception may depend on the rows: at this budget all that is left is noise.
    few = made_up_rows(n_patients, 0)
    found = measure(method, curator_of(method, [few], SeededNoise(3), mu=0.2), mu=0.2)
    assert found.keys() == released.keys()
    codes, labels = method.sample(found, n_rows=50, rng=np.random.default_rng(0))
    assert (codes < np.array(DOMAIN.n_codes)).all()
    assert set(labels.tolist()) <= {0, 1, 2}
    for name in ("mixture_components", "label_scores", "row_label_shares"):
        assert np.isfinite(found[name]).all()


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
    n = int(n_rows.sum())
    rows = EncodedRows(
        codes=np.column_stack([rng.integers(0, k, n) for k in domain.n_codes]).astype(np.uint16),
        label=rng.integers(0, domain.n_labels, n).astype(np.uint16),
        weight=np.repeat(1.0 / n_rows, n_rows),
        fold=np.zeros(n, dtype=np.uint8),
    )
    released = measure(method, curator_of(method, [rows], SeededNoise(5), mu=2.0), mu=2.0)
    codes, labels = method.sample(released, n_rows=3_000, rng=rng)
    assert codes.shape == (3_000, domain.n_columns)
    assert (codes < np.array(domain.n_codes)).all()
    assert labels.max() < domain.n_labels


def test_patients_with_more_rows_count_for_more_rows():
    domain, rng = replace(DOMAIN, rows_per_patient=3), np.random.default_rng(6)
    base = made_up_rows(6_000, 7)
    # Patients of the last unit have three rows, others one.
    n_rows = np.where(base.codes[:, 4] == 2, 3, 1)
    index = np.repeat(np.arange(6_000), n_rows)
    rows = EncodedRows(
        codes=base.codes[index],
        label=base.label[index],
        weight=np.repeat(1.0 / n_rows, n_rows),
        fold=base.fold[index],
    )
    method = TableClustMix(domain, EFFORT)
    released = measure(method, curator_of(method, [rows], SeededNoise(8), mu=BIG_MU), mu=BIG_MU)
    codes, labels = method.sample(released, n_rows=20_000, rng=rng)
    assert (codes[:, 4] == 2).mean() == pytest.approx((rows.codes[:, 4] == 2).mean(), abs=0.02)
    for label in range(3):
        assert (labels == label).mean() == pytest.approx((rows.label == label).mean(), abs=0.01)


def two_way_error(codes, rows):
    found = 0.0
    for first, second in ((0, 3), (1, 4), (2, 3)):
        real, made = (
            np.histogram2d(some[:, first], some[:, second], bins=(np.arange(7), np.arange(7)))[0]
            / len(some)
            for some in (rows.codes, codes)
        )
        found += 0.5 * np.abs(real - made).sum()
    return found


def test_more_budget_is_no_worse_and_naive_bayes_is_beaten(rows, method):
    errors = []
    for mu in (0.1, 0.4, 1.6):
        errors.append(0.0)
        for seed in range(3):
            released = measure(method, curator_of(method, [rows], SeededNoise(seed), mu=mu), mu=mu)
            codes, _ = method.sample(released, n_rows=20_000, rng=np.random.default_rng(seed))
            errors[-1] += two_way_error(codes, rows) / 3
    assert errors[0] > errors[1] > errors[2]
    plain = NaiveBayes(DOMAIN)
    released = measure(plain, curator_of(plain, [rows], SeededNoise(0), mu=0.4), mu=0.4)
    codes, _ = plain.sample(released, n_rows=20_000, rng=np.random.default_rng(0))
    assert errors[1] < two_way_error(codes, rows)


def test_a_plan_of_another_budget_is_found_before_the_last_draws(rows, method):
    curator = curator_of(method, [rows], SeededNoise(1), mu=1.0)
    with pytest.raises(IntegrityError, match="expected exactly the planned draws so far"):
        measure(method, curator, mu=2.0)
    assert [event.statistic for event in curator.event.events] == ["label_counts", "pair_tables"]
