import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from privacy.errors import ConfigurationError, InputError
from storage.schema.table import TableSchema
from tasks.ingest.conditional_rows import sample_rows
from tasks.ingest.encoding import decode, domain_of, encode_chunk
from tasks.ingest.violations import refuse_violations
from tasks.measurement import record_rules

COLUMNS = [
    {"name": "admitted", "kind": "integer", "lower": 0, "upper": 99, "bins": 10},
    {"name": "operated", "kind": "integer", "lower": 0, "upper": 99, "bins": 7, "nullable": True},
    {"name": "left", "kind": "real", "lower": 0, "upper": 99, "bins": 5, "decimals": 1},
    {"name": "on ward", "kind": "integer", "lower": 0, "upper": 30, "bins": 6},
    {"name": "on icu", "kind": "integer", "lower": 0, "upper": 30, "bins": [0, 1, 10, 30]},
    {"name": "days", "kind": "integer", "lower": 0, "upper": 60, "bins": 6},
    {"name": "sex", "kind": "categorical", "levels": ["f", "m"]},
    {"name": "pregnant", "kind": "categorical", "levels": ["n", "y"], "missing": ["?"]},
]
CONSTRAINTS = [
    {"holds": "admitted <= operated", "mend": {"operated": None}},
    {"holds": "operated < left"},
    {"holds": "admitted <= left"},
    {"holds": "on ward + on icu = days"},
    {"when": {"sex": "m"}, "then": {"pregnant": None}, "mend": {"pregnant": None}},
    {"never": {"sex": "f", "pregnant": ["y", None], "died": "yes", "on icu": 0}},
]
LABEL = {"name": "died", "levels": {"no": ["0"], "yes": ["1"]}}


def schema_of(*constraints, **changes):
    return TableSchema.model_validate(
        {"columns": COLUMNS, "label": LABEL, "constraints": constraints, **changes}
    )


SCHEMA = schema_of(*CONSTRAINTS)
ROW = {"admitted": 3, "operated": 5, "left": 9.5, "on ward": 4, "on icu": 2, "days": 6}
ROW |= {"sex": "f", "pregnant": "n", "died": "0"}


class Uniform:
    def sample(self, released, *, n_rows, rng):
        sizes = [column.n_codes for column in SCHEMA.columns]
        codes = rng.integers(sizes, size=(n_rows, len(sizes))).astype(np.uint16)
        return codes, rng.integers(2, size=n_rows).astype(np.uint16)


def broken(frame):
    """Return which rows break a rule, without the code under test."""
    operated = frame["operated"].astype("float64")
    f = frame
    return (
        (operated < f["admitted"])
        | (operated >= f["left"])
        | (f["admitted"] > f["left"])
        | (f["on ward"] + f["on icu"] != f["days"])
        | ((f["sex"] == "m") & (f["pregnant"] != "?"))
        | ((f["sex"] == "f") & (f["pregnant"] != "n") & (f["died"] == "yes") & (f["on icu"] == 0))
    )


def test_every_released_record_keeps_the_constraints_and_its_codes():
    rng = np.random.default_rng(4)
    rows = sample_rows(Uniform(), SCHEMA, {}, {"sex": "m"}, rng=rng, n_rows=10_000)
    frame = decode(rows.codes, rows.label, SCHEMA, rng=rng)
    assert len(frame) == 10_000
    assert not broken(frame).any()
    chunk = encode_chunk(frame, SCHEMA, mend=False)
    assert chunk.violations == ()
    np.testing.assert_array_equal(chunk.codes, rows.codes)
    with_breaches = decode(*Uniform().sample({}, n_rows=2_000, rng=rng), SCHEMA, rng=rng)
    found = encode_chunk(with_breaches, SCHEMA, mend=False).violations
    rows_found = sorted({row for violation in found for row in violation.rows.tolist()})
    assert rows_found == np.flatnonzero(broken(with_breaches)).tolist()


def test_a_broken_row_is_told_by_rule_and_columns():
    frame = pd.DataFrame([ROW, ROW | {"left": 1.5, "operated": None}, ROW | {"days": 59}])
    chunk = encode_chunk(frame, SCHEMA)
    assert [(v.rule, v.column, v.rows.tolist()) for v in chunk.violations] == [
        ("the constraint 'admitted <= left'", "admitted", [1]),
        ("the constraint 'admitted <= left'", "left", [1]),
        *(
            ("the constraint 'on ward + on icu = days'", column, [2])
            for column in ("on ward", "on icu", "days")
        ),
    ]
    with pytest.raises(InputError) as caught:
        refuse_violations(chunk.violations)
    assert str(caught.value).startswith(
        "INPUT_REFUSED: column admitted: expected the constraint 'admitted <= left'; column days: "
    )
    assert "59" not in str(caught.value)
    assert "1.5" not in str(caught.value)


