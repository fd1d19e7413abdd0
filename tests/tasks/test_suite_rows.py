import logging
import os
import socket

import pandas as pd
import pytest

from storage.schema.table import TableSchema
from tasks.gates import suites
from tasks.gates.suites import _KINDS, cells_of, refusals, suite_checks, unexpected_rows

SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "low", "kind": "integer", "lower": 0, "upper": 99, "bins": 9},
            {"name": "high", "kind": "real", "lower": 0, "upper": 99, "bins": 9, "missing": ["-1"]}
            | {"nullable": True},
            {"name": "code", "kind": "categorical", "levels": ["7", "x"], "missing": ["?"]},
            {"name": "again", "kind": "categorical", "levels": ["7", "x"], "other": "x"},
        ],
        "label": {"name": "died", "levels": {"no": ["0"], "yes": ["1"]}},
    }
)
TEXT = pd.DataFrame(
    {
        "low": ["5", "7.0", "98", "5", "12"],
        "high": ["4", "-1", "99.5", "", "12.0"],
        "code": ["7", "x", "?", "2020-01-01", " 7 "],
        "again": ["7", "7", "x", "{}", "7"],
        "died": ["0", "1", "0", "1", "0"],
    }
)
CODE, PAIR = {"column": "code"}, {"column_A": "code", "column_B": "again"}
LISTS = {"column_list": ["code", "again"]}
ARGUMENTS = {
    "column_values_to_be_between": ({"column": "high", "max_value": 50}, [2]),
    "column_pair_values_a_to_be_greater_than_b": (
        {"column_A": "high", "column_B": "low", "or_equal": True}
        | {"ignore_row_if": "either_value_is_missing"},
        [0],
    ),
    "multicolumn_sum_to_equal": (
        {"column_list": ["low", "high"], "sum_total": 9, "ignore_row_if": "any_value_is_missing"},
        [2, 4],
    ),
    "column_values_to_match_regex": (CODE | {"regex": "^7"}, [1, 3]),
    "column_values_to_not_match_regex": (CODE | {"regex": "^7"}, [0, 4]),
    "column_values_to_match_regex_list": (CODE | {"regex_list": ["7", "x"]}, [3]),
    "column_values_to_not_match_regex_list": (CODE | {"regex_list": ["7", "x"]}, [0, 1, 4]),
    "column_values_to_match_strftime_format": (CODE | {"strftime_format": "%Y-%m-%d"}, [0, 1, 4]),
    "column_values_to_be_dateutil_parseable": (CODE, [1]),
    "column_values_to_be_json_parseable": (CODE, [1, 3]),
    "column_value_lengths_to_be_between": (CODE | {"max_value": 1}, [3]),
    "column_value_lengths_to_equal": (CODE | {"value": 1}, [3]),
    "column_values_to_be_in_set": (CODE | {"value_set": [7]}, [1, 3]),
    "column_values_to_not_be_in_set": (CODE | {"value_set": [7]}, [0, 4]),
    "column_values_to_be_null": (CODE, [0, 1, 3, 4]),
    "column_values_to_not_be_null": (CODE, [2]),
    "column_pair_values_to_be_equal": (PAIR, [1, 2, 3]),
    "column_pair_values_to_be_in_set": (PAIR | {"value_pairs_set": [[7, 7]]}, [1, 2, 3]),
    "multicolumn_values_to_be_equal": (LISTS, [1, 2, 3]),
    "select_column_values_to_be_unique_within_record": (LISTS, [0, 4]),
}


def broken(frame, suite):
    found = list(unexpected_rows(frame, suite, cells_of(SCHEMA)))
    return found[0][2].tolist() if found else []


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_row_is_judged_by_itself(name):
    kwargs, rows = ARGUMENTS[name]
    suite = {"name": "s", "expectations": [{"type": f"expect_{name}", "kwargs": kwargs}]}
    cells = cells_of(SCHEMA)
    assert list(refusals(suite, read=cells, released=cells)) == []
    assert broken(TEXT.set_index(TEXT.index + 40), suite) == rows
    for row in range(len(TEXT)):
        assert broken(TEXT.iloc[[row]], suite) == [0] * (row in rows)
    kept = TEXT.drop(index=rows)
    typed = kept.assign(
        low=kept["low"].astype(float).astype(int),
        high=pd.to_numeric(kept["high"]).replace(-1, None),
    )
    for frame in (kept, typed):
        [check] = suite_checks(frame, suite, cells)
        assert check.passed


def test_every_expectation_of_rows_is_tried():
    assert {f"expect_{name}" for name in ARGUMENTS} == {
        name for name, (_, by_row) in _KINDS.items() if by_row
    }


def test_whole_numbers_are_whole_and_one_library_raises_nothing():
    part = {"type": "expect_column_values_to_be_of_type", "kwargs": {"column": "low"}}
    suite = {"name": "s", "expectations": [part | {"kwargs": {**part["kwargs"], "type_": "int64"}}]}
    assert all(check.passed for check in suite_checks(TEXT, suite, cells_of(SCHEMA)))


def test_a_result_carries_no_value(monkeypatch, tmp_path, caplog, capfd):
    calls = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: calls.append(address))
    monkeypatch.chdir(tmp_path)
    suites.great_expectations.cache_clear()
    part = {"type": "expect_column_values_to_be_in_set", "kwargs": CODE | {"value_set": ["7"]}}
    frame = TEXT.assign(code="MRN-SECRET-7751")
    with caplog.at_level(logging.DEBUG):
        [result] = suites._judged(frame, {"": part}, cells_of(SCHEMA))
    assert not result.success
    assert not result.result
    out, err = capfd.readouterr()
    assert "MRN-SECRET" not in str(result) + caplog.text + out + err
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"
    assert calls == list(tmp_path.iterdir()) == []
