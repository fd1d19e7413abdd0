import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import InputError
from storage.schema.columns import NumericColumn
from storage.schema.table import TableSchema
from tasks.ingest.encoding import decode, encode_chunk
from tasks.ingest.violations import Rule, refuse_violations

SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"kind": "integer", "name": "age", "lower": 0, "upper": 99, "bins": [0, 18, 65, 100]},
            {"kind": "integer", "name": "days", "lower": 1, "upper": 14, "bins": 14, "missing": -1}
            | {"missing": [-1, "?"]},
            {"kind": "real", "name": "ph", "lower": 6.8, "upper": 7.8, "bins": 7}
            | {"decimals": 2, "nullable": True},
            {"kind": "categorical", "name": "ward", "levels": ["A", "B", "rest"], "other": "rest"},
            {"kind": "categorical", "name": "diag", "levels": ["heart", "lung", "cause", "else"]}
            | {"other": "else", "missing": ["?"], "prefixes": {"cause": ["E", "V"]}}
            | {"numeric_ranges": {"heart": [[390, 460], [785, 786]], "lung": [[460, 520]]}}
            | {"groups": {"lung": ["TB"]}},
            {"kind": "categorical", "name": "sex", "levels": ["f", "m"], "nullable": True},
        ],
        "label": {"name": "died", "levels": {"no": [0], "yes": [1]}, "missing": [-1]},
    }
)
GOOD = {"age": 40, "days": 3, "ph": 7.4, "ward": "A", "diag": "410.1", "sex": "f", "died": 0}


def frame_of(**columns):
    n = max(len(values) for values in columns.values())
    return pd.DataFrame({name: [value] * n for name, value in GOOD.items()} | columns)


EMPTY = [None, np.nan, "", " ", pd.NA]
DIAGNOSES = {
    "390": 0, "459.99": 0, "460": 1, "785.5": 0, "786": 3, "E880": 2, "V57": 2, "?": 4, "zzz": 3,
    "heart": 0, "TB": 1, "250": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "values", "codes"),
    [
        # Bins are half open, for text and for numbers.
        ("age", [0, 17, 18, 64, 65, 99], [0, 0, 1, 1, 2, 2]),
        ("age", ["0", " 17", "18.0", "64", "65 ", "9.9e1"], [0, 0, 1, 1, 2, 2]),
        # What is out of bounds is clipped.
        ("age", [-5, -1_000_000, 100, 2**40], [0, 0, 2, 2]),
        ("ph", [0.0, -1e300, 9.0, 1e300], [0, 0, 6, 6]),
        *(("days", v, [14, 13]) for v in ([-1, 14], ["-1", "14"], ["-1.0", "14.0"], ["?", "14"])),
        *(("ph", pd.Series([empty, "7.0"], dtype=object), [7, 1]) for empty in EMPTY),
        *(("sex", pd.Series([empty, "m"], dtype=object), [2, 1]) for empty in EMPTY),
        ("diag", list(DIAGNOSES), list(DIAGNOSES.values())),
        ("ward", ["A", "B", "C", "rest"], [0, 1, 2, 2]),
    ],
)
def test_cells_have_the_codes_of_the_declared_rules(column, values, codes):
    chunk = encode_chunk(frame_of(**{column: values}), SCHEMA)
    assert chunk.violations == ()
    assert chunk.codes[:, SCHEMA.column_names.index(column)].tolist() == codes


def test_narrow_floats_are_read_on_the_declared_decimals():
    column = NumericColumn(
        kind="real", name="k", lower=1, upper=9, decimals=1, bins=(1.0, 3.3, 3.6, 9.0)
    )
    schema = SCHEMA.model_copy(update={"columns": (column,)})
    frame = pd.DataFrame({"k": np.array([3.2, 3.3, 3.5, 3.6], dtype=np.float32), "died": 0})
    assert float(np.float32(3.3)) < 3.3
    assert encode_chunk(frame, schema).codes[:, 0].tolist() == [0, 1, 1, 2]


def test_rows_without_a_label_are_marked_and_others_are_not():
    chunk = encode_chunk(frame_of(died=[0, -1, 1, "yes"]), SCHEMA)
    assert chunk.valid.tolist() == [True, False, True, True]
    assert chunk.label[chunk.valid].tolist() == [0, 1, 1]


