"""Exact statistics: slow references, independence of shards, and brute-force sensitivity."""

import inspect
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from measuring import NotingExecutor

from privacy.accountants.calibration import gdp_mu
from privacy.randomness import SeededNoise
from privacy.sensitivity import weighted_sum_l2_sensitivity
from tasks.ingest.contributions import bound_contributions
from tasks.measurement import statistics
from tasks.measurement.centred import label_counts
from tasks.measurement.curator import Curator, in_memory
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.synthesizer import measure
from tasks.synthesizers.kmeans.config import DpKMeansConfig
from tasks.synthesizers.naive_bayes import NaiveBayesConfig
from tasks.synthesizers.registry import build

UNIT_SUM = weighted_sum_l2_sensitivity(bound=1.0, scale=SUM_SCALE)
SENSITIVITY = {"cell_histograms": UNIT_SUM}
NAMES = tuple(SENSITIVITY)


@dataclass(frozen=True)
class Remainders:
    """Clusters by a remainder: as much a function of the record alone as nearest centres are."""

    n_clusters: int

    def assign(self, codes, label):
        return (codes.sum(axis=1, dtype=np.int64) + label) % self.n_clusters


def public_of(small, seed):
    """Public arguments of a statistic, drawn as a release could have them."""
    return {
        "clustering": Remainders(2 + seed % 3),
        "n_labels": small.domain.n_labels,
        "offsets": small.domain.one_hot_offsets,
    }


def exact(name, rows, public):
    return getattr(statistics, name)(rows, **public)


def reference(rows, public):
    """One record and one coordinate at a time, in Python integers."""
    total = {}

    def add(key, value):
        total[key] = total.get(key, 0) + value

    for i in range(len(rows)):
        codes, label = rows.codes[i].tolist(), int(rows.label[i])
        weight = float(rows.weight[i])
        cell = (sum(codes) + label) % public["clustering"].n_clusters
        for start, code in zip(public["offsets"], codes, strict=False):
            add((label, cell, int(start) + code), int(weight / math.sqrt(3) * SUM_SCALE))
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_slow_reference_exactly(name, seed, small):
    rows = small.rows(small.patients(25, seed))
    public = public_of(small, seed)
    fast = exact(name, rows, public)
    slow = np.zeros_like(fast)
    for key, value in reference(rows, public).items():
        slow[key] = value
    assert fast.dtype == np.int64
    assert np.abs(fast).max() > 1000
    np.testing.assert_array_equal(fast, slow)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_shards_their_number_and_order_give_the_same_bytes(name, seed, cuts, small, in_shards):
    rows = small.rows(small.patients(30, seed))
    public = public_of(small, seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = [exact(name, shard, public) for shard in in_shards(rows, order, cuts)]
    assert np.sum(parts, axis=0).tobytes() == exact(name, rows, public).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_memory_layout_does_not_change_a_bit(name, small):
    rows = small.rows(small.patients(40, 5))
    public = public_of(small, 5)
    expected = exact(name, rows, public)
    fortran = type(rows)(
        codes=np.asfortranarray(rows.codes), label=rows.label, weight=rows.weight, fold=rows.fold
    )
    assert exact(name, fortran, public).tobytes() == expected.tobytes()


def squared_distance(a, b):
    """Exact squared Euclidean distance of two integer arrays."""
    return sum(value * value for value in (a - b).ravel().tolist())


records = st.tuples(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2)), st.integers(0, 1)
)
patient = st.tuples(st.integers(0, 4), st.lists(records, min_size=1, max_size=5))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(
    others=st.lists(patient, max_size=4),
    one=patient,
    seed=st.integers(0, 50),
)
@example(others=[], one=(0, [((0, 0, 0), 0)]), seed=0)
@example(others=[], one=(1, [((0, 0, 0), 0)] * 49), seed=0)
@example(others=[], one=(1, [((0, 0, 0), 0), ((3, 1, 2), 1)]), seed=0)
def test_one_patient_moves_a_statistic_by_at_most_its_sensitivity(name, others, one, seed, small):
    public = public_of(small, seed)
    with_one = exact(name, small.rows([*others, one]), public)
    without = exact(name, small.rows(others), public)
    moved = squared_distance(with_one, without)
    assert moved <= Fraction(SENSITIVITY[name]) ** 2


