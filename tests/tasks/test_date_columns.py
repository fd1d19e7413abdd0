import datetime as dt
import json

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
from pydantic import TypeAdapter

from clustmix.frames import as_of, declared_columns, rows_of
from storage.schema.table import TableSchema
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from storage.sources.declared import Source
from tasks.ingest.encoding import decode, encode_chunk

LABEL = {"name": "y", "levels": {"no": ["0"], "yes": ["1"]}}
FORMATS = ["", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d", "%d%b%Y", "%B %d, %Y %H:%M"]
BASE = {"name": "a", "lower": "2015-01-01", "upper": "2020-12-31", "bins": "year"}
KNOWN = [dt.date(2016, 2, 29), dt.date(2014, 1, 1), dt.date(2020, 12, 31), None]
BOUND = st.dates(dt.date(1990, 1, 1), dt.date(2024, 2, 29))


def schema_of(*columns):
    columns = [{"kind": "date", "nullable": True} | column for column in columns]
    return TableSchema.model_validate({"columns": columns, "label": LABEL})


def coded(frame, schema):
    chunk = encode_chunk(frame.assign(y="0"), schema)
    return chunk.codes.tolist(), [(one.column, one.rows.tolist()) for one in chunk.violations]


def decoded(codes, schema, seed=0):
    label, rng = np.zeros(len(codes), np.uint16), np.random.default_rng(seed)
    return decode(np.array(codes, np.uint16), label, schema, rng=rng)


@st.composite
def tables(draw):
    """A column of dates, one that is counted from it, and their cells: days or None."""
    lower, upper = sorted(draw(st.sets(BOUND, min_size=2, max_size=2)))
    inside = st.dates(lower, upper)
    edges = {lower, upper + dt.timedelta(1), *draw(st.lists(inside, max_size=3))}
    bins = draw(st.sampled_from(["year", "quarter", "month", 1, sorted(map(str, edges))]))
    form = draw(st.sampled_from(FORMATS))
    cell = st.sampled_from([None, lower, upper, dt.date(2000, 2, 29)]) | inside | BOUND
    gap = {"relative_to": "a", "lower": -3, "upper": 400, "bins": [-3, 0, 1, 30, 401]}
    a = {"name": "a", "lower": str(lower), "upper": str(upper), "bins": bins}
    schema = schema_of({"name": "b"} | gap, a | ({"format": form} if form else {}))
    cells = draw(st.lists(st.tuples(cell, cell), min_size=1, max_size=9))
    return schema, form or "%Y-%m-%d", (lower, upper), bins, cells


def expected(day, ends, bins):
    """Return the code of a day, the slow way."""
    starts, day = bins[1:-1] if isinstance(bins, list) else [], min(max(day, ends[0]), ends[1])
    if freq := {"year": "YS", "quarter": "QS", "month": "MS"}.get(str(bins)):
        starts = pd.date_range(ends[0] + dt.timedelta(1), ends[1], freq=freq).strftime("%Y-%m-%d")
    return sum(str(day) >= start for start in starts)


@settings(deadline=None, max_examples=150)
@given(tables(), st.integers(0, 2**32))
def test_dates_have_the_code_of_their_row_alone_and_come_back_inside_their_bins(table, seed):
    schema, form, ends, bins, cells = table
    written = [(a and a.strftime(form), b and f"{b} 23:59:59") for a, b in cells]
    frame = pd.DataFrame(written, columns=["a", "b"], dtype=object)
    codes, broken = coded(frame, schema)
    assert broken == []
    for (a, b), code in zip(cells, codes, strict=True):
        assert code[1] == (expected(a, ends, bins) if a else schema.columns[1].n_bins)
        assert code[0] == (sum((b - a).days >= edge for edge in (0, 1, 30)) if a and b else 4)
    assert [coded(frame.iloc[[place]], schema)[0][0] for place in range(len(frame))] == codes
    rows = decoded(codes, schema, seed)[["a", "b"]]
    assert {*map(str, rows.dtypes)} == {"datetime64[s]"}
    assert coded(rows, schema) == (codes, [])
    assert rows["a"].dropna().between(*map(str, ends)).all()
    assert (rows["b"] - rows["a"]).dropna().dt.days.between(-3, 400).all()
    assert TableSchema.model_validate_json(schema.model_dump_json()) == schema


NO_DATES = ["2019-02-29", "31.12.2019", "2019", "2019-5", "20190501", "2019-W01-1", "12000-01-01"]


@pytest.mark.parametrize("cell", [*NO_DATES, "x", "2019-05-01 10:00+02:00", 43586, 43586.0])
def test_what_is_no_full_date_is_refused(cell):
    frame = pd.DataFrame({"a": [cell, "2019-05-01"]}, dtype=object)
    assert coded(frame, schema_of(BASE))[1] == [("a", [0])]


def test_moments_are_days_of_the_declared_zone_and_years_of_two_digits_end_with_the_bounds():
    cells = pd.Series(["2019-12-31T23:30:00+00:00", "2019-12-31 23:30", "31/12/15", "1/1/21"])
    own = {"timezone": "Europe/Berlin", "format": "%d/%m/%y"}
    assert coded(cells.to_frame("a"), schema_of(BASE | own))[0] == [[5], [4], [0], [0]]


def source_of(kind, path):
    """Write a source with the known days as its column ``a``; return its declaration."""
    if kind == "csv":
        path.write_text("a,n\n" + "".join(f"{day or ''},1\n" for day in KNOWN))
    elif kind == "parquet":
        pa.parquet.write_table(pa.table({"a": pa.array(KNOWN)}), path)
    elif kind in ("duckdb", "sql"):
        address = postgres_server.database_url() if kind == "sql" else str(path)
        with (psycopg if kind == "sql" else duckdb).connect(address) as connection:
            connection.execute("DROP TABLE IF EXISTS dated; CREATE TABLE dated (a DATE)")
            for day in KNOWN:
                value = f"DATE '{day}'" if day else "NULL"
                connection.execute(f"INSERT INTO dated VALUES ({value})")  # noqa: S608
        place = {"url_env": "DATES"} if kind == "sql" else {"database": str(path)}
        return place | {"query": "SELECT a FROM dated"}
    elif kind == "fhir":
        born = [{"birthDate": str(day)} if day else {} for day in KNOWN]
        patients = [{"resourceType": "Patient", "id": f"p{n}"} | b for n, b in enumerate(born)]
        fhir_export.write(path, patients)
        return {"path": str(path), "features": [{"column": "a", "expression": "Patient.birthDate"}]}
    elif kind == "omop":
        stays = [(n, omop.INPATIENT, *(KNOWN[1], None) * 2) for n in range(4)]
        rows = dict.fromkeys(omop.TABLES, ()) | {"visit_occurrence": stays}
        rows["person"] = [(n, 1, 1980) for n in range(4)]
        rows["death"] = [(n, day, None) for n, day in enumerate(KNOWN[:3])]
        omop.write_sqlite(path, rows)
        feature = {"column": "a", "death": True, "take": "first", "value": "date"}
        place = {"url": f"sqlite:///{path}", "window": ["0d", None], "features": [feature]}
        return place | {"population": {"visit": omop.INPATIENT}}
    return {"path": str(path)}


@pytest.mark.parametrize("kind", ["csv", "parquet", "duckdb", "sql", "fhir", "omop"])
def test_every_source_has_dates(kind, tmp_path, monkeypatch):
    declared = {"kind": kind} | source_of(kind, tmp_path / "source")
    monkeypatch.setenv("DATES", postgres_server.database_url() if kind == "sql" else "")
    home = Settings(home=tmp_path / "home").private_root
    source = TypeAdapter(Source).validate_json(json.dumps(declared))
    rows = pd.concat(CohortReader(source, scratch=home).chunks(["a"]))
    assert sorted(coded(rows, schema_of(BASE))[0]) == [[0], [1], [5], [6]]


MOMENTS = pd.Series(pd.to_datetime([*map(str, KNOWN[:3]), None]))
FRAMES = [
    MOMENTS,
    MOMENTS.dt.tz_localize("Asia/Tokyo"),
    pd.Series(KNOWN, dtype=object),
    pd.Series(KNOWN, dtype=pd.ArrowDtype(pa.date32())),
]


@pytest.mark.parametrize("library", [lambda frame: frame, pa.table, pl.DataFrame])
@pytest.mark.parametrize("cells", FRAMES, ids=lambda cells: str(cells.dtype))
def test_every_frame_has_dates_and_gets_dates(cells, library):
    schema = schema_of(BASE | {"timezone": "Asia/Tokyo"})
    frame = library(cells.to_frame("a").assign(y="0"))
    codes, broken = coded(rows_of(declared_columns(frame, schema, None)), schema)
    assert (codes, broken) == ([[1], [0], [5], [6]], [])
    rows = decoded(codes, schema)
    assert as_of(rows, pa.Table, notice="").schema.field("a").type == pa.date32()
    assert as_of(rows, pl.DataFrame, notice="").schema["a"] == pl.Date