def test_rules_are_held_of_values_as_they_are_released():
    # Clipped and rounded; a row without a label is left out, and breaks no rule.
    kept = [
        {"admitted": 120, "operated": None, "left": 99.04},
        {"admitted": 9, "operated": None, "left": 8.96},
        {"left": 0, "died": ""},
    ]
    schema = schema_of(*CONSTRAINTS, label={**LABEL, "nullable": True})
    chunk = encode_chunk(pd.DataFrame([ROW | changes for changes in kept]), schema)
    assert chunk.violations == ()
    assert chunk.valid.tolist() == [True, True, False]


ROWS = st.fixed_dictionaries(
    {
        "admitted": st.integers(0, 6),
        "operated": st.none() | st.integers(0, 6),
        "sex": st.sampled_from(["f", "m"]),
        "pregnant": st.sampled_from(["n", "y", "?"]),
    }
).map(lambda changes: ROW | changes)


@settings(deadline=None, max_examples=15)
@given(st.lists(ROWS, min_size=1, max_size=6))
def test_a_row_is_mended_by_itself_and_only_if_it_breaks_the_rule(rows):
    chunk = encode_chunk(pd.DataFrame(rows), SCHEMA)
    assert chunk.violations == ()
    for place, row in enumerate(rows):
        alone = encode_chunk(pd.DataFrame([row]), SCHEMA)
        np.testing.assert_array_equal(alone.codes[0], chunk.codes[place])
        mended = dict(row)
        if row["operated"] is not None and row["operated"] < row["admitted"]:
            mended["operated"] = None
        if row["sex"] == "m":
            mended["pregnant"] = "?"
        as_written = encode_chunk(pd.DataFrame([mended]), schema_of())
        np.testing.assert_array_equal(as_written.codes[0], chunk.codes[place])


def test_a_number_may_mend_a_row_that_must_then_keep_every_rule():
    mend = {"days": 6, "left": 0.5}
    schema = schema_of({"holds": "on ward + on icu = days", "mend": mend}, CONSTRAINTS[2])
    frame = pd.DataFrame([ROW | {"days": 7}, ROW | {"days": 7, "admitted": 0}, ROW])
    chunk = encode_chunk(frame, schema)
    assert {violation.rule for violation in chunk.violations} == {
        "the constraint 'admitted <= left'"
    }
    assert [violation.rows.tolist() for violation in chunk.violations] == [[0], [0]]
    assert chunk.codes[:, 5].tolist() == [0, 0, 0]
    assert chunk.codes[:, 2].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([{}], "expected exactly one of holds, never, and when with then"),
        ([{"holds": "admitted <= left", "never": {"sex": "f"}}], "expected exactly one of"),
        ([{"when": {"sex": "m"}}], "expected when and then together"),
        ([{"when": {"sex": "m"}, "then": {"sex": "f"}}], "expected other columns in then"),
        ([{"holds": "admitted>left"}], "expected holds as a <= b, a < b or a \\+ b = c"),
        ([{"holds": "admitted <= gone"}], "admitted <= gone: expected declared columns, found"),
        ([{"holds": "admitted <= sex"}], "expected numeric columns, each once"),
        ([{"holds": "on ward + on icu = left"}], "expected columns of equally many decimals"),
        ([{"never": {"sex": "x"}}], r"expected a declared level of sex \(f, m\), found sex=x"),
        ([{"never": {"days": "3..4"}}], r"expected LOW\.\.HIGH of days"),
        ([{"never": {"sex": "f"}, "mend": {"died": "no"}}], "mend: expected a feature column"),
        ([{"never": {"sex": "f"}, "mend": {"days": 61}}], "mend: expected a number of days"),
        (
            [{"holds": "on ward + on icu = days"}, {"holds": "on ward <= days"}],
            "on ward \\+ on icu = days: expected columns of a sum that no other rule",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_where_it_is_declared(constraints, message):
    with pytest.raises(ValidationError, match=message):
        schema_of(*constraints)


def test_constraints_that_leave_no_record_are_refused_before_a_row_is_read():
    either = [{"never": {"sex": "f"}}, {"when": {"sex": "m"}, "then": {"days": "0..10"}}]
    assert domain_of(schema_of(*either)).rules is not None
    for contradiction in (
        {"never": {"days": "0..10"}},
        {"never": {"died": ["no", "yes"], "sex": "m"}},
    ):
        with pytest.raises(ConfigurationError, match="CONSTRAINTS_IMPOSSIBLE: constraints: "):
            domain_of(schema_of(*either, contradiction))
    circle = [{"holds": "admitted < on ward"}, {"holds": "on ward < admitted"}]
    with pytest.raises(ConfigurationError, match="CONSTRAINTS_IMPOSSIBLE"):
        domain_of(schema_of(*circle))


def test_rules_that_connect_too_much_to_be_listed_are_refused_before_a_row_is_read(monkeypatch):
    monkeypatch.setattr(record_rules, "MAX_COMBINATIONS", 3)
    with pytest.raises(ConfigurationError, match="CONSTRAINTS_WIDE: constraints: "):
        domain_of(schema_of({"never": {"sex": "m", "pregnant": "y", "days": "10..20"}}))
