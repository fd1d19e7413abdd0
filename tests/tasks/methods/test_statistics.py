import inspect
import math
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from measuring import domain_with, drawn_by, take

from privacy.calibration import gdp_mu
from privacy.mechanisms import weighted_sum_l2_sensitivity
from tasks.ingest.contributions import bound_contributions, named_patients
from tasks.measurement import centred, statistics
from tasks.measurement.centred import label_counts
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.dpgm.dpgm_settings import DpKMeansConfig
from tasks.methods.naive_bayes import NaiveBayesConfig
from tasks.methods.registry import build

SENSITIVITY = weighted_sum_l2_sensitivity(bound=1.0, scale=SUM_SCALE)


def public_of(small, seed):
    """Public arguments of a statistic, drawn as a release could have them."""
    n_clusters = 2 + seed % 3
    return {
        "n_clusters": n_clusters,
        "assign": lambda codes, label: (codes.sum(axis=1, dtype=np.int64) + label) % n_clusters,
        "n_labels": small.domain.n_labels,
        "n_codes": small.domain.n_codes,
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_slow_reference_exactly(seed, small):
    """One record and one coordinate at a time, in Python integers."""
    rows, public = small.rows(small.patients(25, seed)), public_of(small, seed)
    fast = label_counts(rows, **public)
    slow = np.zeros(fast.shape, dtype=object)
    n_codes, clusters = public["n_codes"], public["n_clusters"]
    of_codes = sum(1 - 1 / k for k in n_codes)
    count = max(1.0, of_codes / 10)
    unit = SUM_SCALE / math.sqrt(count + of_codes)
    records = (rows.codes.tolist(), rows.label.tolist(), rows.weight.tolist())
    for codes, label, weight in zip(*records, strict=True):
        line = slow[label * clusters + (sum(codes) + label) % clusters]
        line[0] += int(weight * math.sqrt(count) * unit)
        for start, k, code in zip(np.cumsum((1, *n_codes)), n_codes, codes, strict=False):
            for other in range(k):
                line[start + other] += int(weight * unit / k) * (k * (code == other) - 1)
    assert fast.dtype == np.int64
    assert np.abs(fast).max() > 1000
    np.testing.assert_array_equal(fast, slow)


# Brute force: every neighbour of small tables. A domain of twelve records, one column with a
# missing code; every patient with up to three of them, in either part of the moments.
TINY = domain_with(3, 2, numeric=[0], missing=[0])
MAX_ROWS = 3
RECORDS = [((a, b), y) for a, b, y in product(range(3), range(2), range(2))]
SETTINGS = {
    "dp_kmeans": DpKMeansConfig(clusters=2, rounds=2, n_features=4),
    "naive_bayes": NaiveBayesConfig(),
}
COUNTS = {"class_counts"}
"""Those of methods that `test_every_method` searches."""


def every_patient(max_rows):
    return [
        (fold, list(records))
        for fold in (0, 1)
        for size in range(1, max_rows + 1)
        for records in combinations_with_replacement(RECORDS, size)
    ]


def rows_of(patients):
    """Rows of given patients, weighted by the code that weights them in a release."""
    keys = [f"p{number}" for number, (_, records) in enumerate(patients) for _ in records]
    records = [record for _, own in patients for record in own]
    codes = np.array([codes for codes, _ in records], dtype=np.uint16)
    label = np.array([label for _, label in records], dtype=np.uint16)
    keep, weight = bound_contributions(
        *named_patients(keys), np.column_stack([codes, label]), MAX_ROWS
    )
    fold = np.array([fold for fold, own in patients for _ in own], dtype=np.uint8)
    return EncodedRows(codes=codes[keep], label=label[keep], weight=weight[keep], fold=fold[keep])


def changes(contribution, public, tables):
    """What each table adds to an empty one, as rows of a matrix of integers."""
    assert not contribution(take(tables[0], slice(0)), **public).any()
    return np.stack([contribution(table, **public).ravel() for table in tables])


def largest_square(moved):
    """The largest squared norm of rows of integers, exactly."""
    return max(sum(value * value for value in row) for row in moved.tolist())


@pytest.fixture(scope="module")
def patients():
    """Each possible patient alone, up to MAX_ROWS rows."""
    return [rows_of([patient]) for patient in every_patient(MAX_ROWS)]


@pytest.fixture(scope="module")
def public(small):
    """Cells of the tiny domain."""
    return public_of(type(small)(TINY), 3)


@pytest.fixture(scope="module")
def released_statistics():
    """Every draw of two proven methods on a made-up table: function, arguments, sensitivity."""
    found = {}
    for kind, config in SETTINGS.items():
        rng = np.random.default_rng(0)
        all_patients = every_patient(2)
        table = rows_of([all_patients[i] for i in rng.integers(len(all_patients), size=200)])
        plan, seen, _ = drawn_by(build(config, TINY), table, mu=gdp_mu(epsilon=3.0, delta=1e-6))
        for name, (contribution, arguments) in seen.items():
            if contribution is label_counts:
                found[kind, name] = (contribution, arguments, plan[name].l2_sensitivity)
    return found


def test_every_public_function_of_the_module_is_searched_or_sees_no_rows():
    functions = {
        name: function
        for name, function in inspect.getmembers(statistics, inspect.isfunction)
        if function.__module__ == statistics.__name__ and not name.startswith("_")
    }
    assert set(functions) == COUNTS
    for name, function in functions.items():
        assert "EncodedRows" in str(inspect.signature(function)), name
        assert "Privacy" in function.__doc__, name


def test_no_patient_moves_a_released_statistic_by_more_than_its_sensitivity(
    released_statistics, patients
):
    for (_, name), (contribution, arguments, sensitivity) in released_statistics.items():
        largest = largest_square(changes(contribution, arguments, patients))
        # Exact integers against the exact value of the float; a smaller bound would be wrong.
        assert largest <= Fraction(sensitivity) ** 2, name
        assert largest >= (0.999 * Fraction(sensitivity)) ** 2, name


def test_a_replaced_patient_moves_a_released_statistic_by_at_most_twice_that(
    released_statistics, patients
):
    for (_, name), (contribution, arguments, sensitivity) in released_statistics.items():
        moved = changes(contribution, arguments, patients).astype(np.float64)
        largest = max(float(((moved - row) ** 2).sum(axis=1).max()) for row in moved)
        assert largest <= (2 * sensitivity) ** 2, name
        # More than one patient more or less, so the two adjacencies are not the same claim.
        assert largest > 1.2 * float((moved**2).sum(axis=1).max()), name


def test_one_patient_moves_nothing_of_the_others(public):
    # All tables of two patients: what a patient adds does not depend on who else is there.
    ones, others = every_patient(2), every_patient(1)
    first, second = (
        changes(label_counts, public, [rows_of([patient]) for patient in group])
        for group in (ones, others)
    )
    for i, one in enumerate(ones):
        for j in range(i % 5, len(others), 5):
            both = label_counts(rows_of([one, others[j]]), **public).ravel()
            np.testing.assert_array_equal(both, first[i] + second[j])


def test_rows_beyond_the_bound_have_no_influence(public):
    kept = [RECORDS[3], RECORDS[8], RECORDS[5]]
    for record in RECORDS:
        more = rows_of([(0, [*kept, record, record])])
        own = list(zip(map(tuple, more.codes.tolist()), more.label.tolist(), strict=True))
        assert len(own) == MAX_ROWS
        expected = label_counts(rows_of([(0, own)]), **public)
        np.testing.assert_array_equal(label_counts(more, **public), expected)


def test_search_finds_a_weight_that_is_not_shared(public):
    twice = [rows_of([(0, [record])] * 2) for record in RECORDS]
    assert largest_square(changes(label_counts, public, twice)) > Fraction(SENSITIVITY) ** 2


def test_search_finds_a_grid_that_rounds_away_from_zero(public, monkeypatch, patients):
    bound = Fraction(SENSITIVITY) ** 2
    assert largest_square(changes(label_counts, public, patients)) <= bound
    monkeypatch.setattr(centred.np, "trunc", np.ceil)
    assert largest_square(changes(label_counts, public, patients)) > bound
