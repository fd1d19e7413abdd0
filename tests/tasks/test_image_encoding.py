import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.releases.manifest import GateRecord
from storage.schema.table import TableSchema
from tasks.gates.table_rules import output_gate
from tasks.ingest import encoding
from tasks.ingest.encoding import decode, domain_of, encode_chunk

LABEL = {"name": "label", "levels": {"cat": [0], "dog": [1]}}


def schema_of(**image):
    return TableSchema.model_validate({"image": {"height": 2, "width": 3, **image}, "label": LABEL})


PIXELS = schema_of()
ITEMS = TableSchema.model_validate({"items": ["a", "b", "c"], "label": LABEL})
FORMS = {"gray": {}, "eight": {"gray_levels": 8}, "odd": {"gray_levels": 7}} | {
    "white from 100": {"gray_levels": 2, "threshold": 100}
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(data=st.data(), dtype=st.sampled_from(["uint8", "int64", "float64", "Int64", "str"]))
def test_all_at_once_is_column_by_column(form, data, dtype):
    schema = schema_of(**FORMS[form])
    low, high = (0, 255) if dtype == "uint8" else (-300, 600)  # clipped
    cells = st.lists(st.integers(low, high), min_size=6, max_size=6)
    pixels = np.array(data.draw(st.lists(cells, min_size=1, max_size=4)))
    frame = pd.DataFrame(pixels, columns=list(schema.column_names)).astype(dtype).assign(label=0)
    chunk = encode_chunk(frame, schema)
    assert chunk.violations == ()
    assert chunk.codes.dtype == np.uint16
    assert np.array_equal(chunk.codes, encoding._column_codes(frame, schema, [], {}))


@pytest.mark.parametrize("form", FORMS)
def test_every_code_decodes_to_a_gray_level_and_back(form):
    schema = schema_of(**FORMS[form])
    rng = np.random.default_rng(3)
    n_codes = domain_of(schema).n_codes[0]
    codes = rng.integers(0, n_codes, (500, 6)).astype(np.uint16)
    label = rng.integers(0, 2, 500).astype(np.uint16)
    frame = decode(codes, label, schema, rng=rng)
    assert list(frame.columns) == list(schema.released_columns)
    assert set(frame.dtypes[:-1]) == {np.dtype(np.uint8)}
    assert set(np.unique(frame[list(schema.column_names)])) <= set(schema.image.levels)
    again = encode_chunk(frame, schema)
    assert np.array_equal(again.codes, codes)
    assert np.array_equal(again.label, label)


def test_items_are_read_from_numbers_text_and_booleans():
    frame = pd.DataFrame({"a": [0, 1], "b": ["1", "0"], "c": [True, False], "label": [0, 1]})
    chunk = encode_chunk(frame, ITEMS)
    assert chunk.violations == ()
    assert chunk.codes.tolist() == [[0, 1, 1], [1, 0, 0]]
    decoded = decode(chunk.codes, chunk.label, ITEMS, rng=np.random.default_rng(1))
    assert decoded["c"].tolist() == ["1", "0"]
    bad = encode_chunk(frame.assign(a=[0, 2]), ITEMS)
    assert [(str(v.rule), v.column) for v in bad.violations] == [
        ("declared levels only, as no level is declared for other values", "a")
    ]


def with_cell(schema, row, value, *, labels):
    """Return three rows of a schema, all in order but for a value in the second column."""
    cells = np.arange(3 * len(schema.columns)).reshape(3, -1) % 2
    frame = pd.DataFrame(cells, columns=list(schema.column_names)).astype("uint8")
    frame = frame.astype({schema.column_names[1]: object}).assign(label=labels)
    frame.loc[row, schema.column_names[1]] = value
    return frame


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        *((PIXELS, value) for value in (np.nan, np.inf, "x", "", None)),
        *((ITEMS, value) for value in (2, -1, 0.5, "x", "", None, np.nan)),
    ],
)
def test_one_cell_that_is_not_declared_is_refused(schema, value):
    found = encode_chunk(with_cell(schema, 1, value, labels=[0, 1, 0]), schema).violations
    assert {violation.column for violation in found} == {schema.column_names[1]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        *((PIXELS, value) for value in (256, -1, 0.5, None, "x", "254")),
        (schema_of(gray_levels=2), 254),
        *((ITEMS, value) for value in (2, "", "true", None)),
    ],
)
def test_a_value_that_is_not_declared(schema, value):
    frame = with_cell(schema, 2, value, labels=["cat", "dog", "cat"])
    (check,) = (one for one in output_gate(frame, schema, rows=3) if not one.passed)
    kind = "items" if schema is ITEMS else "pixels"
    assert check == GateRecord(check=kind, passed=False)