def test_a_label_has_prefixes_and_other_like_a_column():
    label = {"name": "diag", "levels": {"heart": ["410"], "lung": [], "else": []}, "missing": [-1]}
    label |= {"prefixes": {"heart": ["I21", "I22"], "lung": ["J"]}}
    texts = ["I21.4", "J18", "410", "heart", "-1", "R07", "I2", "i21"]
    for other, found in ((None, [0, 1, 0, 0, -9, -1, -1, -1]), ("else", [0, 1, 0, 0, -9, 2, 2, 2])):
        schema = TableSchema.model_validate(
            {"columns": [SCHEMA.columns[0]], "label": label | {"other": other}}
        )
        frame = pd.DataFrame({"age": 40, "diag": texts})
        chunk = encode_chunk(frame, schema)
        refused = [row for one in chunk.violations for row in one.rows]
        assert refused == [row for row, code in enumerate(found) if code == -1]
        assert not chunk.valid[4]
        kept = np.array(found) >= 0
        assert chunk.label[kept].tolist() == [code for code in found if code >= 0]
    with pytest.raises(ValueError, match="name label levels"):
        TableSchema.model_validate({**SCHEMA.model_dump(), "label": label | {"other": "x"}})
    plain = {"name": "died", "levels": {"no": [0], "yes": [1]}}
    declared = TableSchema.model_validate({"columns": [SCHEMA.columns[0]], "label": plain})
    assert not {"prefixes", "other"} & set(declared.model_dump(mode="json")["label"])


def test_label_buckets_are_half_open_and_name_themselves():
    buckets = {"edges": [3, 7], "levels": ["short", "medium", "long"]}
    label = {"name": "died", "buckets": buckets, "missing": [-1], "nullable": True}
    schema = TableSchema.model_validate({"columns": SCHEMA.columns, "label": label})
    values = [-5, 2.9, 3, 6.9, 7, "400", "medium", -1, None]
    chunk = encode_chunk(frame_of(died=pd.Series(values, dtype=object)), schema)
    assert chunk.violations == ()
    assert chunk.label[chunk.valid].tolist() == [0, 0, 1, 1, 2, 2, 1]
    assert chunk.valid.tolist() == [True] * 7 + [False] * 2


@pytest.mark.parametrize(
    ("column", "bad", "rule"),
    [
        ("age", "secret", Rule.NUMBER),
        ("age", "1_0", Rule.NUMBER),
        ("age", pd.Timestamp("2020-01-01"), Rule.NUMBER),
        ("age", "nan", Rule.NUMBER),
        ("age", "inf", Rule.FINITE),
        ("ph", np.inf, Rule.FINITE),
        ("ph", -np.inf, Rule.FINITE),
        ("age", None, Rule.NOT_NULL),
        ("age", "", Rule.NOT_NULL),
        ("age", 3.5, Rule.INTEGER),
        ("age", "3.5", Rule.INTEGER),
        ("ward", "", Rule.NOT_NULL),
        ("ward", None, Rule.NOT_NULL),
        ("sex", "secret", Rule.LEVEL),
        ("died", "secret", Rule.LABEL),
        ("died", None, Rule.LABEL),
    ],
)
def test_what_the_schema_does_not_allow_is_a_violation_of_its_row(column, bad, rule):
    good = GOOD[column]
    values = pd.Series([good, bad, good, bad], dtype=object)
    chunk = encode_chunk(frame_of(**{column: values}), SCHEMA)
    (violation,) = chunk.violations
    assert (violation.rule, violation.column) == (rule, column)
    assert violation.rows.tolist() == [1, 3]
    assert "secret" not in repr(chunk) + repr(violation)


def test_native_columns_have_the_same_rules():
    for values in (np.array([1.0, np.nan]), pd.array([1, None], dtype="Int64")):
        (violation,) = encode_chunk(frame_of(age=values), SCHEMA).violations
        assert violation.rule is Rule.NOT_NULL
    (violation,) = encode_chunk(frame_of(age=[True, False]), SCHEMA).violations
    assert violation.rule is Rule.NUMBER


def test_refusal_names_rules_and_columns_and_nothing_else():
    bad = frame_of(age=["17x", 1], sex=["qq", "f"])
    violations = encode_chunk(bad, SCHEMA).violations
    with pytest.raises(InputError) as caught:
        refuse_violations((*violations, *violations), diagnostics="d-1.jsonl")
    assert str(caught.value) == (
        "INPUT_REFUSED: column age: expected numbers and the declared missing codes only; column "
        "sex: expected declared levels only, as no level is declared for other values; correct the "
        "source or the schema; the rows are in d-1.jsonl; nothing is charged"
    )
    assert refuse_violations(()) is None


