import inspect
import math
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from privacy import mechanisms
from privacy.errors import ConfigurationError
from privacy.mechanisms import weighted_sum_l2_sensitivity


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


# Points of the unit disc whose coordinates do not fall on the grid.
DISC = [
    (x, y)
    for x, y in product((-1.0, -0.8, -math.sqrt(0.5), 0.0, 0.6, 1.0), repeat=2)
    if x * x + y * y <= 1
]


@pytest.mark.parametrize("statistic", [weighted_sum, sum_by_cell])
@pytest.mark.parametrize("scale", [4.0, 1024.0])
def test_weighted_sum_by_brute_force(statistic, scale):
    largest = max(
        float(np.linalg.norm(statistic(table, scale=scale) - statistic(without, scale=scale)))
        for table, without in neighbours(patients(DISC[::4], max_rows=3))
    )
    bound = weighted_sum_l2_sensitivity(bound=1.0, scale=scale)
    assert 0.99 * bound < largest <= bound


@pytest.mark.parametrize("scale", [4.0, 1024.0])
# Cells do not let two patients stand on opposite sides.
@pytest.mark.parametrize(("statistic", "least"), [(weighted_sum, 2.0), (sum_by_cell, 1.4)])
def test_replacing_a_patient_moves_at_most_twice_as_much_by_brute_force(statistic, least, scale):
    rows = [*DISC[::3], (-1.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
    values = np.stack(
        [statistic((one,), scale=scale).ravel() for one in patients(rows, max_rows=2)]
    )
    largest = max(float(np.linalg.norm(values - one, axis=1).max()) for one in values)
    bound = weighted_sum_l2_sensitivity(bound=1.0, scale=scale)
    assert 0.99 * least * bound < largest <= 2 * bound


def test_every_sensitivity_of_the_module_has_a_brute_force():
    functions = {
        name
        for name, _ in inspect.getmembers(mechanisms, inspect.isfunction)
        if name.endswith("sensitivity")
    }
    assert functions == {"weighted_sum_l2_sensitivity"}


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
