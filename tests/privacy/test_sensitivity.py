"""Sensitivities by brute force: every neighbour of every tiny table, by the definition."""

import inspect
import math
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privacy import sensitivity
from privacy.errors import ConfigurationError
from privacy.sensitivity import (
    block_fourth_power_sum,
    second_moment_l2_sensitivity,
    weighted_sum_l2_sensitivity,
)


def quantise(values, scale):
    return np.trunc(values * scale).astype(np.int64)


def weighted_sum(table, *, scale):
    total = np.zeros(2, dtype=np.int64)
    for patient in table:
        for row in patient:
            total += quantise(np.array(row) / len(patient), scale)
    return total


def sum_by_cell(table, *, scale):
    """Rows of one patient fall into different cells, by the sign of their first coordinate."""
    total = np.zeros((2, 2), dtype=np.int64)
    for patient in table:
        for row in patient:
            values = np.array(row) / len(patient)
            total[int(row[0] > 0)] += quantise(values, scale)
    return total


def second_moment(table, *, scale):
    width = len(table[0][0]) if table else 2
    total = np.zeros((width, width), dtype=np.int64)
    for patient in table:
        for row in patient:
            psi = quantise(np.array(row) * math.sqrt(1 / len(patient)), scale)
            total += np.outer(psi, psi)
    return total[np.triu_indices(width)]


def patients(rows, *, max_rows):
    return [
        patient
        for size in range(1, max_rows + 1)
        for patient in combinations_with_replacement(rows, size)
    ]


def neighbours(candidates):
    """All pairs of tables of at most two patients that differ by one patient."""
    for one in candidates:
        yield (one,), ()
    for one, other in combinations_with_replacement(candidates, 2):
        yield (one, other), (one,)
        yield (one, other), (other,)


def largest_change(statistic, candidates, *, empty):
    largest = 0.0
    for table, without in neighbours(candidates):
        before = statistic(without) if without else np.int64(empty)
        largest = max(largest, float(np.linalg.norm((statistic(table) - before).ravel())))
    return largest


# Points of the unit disc whose coordinates do not fall on the grid.
DISC = [
    (x, y)
    for x, y in product((-1.0, -0.8, -math.sqrt(0.5), 0.0, 0.6, 1.0), repeat=2)
    if x * x + y * y <= 1
]


@pytest.mark.parametrize("statistic", [weighted_sum, sum_by_cell])
@pytest.mark.parametrize("scale", [4.0, 1024.0])
def test_weighted_sum_by_brute_force(statistic, scale):
    largest = largest_change(
        lambda table: statistic(table, scale=scale), patients(DISC[::4], max_rows=3), empty=0
    )
    bound = weighted_sum_l2_sensitivity(bound=1.0, scale=scale)
    assert 0.99 * bound < largest <= bound


@pytest.mark.parametrize("scale", [4.0, 1024.0])
def test_second_moment_by_brute_force(scale):
    largest = largest_change(
        lambda table: second_moment(table, scale=scale), patients(DISC[::4], max_rows=3), empty=0
    )
    bound = second_moment_l2_sensitivity(scale=scale)
    assert 0.99 * bound < largest <= bound


@pytest.mark.parametrize("scale", [4.0, 1024.0])
@pytest.mark.parametrize(
    ("statistic", "bound", "least"),
    [
        (weighted_sum, lambda scale: weighted_sum_l2_sensitivity(bound=1.0, scale=scale), 2.0),
        # Neither cells nor a square let two patients stand on opposite sides.
        (sum_by_cell, lambda scale: weighted_sum_l2_sensitivity(bound=1.0, scale=scale), 1.4),
        (second_moment, lambda scale: second_moment_l2_sensitivity(scale=scale), 1.4),
    ],
    ids=["sum", "sum by cell", "second moment"],
)
def test_replacing_a_patient_moves_at_most_twice_as_much_by_brute_force(
    statistic, bound, least, scale
):
    tables = [
        (one,) for one in patients([*DISC[::3], (-1.0, 0.0), (1.0, 0.0), (0.0, 1.0)], max_rows=2)
    ]
    values = np.stack([statistic(table, scale=scale).ravel() for table in tables])
    largest = max(float(np.linalg.norm(values - one, axis=1).max()) for one in values)
    assert 0.99 * least * bound(scale) < largest <= 2 * bound(scale)


def test_every_sensitivity_of_the_module_has_a_brute_force():
    functions = {
        name
        for name, _ in inspect.getmembers(sensitivity, inspect.isfunction)
        if name.endswith("sensitivity")
    }
    assert functions == {"weighted_sum_l2_sensitivity", "second_moment_l2_sensitivity"}


