"""Hostile cells: a refusal names rule and column, and no released row holds a cell."""

# ruff: noqa: PT017 -- whether a case is refused is up to the case

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import ClustMixError, InputError
from storage.files.diagnostics import DiagnosticsFile
from storage.schema.table import TableSchema
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource, ParquetSource
from tasks.ingest.encoding import encode_chunk
from tasks.ingest.violations import refuse_violations

CANARY = "zebra0815"
SITE = """
columns:
  - {name: age, kind: integer, lower: 0, upper: 9, bins: 2}
  - {name: lactate, kind: real, lower: 0, upper: 9, bins: 2, nullable: true}
  - {name: ward, kind: categorical, levels: [icu, surgery], missing: ["?"]}
  - {name: code, kind: categorical, levels: [heart, rest], prefixes: {heart: [I]},
     numeric_ranges: {heart: [[390, 460]]}, other: rest}
label: {name: died, levels: {"no": [n], "yes": [y]}}
"""
SCHEMA = TableSchema.model_validate(yaml.safe_load(SITE))
COLUMNS = SCHEMA.released_columns
GOOD_ROW = ("5", "1.5", "icu", "I50", "n")

BEGINNINGS = [
    "=cmd|' /C calc'!A0", "+1+", "-1+", "@SUM(1)", "\t=", '"', '""', "'", ",", ";", "\n", "\r\n",
    "\0", "\ufeff", "\u202e", "\u2066", "\x1b[2J", "<script>", "${jndi:ldap://x}", "{{7*7}}",
    "%s", "NaN", "inf", "-inf", "1e999", "0x1F", "1_000", "\u0661", "\uff19", "null", "None", "",
    "I", "\x85", "9" * 400, "\\", "\\N", "..", "../../etc/passwd", "1;DROP TABLE x", "\ud7ff",
]  # fmt: skip
cells = st.one_of(
    st.just("a").map(lambda letter: letter * 70_000 + CANARY),  # hypothesis prints a list
    st.sampled_from(BEGINNINGS).map(lambda beginning: beginning + CANARY),
    st.text(max_size=12).map(lambda text: text + CANARY),
    st.text(max_size=12).map(lambda text: CANARY + text),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cells")


def texts_of(error):
    """Return all that an exception and those it is linked to could show."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error} {error.args!r} {getattr(error, '__notes__', '')!r}")
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def refused(error, rule):
    assert isinstance(error, InputError)
    assert rule in str(error)
    assert CANARY not in texts_of(error)
    assert str(error).isprintable()


@settings(max_examples=500)
@given(column=st.sampled_from(COLUMNS), cell=cells)
def test_refusal_names_the_column_and_the_restricted_file_has_the_cell(folder, column, cell):
    row = dict(zip(COLUMNS, GOOD_ROW, strict=True)) | {column: cell}
    chunk = encode_chunk(pd.DataFrame([row], dtype=object), SCHEMA)
    if column == "code" and "\0" not in cell:  # every value has a level: a declared rule mends it
        assert chunk.violations == ()
        return
    (violation,) = chunk.violations
    assert (violation.column, violation.rows.tolist()) == (column, [0])
    assert CANARY not in repr(violation)
    diagnostics = DiagnosticsFile(folder / "private" / "r-1.jsonl")
    diagnostics.add(column, str(violation.rule), [0], [cell])
    kept = json.loads((folder / "private" / "r-1.jsonl").read_text().splitlines()[-1])
    assert kept["rows"] == [{"row": 0, "value": cell}]
    (folder / "private" / "r-1.jsonl").unlink()
    with pytest.raises(InputError) as caught:
        refuse_violations([violation], diagnostics=diagnostics.pointer)
    refused(caught.value, f"column {column}: ")


typed = st.one_of(
    cells,
    cells.map(lambda cell: cell.encode("utf-8", "surrogatepass")),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.booleans(),
    st.none(),
    st.dates(),
    st.datetimes(),
    st.decimals().filter(lambda number: not number.is_snan()),  # no database has such
    st.complex_numbers(),
    st.just(pd.NaT),
    st.just(pd.NA),
    st.just(np.float64("inf")),
    st.just(np.int64(2**63 - 1)),
)


@settings(max_examples=300)
@given(row=st.tuples(*[st.one_of(st.just(good), typed) for good in GOOD_ROW]))
def test_cell_of_any_type_is_encoded_or_a_violation(row):
    """As a database or a Parquet file may give them: no other exception, whatever the type."""
    frame = pd.DataFrame(
        {name: pd.Series([cell], dtype=object) for name, cell in zip(COLUMNS, row, strict=True)}
    )
    chunk = encode_chunk(frame, SCHEMA)
    assert {violation.column for violation in chunk.violations} <= set(COLUMNS)
    for place, column in enumerate(SCHEMA.columns):
        if not chunk.violations:
            assert chunk.codes[0, place] < column.n_codes
    assert CANARY not in repr(chunk.violations)


def read(source, columns):
    try:
        return pd.concat(list(CohortReader(source).chunks(columns)), ignore_index=True)
    except ClustMixError as error:
        assert CANARY not in texts_of(error)
        assert str(error).isprintable()
        assert isinstance(error, InputError)
        return error
    except ValueError:  # nothing to join: no row
        return pd.DataFrame(columns=columns)


pieces = st.one_of(cells, cells.map(lambda cell: '"' + cell.replace('"', '""') + '"'))


@settings(max_examples=400)
@given(
    rows=st.lists(st.lists(pieces, min_size=1, max_size=3).map(",".join), min_size=1, max_size=3),
    end=st.sampled_from(["\n", "\r\n", ""]),
    junk=st.sampled_from([b"", b"\xff", b"\xc3", b"\0", b"\xed\xa0\x80", b'"']),
    place=st.integers(0, 40),
)
def test_any_text_file_is_read_or_refused_without_a_cell(folder, rows, end, junk, place):
    body = "\n".join(rows).encode() + end.encode()
    (folder / "t.csv").write_bytes(b"a,b\n" + body[:place] + junk + body[place:])
    read(CsvSource(kind="csv", path=folder / "t.csv"), ["a", "b"])


@settings(max_examples=300)
@given(header=st.lists(pieces, min_size=1, max_size=4).map(",".join))
def test_file_without_a_header_shows_no_cell(folder, header):
    """The first line is then a patient: its cells are no column names."""
    (folder / "h.csv").write_bytes(header.encode() + b"\n1,2\n")
    error = read(CsvSource(kind="csv", path=folder / "h.csv"), ["age"])
    assert isinstance(error, InputError)


def array_of(cell, kind):
    content = cell.encode("utf-8", "surrogatepass")
    if kind == "invalid":
        content = b"\xff" + content
        length = np.array([0, len(content)], dtype=np.int32)
        buffers = [None, pa.py_buffer(length), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.string(), 1, buffers)
    return {
        "text": lambda: pa.array([cell]),
        "binary": lambda: pa.array([content]),
        "list": lambda: pa.array([[cell]]),
        "struct": lambda: pa.array([{"a": cell}]),
        "dictionary": lambda: pa.array([cell]).dictionary_encode(),
        "decimal": lambda: pa.array([1], pa.decimal128(38, 30)),
        "time": lambda: pa.array([2**62], pa.timestamp("ns")),
    }[kind]()


@settings(max_examples=250)
@given(
    cell=cells,
    kind=st.sampled_from(
        ["text", "binary", "list", "struct", "dictionary", "decimal", "time", "invalid"]
    ),
    cut=st.integers(0, 30),
)
def test_any_parquet_file_is_read_or_refused_without_a_cell(folder, cell, kind, cut):
    path = folder / "t.parquet"
    pq.write_table(pa.table({"a": array_of(cell, kind)}), path)
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    found = read(ParquetSource(kind="parquet", path=path), ["a"])
    if cut:
        assert isinstance(found, InputError)
