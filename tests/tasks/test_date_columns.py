import datetime as dt
import json
import sqlite3
from contextlib import closing

import duckdb
import fhir_export
import numpy as np
import omop_database as omop
import pandas as pd
import polars as pl
import postgres_server
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from clustmix.frames import as_of, declared_columns, rows_of
from storage.schema.table import TableSchema
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from storage.sources.declared import Source
from tasks.ingest.encoding import decode, encode_chunk

LABEL = {"name": "y", "levels": {"no": ["0"], "yes": ["1"]}}
FORMATS = [None, "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d", "%d%b%Y", "%B %d, %Y %H:%M"]
BOUND = st.dates(dt.date(1990, 1, 1), dt.date(2024, 2, 29))
EPOCH = dt.date(1970, 1, 1)
DAYS = st.sampled_from([dt.date(2000, 2, 29), dt.date(2024, 2, 29), dt.date(1999, 12, 31)])


def schema_of(*columns, **more):
    columns = [{"kind": "date", "nullable": True} | column for column in columns]
    return TableSchema.model_validate({"columns": columns, "label": LABEL, **more})


def coded(frame, schema):
    chunk = encode_chunk(frame.assign(y="0"), schema)
    return chunk.codes, [(one.column, one.rows.tolist()) for one in chunk.violations]


@st.composite
def tables(draw):
    """A column of dates, one that is counted from it, and their cells: days or None."""
    lower, upper = sorted(draw(st.lists(BOUND, min_size=2, max_size=2, unique=True)))
    edges = {lower, upper + dt.timedelta(1), *draw(st.lists(st.dates(lower, upper), max_size=3))}
    bins = draw(st.sampled_from(["year", "quarter", "month", 1, sorted(map(str, edges))]))
    form = draw(st.sampled_from(FORMATS))
    base = {"lower": str(lower), "upper": str(upper), "bins": bins}
    gap = {"relative_to": "a", "lower": -3, "upper": 400, "bins": [-3, 0, 1, 30, 401]}
    columns = [{"name": "b"} | gap, {"name": "a"} | base | ({"format": form} if form else {})]
    near = st.sampled_from([lower, upper]) | st.dates(lower, upper) | DAYS | BOUND
    cells = draw(st.lists(st.tuples(st.none() | near, st.none() | near), min_size=1, max_size=9))
    return schema_of(*columns), form, (lower, upper), bins, cells


def expected(day, lower, upper, bins):
    """Return the code of a day, the slow way."""
    day = min(max(day, lower), upper)
    if isinstance(bins, list):
        return sum(str(day) >= edge for edge in bins[:-1]) - 1
    periods = {"year": "Y", "quarter": "Q", "month": "M"}
    if bins not in periods:
        return 0
    ends = (pd.Period(one, periods[bins]).ordinal for one in (lower, day))
    return -next(ends) + next(ends)


@settings(deadline=None, max_examples=200)
@given(tables(), st.integers(0, 2**32))
def test_dates_have_the_code_of_their_row_alone_and_come_back_inside_their_bins(table, seed):
    schema, form, (lower, upper), bins, cells = table
    written = [(a and a.strftime(form or "%Y-%m-%d"), b and f"{b} 23:59:59") for a, b in cells]
    frame = pd.DataFrame(written, columns=["a", "b"], dtype=object)
    codes, broken = coded(frame, schema)
    assert broken == []
    for (a, b), (code_b, code_a) in zip(cells, codes.tolist(), strict=True):
        n = schema.columns[1].n_bins
        assert code_a == (n if a is None else expected(a, lower, upper, bins))
        gap = None if a is None or b is None else (b - a).days
        assert code_b == (4 if gap is None else sum(gap >= edge for edge in (0, 1, 30)))
    for place in range(len(frame)):
        alone, _ = coded(frame.iloc[[place]], schema)
        assert alone.tolist() == codes[[place]].tolist()
    rows = decode(codes, np.zeros(len(codes), np.uint16), schema, rng=np.random.default_rng(seed))
    assert {str(kind) for kind in rows[["a", "b"]].dtypes} == {"datetime64[s]"}
    again, broken = coded(rows.drop(columns="y"), schema)
    assert (again.tolist(), broken) == (codes.tolist(), [])
    inside = rows["a"].dropna()
    assert inside.between(str(lower), str(upper)).all()
    assert (rows["b"] - rows["a"]).dropna().dt.days.between(-3, 400).all()
    assert TableSchema.model_validate_json(schema.model_dump_json()) == schema


BASE = {"name": "a", "lower": "2015-01-01", "upper": "2020-12-31", "bins": "year"}


@pytest.mark.parametrize(
    "cell",
    ["2019-02-29", "31.12.2019", "2019", "2019-5", "20190501", "2019-W01-1", "12000-01-01", "x",
     "2019-05-01T10:00:00+02:00", "2019-05-01Z", 43586, 43586.0],
)  # fmt: skip
def test_what_is_no_full_date_is_refused(cell):
    frame = pd.DataFrame({"a": [cell, "2019-05-01"]}, dtype=object)
    assert coded(frame, schema_of(BASE))[1] == [("a", [0])]


def test_a_moment_is_reduced_to_its_day_in_the_declared_zone():
    cells = pd.Series(["2019-12-31T23:30:00+00:00", "2019-12-31 23:30", "2020-01-01"])
    codes, _ = coded(cells.to_frame("a"), schema_of(BASE | {"timezone": "Europe/Berlin"}))
    assert codes.ravel().tolist() == [5, 4, 5]