@pytest.mark.parametrize(("name", "attained"), [("cell_histograms", 0.999)])
def test_sensitivity_is_attained_so_that_a_smaller_bound_would_be_wrong(name, attained, small):
    public = public_of(small, 0)
    nothing = exact(name, small.rows([]), public)
    moves = [
        squared_distance(exact(name, small.rows([(1, [((a, b, c), y)])]), public), nothing)
        for a in range(4)
        for b in range(2)
        for c in range(3)
        for y in range(2)
    ]
    assert math.sqrt(max(moves)) >= attained * SENSITIVITY[name]


def test_logits_of_a_record_have_the_same_bits_whatever_the_other_records():
    # A matrix product of all rows fails here.
    rng = np.random.default_rng(0)
    for n_labels in (2, 3):
        phi, weights = rng.standard_normal((50, 82)), rng.standard_normal((82, n_labels))
        together = statistics.logits_by_record(phi, weights)
        np.testing.assert_allclose(together, phi @ weights, atol=1e-12)
        for n in (1, 2, 3, 7, 49):
            some = statistics.logits_by_record(phi[-n:], weights)
            assert some.tobytes() == together[-n:].tobytes()
        for i in range(50):
            alone = statistics.logits_by_record(phi[i : i + 1], weights)
            assert alone.tobytes() == together[i].tobytes()
            probabilities = statistics.softmax(together)[i]
            assert statistics.softmax(alone).tobytes() == probabilities.tobytes()


# Brute force: every neighbour of small tables. A domain of twelve records, one column with a
# missing code; every patient with up to three of them, in either part of the moments.
TINY = EncodingDomain(
    column_names=("lab", "ward"),
    n_codes=(3, 2),
    has_missing=(True, False),
    numeric=(True, False),
    label_levels=("no", "yes"),
)
MAX_ROWS = 3
RECORDS = [((a, b), y) for a, b, y in product(range(3), range(2), range(2))]
SETTINGS = {
    "dp_kmeans": DpKMeansConfig(clusters=2, rounds=2, n_features=4),
    "naive_bayes": NaiveBayesConfig(),
}
ARITHMETIC = {"logits_by_record", "softmax"}
"""Public functions of the module that see no private rows."""
COUNTS = {"class_counts", "patient_count"}
"""Those of methods that `test_every_sensitivity` searches."""


def every_patient(max_rows):
    return [
        (fold, list(records))
        for fold in (0, 1)
        for size in range(1, max_rows + 1)
        for records in combinations_with_replacement(RECORDS, size)
    ]


def changes(contribution, public, tables):
    """What each table adds to an empty one, as rows of a matrix of integers."""
    nothing = contribution(tables[0][:0], **public)
    assert not nothing.any()
    return np.stack([contribution(table.rows, **public).ravel() for table in tables])


class TinyTable:
    """Rows of given patients, weighted by the code that weights them in a release."""

    def __init__(self, patients, *, max_rows=MAX_ROWS):
        keys = [f"p{number}" for number, (_, records) in enumerate(patients) for _ in records]
        records = [record for _, own in patients for record in own]
        codes = np.array([codes for codes, _ in records], dtype=np.uint16)
        label = np.array([label for _, label in records], dtype=np.uint16)
        keep, weight = bound_contributions(
            np.array(keys, dtype=object), np.column_stack([codes, label]), max_rows
        )
        self.rows = EncodedRows(
            codes=codes[keep],
            label=label[keep],
            weight=weight[keep],
            fold=np.array([fold for fold, own in patients for _ in own], dtype=np.uint8)[keep],
        )

    def __getitem__(self, index):
        return EncodedRows(
            codes=self.rows.codes[index],
            label=self.rows.label[index],
            weight=self.rows.weight[index],
            fold=self.rows.fold[index],
        )


@pytest.fixture(scope="module")
def patients():
    """Each possible patient alone, up to MAX_ROWS rows."""
    return [TinyTable([patient]) for patient in every_patient(MAX_ROWS)]


@pytest.fixture(scope="module")
def released_statistics():
    """Every draw of every proven method on a made-up table: function, arguments, sensitivity."""
    found = {}
    for kind, config in SETTINGS.items():
        rng = np.random.default_rng(0)
        all_patients = every_patient(2)
        table = TinyTable([all_patients[i] for i in rng.integers(len(all_patients), size=200)])
        method = build(config, TINY)

        executor, mu = NotingExecutor(), gdp_mu(epsilon=3.0, delta=1e-6)
        curator = Curator(
            plan=method.plan(mu=mu),
            shards=in_memory([table.rows]),
            executor=executor,
            noise_source=SeededNoise(1),
        )
        measure(method, curator, mu=mu)
        for planned, (contribution, public) in zip(
            curator.plan.statistics, executor.asked, strict=True
        ):
            if contribution.__name__ in (*NAMES, label_counts.__name__):
                found[kind, planned.name] = (contribution, public, planned.l2_sensitivity)
    return found


