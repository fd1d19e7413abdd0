"""Great Expectations reveals booleans only; the output gate says what it found."""

import logging
import os
import socket

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import random_records

from privacy.errors import ConfigurationError
from storage.schema.columns import CategoricalColumn
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.gates import table_rules
from tasks.gates.table_rules import output_gate
from tasks.ingest.encoding import decode, domain_of, encode_chunk

CANARY = "MRN-SECRET-7751"


SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"kind": "integer", "name": "age", "lower": 0, "upper": 100, "bins": 10},
            {"kind": "real", "name": "lab", "lower": 0, "upper": 9, "bins": 3}
            | {"nullable": True, "missing": ["?"]},
            {"kind": "categorical", "name": "unit", "levels": ["icu", "ward"], "missing": ["-9"]},
            {"kind": "categorical", "name": "code", "levels": ["a", "other"], "other": "other"},
            {"kind": "categorical", "name": "diag", "levels": ["heart", "injury"]}
            | {"groups": {"heart": ["785"]}, "prefixes": {"injury": ["E"]}}
            | {"numeric_ranges": {"heart": [[390, 460]]}},
        ],
        "label": {"name": "died", "levels": {"no": ["0"], "yes": ["1"]}, "missing": ["?"]},
        "ignore": ["id"],
    }
)


def failed(checks):
    return [check.check for check in checks if not check.passed]


def broken(frame, schema=SCHEMA):
    return {violation.column for violation in encode_chunk(frame, schema).violations}


@settings(max_examples=25, deadline=None)
@given(
    # What a level may hold: printable, and nothing that a spreadsheet runs.
    st.lists(
        st.text(
            st.characters(exclude_categories=["C", "Z"], exclude_characters="=@+-"),
            min_size=1,
            max_size=8,
        ),
        min_size=2,
        max_size=6,
        unique=True,
    ),
    st.booleans(),
)
def test_any_declared_level_is_accepted(levels, prefixed):
    changes = {"prefixes": {levels[0]: ("zz-",)}} if prefixed else {}
    column = CategoricalColumn(kind="categorical", name="unit", levels=tuple(levels), **changes)
    schema = TableSchema(columns=(column,), label=Label(name="died", levels={"no": (), "yes": ()}))
    frame = pd.DataFrame({"unit": pd.Series(levels, dtype="str")})
    frame["died"] = "no"
    assert broken(frame, schema) == set()
    frame.loc[0, "unit"] = levels[0] + "\N{SNOWMAN}no level"
    assert broken(frame, schema) == {"unit"}


def test_a_numeric_label_is_cut_into_buckets():
    label = Label(name="days", buckets={"edges": (3.0,), "levels": ("short", "long")})
    schema = TableSchema(columns=SCHEMA.columns[:1], label=label)
    frame = pd.DataFrame({"age": ["1", "2"], "days": ["2.5", "14"]}, dtype="str")
    assert broken(frame, schema) == set()
    frame.loc[1, "days"] = "fortnight"
    assert broken(frame, schema) == {"days"}


@pytest.mark.parametrize("result_format", ["BASIC", "SUMMARY", "COMPLETE"])
def test_another_result_format_is_refused(result_format, monkeypatch):
    assert table_rules.RESULT_FORMAT == "BOOLEAN_ONLY"
    monkeypatch.setattr(table_rules, "RESULT_FORMAT", result_format)
    with pytest.raises(ConfigurationError) as caught:
        output_gate(make_release().assign(age=CANARY), SCHEMA, 200)
    assert str(caught.value) == (
        "RESULT_FORMAT: expected a result without values from Great Expectations; "
        "use the version of the lock file"
    )


def test_no_value_leaves_by_report_log_or_terminal(caplog, capfd):
    frame = make_release(3).assign(**dict.fromkeys(SCHEMA.released_columns, CANARY))
    mixed = frame.astype(object)
    mixed["age"] = [CANARY, 1, None]
    frames = frame, mixed, mixed.drop(columns=["age", "died"])
    with caplog.at_level(logging.DEBUG):
        reports = [output_gate(each, SCHEMA, 3) for each in frames]
    assert all(map(failed, reports))
    out, err = capfd.readouterr()
    assert CANARY not in repr(reports) + caplog.text + out + err


def test_great_expectations_makes_no_connection_and_writes_no_file(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: calls.append(address))
    monkeypatch.chdir(tmp_path)
    table_rules.batch_definition.cache_clear()
    assert not failed(output_gate(make_release(), SCHEMA, 200))
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"
    assert calls == []
    assert list(tmp_path.iterdir()) == []
    assert logging.getLogger("great_expectations").propagate is False


def make_release(n_rows=200):
    codes, label = random_records(domain_of(SCHEMA), n_rows, 3)
    return decode(codes, label, SCHEMA, rng=np.random.default_rng(3))


@pytest.mark.parametrize(
    ("column", "value", "checks"),
    [
        ("age", 140, ["bounds"]), ("age", 7.5, ["grid"]), ("age", np.nan, ["number", "not_null"]),
        ("age", np.inf, ["number", "bounds"]), ("lab", 1.234, ["grid"]), ("lab", "abc", ["number"]),
        ("unit", "attic", ["level"]), ("unit", None, ["level"]), ("died", "1", ["label"]),
    ],
)  # fmt: skip
def test_the_output_gate_says_which_rule_is_broken(column, value, checks):
    frame = make_release()
    frame[column] = frame[column].astype(object)
    frame.loc[0, column] = value
    found = failed(output_gate(frame, SCHEMA, 200))
    assert found == [f"{check}: {column}" for check in checks]


def test_the_output_gate_checks_rows_and_columns():
    frame = make_release()
    assert failed(output_gate(frame, SCHEMA, 199)) == ["row_count"]
    assert "columns" in failed(output_gate(frame[frame.columns[::-1]], SCHEMA, 200))
    extra = frame.assign(patient="p")
    assert failed(output_gate(extra, SCHEMA, 200)) == ["columns"]
    without = output_gate(frame.drop(columns="age"), SCHEMA, 200)
    assert "columns" in failed(without)
    assert "bounds: age" in failed(without)
    twice = pd.concat([frame, frame[["age"]]], axis=1)
    assert failed(output_gate(twice, SCHEMA, 200)) == ["columns"]