REFUSED = [
    ({"lower": 2015}, "lower: expected a date such as 2015-01-31"),
    ({"bins": ["2015-01-01", "2019-02-29"]}, "bins: expected a date"),
    ({"bins": "week"}, "'year', 'quarter' or 'month'"),
    ({"format": "DD.MM.YYYY"}, "expected a format with a day, month and year"),
    ({"format": "%Y-%d-%m"}, "no date of ISO 8601 is another date"),
    ({"format": "%d.%m.%y", "lower": "1900-01-01"}, "bounds of less than 100 years"),
    ({"timezone": "Mars"}, "name of a time zone"),
    ({"missing": ["2016-01-01"]}, "missing codes outside lower and upper"),
    ({"relative_to": "z", "lower": 0, "upper": 9, "bins": 3}, "to name another date"),
    ({"relative_to": "a", "lower": 0, "upper": 9, "bins": 3}, "in no circle"),
    (
        {"relative_to": "b", "lower": 0, "upper": 9, "bins": 3, "nullable": False},
        "expected nullable",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_refused_in_a_declaration(change, message):
    with pytest.raises(ValidationError, match=message):
        schema_of(BASE | change, BASE | {"name": "b"})


def of_file(kind, tmp_path):
    """Return a source with a column ``a`` of the dates of `KNOWN`, by its kind."""
    path, days = tmp_path / kind, pa.array([*KNOWN, None])
    if kind == "csv":
        path.write_text("a,n\n" + "".join(f"{day or ''},1\n" for day in [*KNOWN, None]))
        return {"kind": "csv", "path": str(path)}
    if kind.startswith("parquet"):
        types = {"parquet": days, "parquet moments": days.cast(pa.timestamp("ns"))}
        pa.parquet.write_table(pa.table({"a": types[kind]}), path)
        return {"kind": "parquet", "path": str(path)}
    if kind == "duckdb":
        with duckdb.connect(path) as connection:
            connection.execute("CREATE TABLE t (a DATE, n INTEGER)")
            connection.executemany(
                "INSERT INTO t VALUES (?, ?)", [(d, 1) for d in days.to_pylist()]
            )
        return {"kind": "duckdb", "database": str(path), "query": "SELECT a FROM t"}
    if kind == "sqlite":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE t (a)")
            connection.executemany("INSERT INTO t VALUES (?)", [(d,) for d in days.to_pylist()])
        return {"kind": "sql", "url": f"sqlite:///{path}", "query": "SELECT a FROM t"}
    if kind == "postgres":
        with psycopg.connect(postgres_server.database_url()) as connection:
            connection.execute("DROP TABLE IF EXISTS dates; CREATE TABLE dates (a date)")
            for day in days.to_pylist():
                connection.execute("INSERT INTO dates VALUES (%s)", [day])
        return {"kind": "sql", "url_env": "DATES", "query": "SELECT a FROM dates"}
    if kind == "fhir":
        patients = [
            {"resourceType": "Patient", "id": f"p{n}"} | ({"birthDate": str(d)} if d else {})
            for n, d in enumerate(days.to_pylist())
        ]
        fhir_export.write(path, patients)
        return {"kind": "fhir", "path": str(path)} | {
            "features": [{"column": "a", "expression": "Patient.birthDate"}]
        }
    rows = {name: [] for name in omop.TABLES}
    for person, day in enumerate(days.to_pylist()):
        rows["person"].append((person, 1, 1980))
        rows["visit_occurrence"].append((person, omop.INPATIENT, *(EPOCH, None) * 2))
        rows["death"] += [(person, day, None)] if day else []
    omop.write_sqlite(path, rows)
    feature = {"column": "a", "death": True, "take": "first", "value": "date"}
    return {"kind": "omop", "url": f"sqlite:///{path}", "window": [None, "0d"][::-1]} | {
        "population": {"visit": omop.INPATIENT}, "features": [feature],
    }  # fmt: skip


KNOWN = [dt.date(2016, 2, 29), dt.date(2014, 1, 1), dt.date(2020, 12, 31)]
KINDS = ["csv", "parquet", "parquet moments", "duckdb", "sqlite", "postgres", "fhir", "omop"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_has_dates(kind, tmp_path, monkeypatch):
    declared = json.dumps(of_file(kind, tmp_path))
    if kind == "postgres":
        monkeypatch.setenv("DATES", postgres_server.database_url())
    home = Settings(home=tmp_path / "home").private_root
    reader = CohortReader(TypeAdapter(Source).validate_json(declared), scratch=home)
    codes, broken = coded(pd.concat(reader.chunks(["a"])), schema_of(BASE))
    assert (sorted(codes.ravel().tolist()), broken) == ([0, 1, 5, 6], [])


MOMENTS = pd.Series(pd.to_datetime([*map(str, KNOWN), None]))
FRAMES = {
    "moments": MOMENTS,
    "objects": pd.Series([*KNOWN, None], dtype=object),
    "categories": MOMENTS.astype("category"),
    "arrow": pd.Series([*KNOWN, None], dtype=pd.ArrowDtype(pa.date32())),
    "zone": MOMENTS.dt.tz_localize("Asia/Tokyo"),
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("library", [lambda frame: frame, pa.table, pl.DataFrame])
def test_every_frame_has_dates_and_gets_dates(kind, library):
    zone = {"timezone": "Asia/Tokyo"} if kind == "zone" else {}
    schema = schema_of(BASE | zone)
    frame = library(FRAMES[kind].to_frame("a").assign(y="0"))
    codes, broken = coded(rows_of(declared_columns(frame, schema, None)), schema)
    assert (codes.ravel().tolist(), broken) == ([1, 0, 5, 6], [])
    rows = decode(codes, np.zeros(4, np.uint16), schema, rng=np.random.default_rng(1))
    assert as_of(rows, pa.Table, notice="").schema.field("a").type == pa.date32()
    assert as_of(rows, pl.DataFrame, notice="").schema["a"] == pl.Date
