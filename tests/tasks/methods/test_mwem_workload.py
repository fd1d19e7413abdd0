"""The workload of MWEM and its exact answers: loops over records, and neighbours one by one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.statistics import SUM_SCALE, patient_count
from tasks.methods.mwem.config import MwemConfig
from tasks.methods.mwem.workload import (
    draw_workload,
    one_way_histograms,
    query_answer,
    workload_answers,
)


def records_of(rows):
    return np.column_stack([rows.codes, rows.label]).astype(int)


def slow_answers(rows, workload):
    """Answer every query record by record."""
    answers = []
    for columns, codes in zip(workload.columns, workload.codes, strict=True):
        total = 0
        for record, weight in zip(records_of(rows), rows.weight, strict=True):
            if all(record[j] == code for j, code in zip(columns, codes, strict=True)):
                total += int(np.trunc(weight * SUM_SCALE))
        answers.append(total)
    return np.array(answers)


def test_the_whole_workload_has_every_cell_without_first_codes_once(small):
    workload = draw_workload(small.domain, MwemConfig())
    assert workload.n_codes == (4, 2, 3, 2)
    cells = [
        frozenset(zip(columns, codes, strict=True))
        for columns, codes in zip(workload.columns.tolist(), workload.codes.tolist(), strict=True)
    ]
    # 3 + 1 + 2 + 1 single codes; 3 + 6 + 3 + 2 + 1 + 2 pairs of codes of different columns.
    assert Counter(len(cell) for cell in cells) == {1: 7, 2: 17}
    assert len(set(cells)) == 24
    assert workload.codes.min() == 1
    assert (workload.codes < np.array(workload.n_codes)[workload.columns]).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 90))
def test_answers_equal_a_loop_over_records(small, seed, n):
    rows = small.rows(small.patients(n, seed))
    workload = draw_workload(small.domain, MwemConfig())
    expected = slow_answers(rows, workload)
    answers = workload_answers(rows, workload=workload)
    assert answers.dtype == np.int64
    np.testing.assert_array_equal(answers, expected)
    for query in range(0, len(workload), 5):
        one = query_answer(
            rows, columns=tuple(workload.columns[query]), codes=tuple(workload.codes[query])
        )
        assert one.tolist() == [expected[query]]
    count = patient_count(rows)
    assert count.dtype == np.int64
    # Three weights of one third are a little less than one patient on the grid.
    assert n - n * 4 / SUM_SCALE <= count[0] / SUM_SCALE <= n


def test_answers_of_more_rows_than_are_packed_at_a_time(small):
    rows = small.rows(small.patients(4_500, 3))
    assert (rows.weight == 0.25).sum() > 4_096, "one amount fills more than one block"
    workload = draw_workload(small.domain, MwemConfig())
    shares = [
        (rows.weight[(records_of(rows)[:, columns] == codes).all(axis=1)].sum())
        for columns, codes in zip(workload.columns, workload.codes, strict=True)
    ]
    answers = workload_answers(rows, workload=workload) / SUM_SCALE
    np.testing.assert_allclose(answers, shares, atol=1e-2, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_no_neighbour_changes_an_answer_by_more_than_one_patient(small, seed):
    patients = small.patients(12, seed)
    workload = draw_workload(small.domain, MwemConfig())
    n_codes = workload.n_codes
    everybody = small.rows(patients)
    answers = workload_answers(everybody, workload=workload)
    centre = np.random.default_rng(seed).integers(0, 12 * SUM_SCALE, len(workload))
    for left_out in range(len(patients)):
        rows = small.rows(patients[:left_out] + patients[left_out + 1 :])
        neighbour = workload_answers(rows, workload=workload)
        scores, other = np.abs(answers - centre), np.abs(neighbour - centre)
        assert np.abs(scores - other).max() <= SUM_SCALE
        assert abs(patient_count(everybody) - patient_count(rows))[0] <= SUM_SCALE
        histograms = one_way_histograms(everybody, n_codes=n_codes).astype(float)
        histograms -= one_way_histograms(rows, n_codes=n_codes)
        assert np.linalg.norm(histograms) <= SUM_SCALE