ROOT = math.sqrt(0.5)
ONE_HOT = [
    tuple(ROOT * x for x in (*first, *second))
    for first, second in product(((1.0, 0.0), (0.0, 1.0)), repeat=2)
]
TENT = [
    (ROOT * x, ROOT * (1 - abs(x)), ROOT * y, ROOT * (1 - abs(y)))
    for x, y in product((-1.0, 0.0, 0.3), repeat=2)
]
CIRCLE = [
    (ROOT * math.cos(a), ROOT * math.sin(a), ROOT * math.cos(b), ROOT * math.sin(b))
    for a, b in product((0.0, 0.7, math.pi / 2), repeat=2)
]


@pytest.mark.parametrize("rows", [ONE_HOT, TENT, CIRCLE], ids=["one-hot", "tent", "circle"])
def test_second_moment_of_two_blocks_by_brute_force(rows):
    fourth_power_sum = block_fourth_power_sum([ROOT, ROOT])
    assert fourth_power_sum == pytest.approx(0.5)
    largest = largest_change(
        lambda table: second_moment(table, scale=1024.0), patients(rows, max_rows=2), empty=0
    )
    bound = second_moment_l2_sensitivity(scale=1024.0, max_fourth_power_sum=fourth_power_sum)
    assert bound == pytest.approx(1024.0**2 * math.sqrt(0.75))
    # Attained where one coordinate carries each block, which all three can do.
    assert 0.99 * bound < largest <= bound


def test_features_that_do_not_fill_their_blocks_need_less_and_may_prove_it():
    # Blocks (x, 1 - |x|) / sqrt(2) with 0.4 <= |x| <= 0.5: no coordinate carries a block alone.
    rows = [
        (ROOT * x, ROOT * (1 - abs(x)), ROOT * y, ROOT * (1 - abs(y)))
        for x, y in product((-0.5, 0.4, 0.5), repeat=2)
    ]
    proven = max(sum(value**4 for value in row) for row in rows)
    largest = largest_change(
        lambda table: second_moment(table, scale=1024.0), patients(rows, max_rows=2), empty=0
    )
    assert largest <= second_moment_l2_sensitivity(scale=1024.0, max_fourth_power_sum=proven)
    assert proven < block_fourth_power_sum([ROOT, ROOT])


@given(
    blocks=st.lists(
        hnp.arrays(np.float64, st.integers(1, 4), elements=st.floats(-1, 1)), min_size=1, max_size=5
    )
)
def test_fourth_powers_stay_below_the_bound_of_the_blocks(blocks):
    norm = max(1.0, float(np.linalg.norm(np.concatenate(blocks))))
    blocks = [block / norm for block in blocks]
    bound = block_fourth_power_sum([float(np.linalg.norm(block)) for block in blocks])
    fourth = sum(float(np.sum(block**4)) for block in blocks)
    assert fourth <= bound + 1e-15
    phi = np.concatenate(blocks)
    upper = np.outer(phi, phi)[np.triu_indices(len(phi))]
    assert np.linalg.norm(upper) <= second_moment_l2_sensitivity(
        scale=1.0, max_fourth_power_sum=bound
    )


def test_rounding_to_nearest_would_break_the_bound():
    # Why truncation: (0.6, 0.8) of norm 1 rounds to (1, 1) of norm sqrt(2) on the unit grid.
    assert np.linalg.norm(np.rint([0.6, 0.8])) > weighted_sum_l2_sensitivity(bound=1.0, scale=1.0)
    assert np.linalg.norm(quantise(np.array([0.6, 0.8]), 1.0)) == 0


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_arguments_outside_their_range_are_refused(wrong):
    with pytest.raises(ConfigurationError, match="expected bound to be finite and above 0"):
        weighted_sum_l2_sensitivity(bound=wrong, scale=1.0)
    with pytest.raises(ConfigurationError, match="expected scale to be finite and above 0"):
        weighted_sum_l2_sensitivity(bound=1.0, scale=wrong)
    with pytest.raises(ConfigurationError, match="expected scale to be finite and above 0"):
        second_moment_l2_sensitivity(scale=wrong)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_a_sum_of_fourth_powers_is_at_most_one(wrong):
    with pytest.raises(ConfigurationError, match="expected max_fourth_power_sum from 0 to 1"):
        second_moment_l2_sensitivity(scale=1.0, max_fourth_power_sum=wrong)


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ([], "expected one finite norm of at least 0 per block"),
        ([-0.5], "expected one finite norm of at least 0 per block"),
        ([math.nan], "expected one finite norm of at least 0 per block"),
        ([0.8, 0.7], "expected the squares of the norms to sum to at most 1"),
    ],
)
def test_block_norms_outside_their_range_are_refused(norms, message):
    with pytest.raises(ConfigurationError, match=message):
        block_fourth_power_sum(norms)