def test_an_absent_column_is_refused():
    with pytest.raises(InputError, match=r"COLUMN_MISSING: .* found none named ph, sex; check the"):
        encode_chunk(frame_of(age=[1]).drop(columns=["ph", "sex"]), SCHEMA)


@st.composite
def columns(draw):
    kind = draw(st.sampled_from(["integer", "real"]))
    decimals = 0 if kind == "integer" else draw(st.integers(0, 6))
    first = draw(st.integers(-(10**7), 10**7))
    n_values = draw(st.integers(2, 3000))
    inner = draw(st.sets(st.integers(first + 1, first + n_values - 1), max_size=8))
    edges = sorted({first, first + n_values - 1} | inner)
    by_hand = tuple(edge / 10**decimals for edge in edges)
    return NumericColumn(
        kind=kind,
        name="x",
        lower=by_hand[0],
        upper=by_hand[-1],
        bins=draw(st.one_of(st.integers(1, min(n_values, 40)), st.just(by_hand))),
        decimals=decimals,
        missing=draw(st.sampled_from([(), ("?",), ("-99999999",), ("-99999999.5", "?")])),
        nullable=draw(st.booleans()),
    )


def slow_code(value, column):
    scale = 10**column.grid_decimals
    value = round(min(max(value, column.lower), column.upper) * scale) / scale
    for code, start in reversed(list(enumerate(column.bin_starts))):
        if value >= start:
            return code
    raise AssertionError("below the first bin")


def only(column):
    label = {"name": "y", "levels": {"no": [], "yes": []}}
    return TableSchema.model_validate({"columns": [column], "label": label})


@settings(max_examples=150, deadline=None)
@given(column=columns(), seed=st.integers(0, 2**32 - 1))
def test_decoded_numbers_are_valid_and_encode_to_the_same_codes(column, seed):
    rng = np.random.default_rng(seed)
    schema = only(column)
    codes = rng.integers(0, column.n_codes, size=(200, 1)).astype(np.uint16)
    codes[: column.n_codes, 0] = np.arange(column.n_codes)[:200]
    label = rng.integers(0, 2, size=200).astype(np.uint16)
    released = decode(codes, label, schema, rng=rng)
    again = encode_chunk(released, schema)
    assert again.violations == ()
    assert np.array_equal(again.codes, codes)
    assert np.array_equal(again.label, label)
    present = codes[:, 0] < column.n_bins
    numbers = pd.to_numeric(released["x"][present]).to_numpy(dtype=np.float64)
    assert ((numbers >= column.lower) & (numbers <= column.upper)).all()
    assert np.array_equal(np.round(numbers, column.grid_decimals), numbers)
    if column.kind == "integer" and not column.missing:
        assert released["x"].dtype in ("int64", "Int64")


@settings(max_examples=100, deadline=None)
@given(
    column=columns(),
    values=st.lists(st.floats(-2e7, 2e7, allow_nan=False), min_size=1, max_size=20),
)
def test_codes_agree_with_the_obvious_search(column, values):
    if column.kind == "integer":
        values = [float(round(value)) for value in values]
    frame = pd.DataFrame({"x": values, "y": "no"})
    codes = encode_chunk(frame, only(column)).codes[:, 0]
    assert codes.tolist() == [slow_code(value, column) for value in values]


def test_a_missing_code_is_written_as_it_was_declared():
    missing = np.array([[0, 14, 7, 0, 4, 2]], dtype=np.uint16)
    rng = np.random.default_rng(1)
    (row,) = decode(missing, np.array([0], dtype=np.uint16), SCHEMA, rng=rng).to_dict("records")
    assert (row["days"], row["diag"]) == (-1, "?")
    assert pd.isna(row["ph"])
    assert pd.isna(row["sex"])


def test_values_are_uniform_inside_a_bin():
    column = NumericColumn(kind="integer", name="x", lower=0, upper=29, bins=3)
    n = 10_000
    codes = np.full((n, 1), 1, dtype=np.uint16)
    label = np.zeros(n, dtype=np.uint16)
    released = decode(codes, label, only(column), rng=np.random.default_rng(20240611))
    counts = np.bincount(released["x"], minlength=30)
    assert counts[:10].sum() == counts[20:].sum() == 0
    # Two-sided chi-squared test with 9 degrees of freedom at level 1e-6 in each tail. A bin end
    # that is drawn half as often or not at all adds at least n/200 = 50 and is found with power
    # over 0.99.
    chi_squared = ((counts[10:20] - n / 10) ** 2 / (n / 10)).sum()
    assert 0.18 < chi_squared < 45.1