def test_every_public_function_of_the_module_is_searched_or_sees_no_rows():
    functions = {
        name: function
        for name, function in inspect.getmembers(statistics, inspect.isfunction)
        if function.__module__ == statistics.__name__ and not name.startswith("_")
    }
    assert set(functions) == set(NAMES) | COUNTS | ARITHMETIC
    for name, function in functions.items():
        takes_rows = "EncodedRows" in str(inspect.signature(function))
        assert takes_rows == (name not in ARITHMETIC), name
        assert ("Privacy" in function.__doc__) == takes_rows, name


def test_every_released_statistic_is_a_function_of_the_module(released_statistics):
    drawn = {contribution.__name__ for contribution, _, _ in released_statistics.values()}
    assert drawn == {*NAMES, label_counts.__name__}
    for contribution, _, sensitivity in released_statistics.values():
        if contribution is label_counts:
            continue
        assert getattr(statistics, contribution.__name__) is contribution
        assert sensitivity == SENSITIVITY[contribution.__name__]


def test_no_patient_moves_a_released_statistic_by_more_than_its_sensitivity(
    released_statistics, patients
):
    for (_, name), (contribution, public, sensitivity) in released_statistics.items():
        moved = changes(contribution, public, patients)
        largest = max(sum(value * value for value in row) for row in moved.tolist())
        # Exact integers against the exact value of the float.
        assert largest <= Fraction(sensitivity) ** 2, name
        assert largest >= (0.8 * Fraction(sensitivity)) ** 2, name


def test_a_replaced_patient_moves_a_released_statistic_by_at_most_twice_that(
    released_statistics, patients
):
    for (_, name), (contribution, public, sensitivity) in released_statistics.items():
        moved = changes(contribution, public, patients).astype(np.float64)
        largest = max(float(((moved - row) ** 2).sum(axis=1).max()) for row in moved)
        assert largest <= (2 * sensitivity) ** 2, name
        # More than one patient more or less, so the two adjacencies are not the same claim.
        assert largest > 1.2 * float((moved**2).sum(axis=1).max()), name


@pytest.mark.parametrize("name", NAMES)
def test_one_patient_moves_nothing_of_the_others(name, small):
    # All tables of two patients: what a patient adds does not depend on who else is there.
    public = public_of(type(small)(TINY), 3)
    ones, others = every_patient(2), every_patient(1)
    function = getattr(statistics, name)
    alone = {
        number: changes(function, public, [TinyTable([patient]) for patient in group])
        for number, group in enumerate((ones, others))
    }
    for i, one in enumerate(ones):
        for j in range(i % 5, len(others), 5):
            both = function(TinyTable([one, others[j]]).rows, **public).ravel()
            np.testing.assert_array_equal(both, alone[0][i] + alone[1][j])


@pytest.mark.parametrize("name", NAMES)
def test_rows_beyond_the_bound_have_no_influence(name, small):
    public = public_of(type(small)(TINY), 3)
    function = getattr(statistics, name)
    kept = [RECORDS[3], RECORDS[8], RECORDS[5]]
    for record in RECORDS:
        more = TinyTable([(0, [*kept, record, record])]).rows
        own = list(zip(map(tuple, more.codes.tolist()), more.label.tolist(), strict=True))
        assert len(own) == MAX_ROWS
        expected = function(TinyTable([(0, own)]).rows, **public)
        np.testing.assert_array_equal(function(more, **public), expected)


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_a_weight_that_is_not_shared(name, small):
    public = public_of(type(small)(TINY), 3)
    rows = [TinyTable([(0, [record])] * 2).rows for record in RECORDS]
    function = getattr(statistics, name)
    moved = [function(pair, **public).ravel().tolist() for pair in rows]
    bound = Fraction(SENSITIVITY[name]) ** 2
    assert max(sum(value * value for value in row) for row in moved) > bound


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_a_grid_that_rounds_away_from_zero(name, small, monkeypatch, patients):
    public = public_of(type(small)(TINY), 3)
    function, bound = getattr(statistics, name), Fraction(SENSITIVITY[name]) ** 2

    def largest():
        moved = changes(function, public, patients).tolist()
        return max(sum(value * value for value in row) for row in moved)

    assert largest() <= bound
    monkeypatch.setattr(
        statistics, "_grid", lambda values: np.copysign(np.ceil(np.abs(values)), values)
    )
    assert largest() > bound
