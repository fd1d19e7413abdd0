# ruff: noqa: S608 -- queries of this module

from collections import Counter
from datetime import UTC, datetime

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from privacy.errors import ConfigurationError, InputError
from storage.files.workspace import purge_abandoned
from storage.sources.cohorts import CohortReader
from storage.sources.declared import Source

PLACES = {"database": "a.duckdb"}


def source(query, **place):
    declared = {"kind": "duckdb", "query": query, **(place or PLACES)}
    return TypeAdapter(Source).validate_python(declared)


def read(query, **place):
    reader = CohortReader(source(query, **place))
    return pd.concat(reader.chunks(list(reader.header()), 2)).reset_index(drop=True)


def refused(query, **place):
    with pytest.raises((InputError, ConfigurationError)) as caught:
        read(query, **place)
    assert caught.value.__context__ is None
    return caught.value


@pytest.fixture
def database(tmp_path):
    def write(*statements):
        with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
            for statement in statements:
                connection.execute(statement)
        return {"database": str(tmp_path / "a.duckdb")}

    return write


@pytest.fixture
def parquet(tmp_path):
    def write(name="stays", **columns):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / name)
        return {"tables": {"stays": {"parquet": str(tmp_path / name.split("/")[0])}}}

    return write


TRAPS = """
stays POSITIONAL JOIN wards
stays s ASOF JOIN labs l ON s.pid = l.pid AND s.day >= l.code
stays USING SAMPLE 3
stays TABLESAMPLE 10 PERCENT
stays QUALIFY RANK() OVER (PARTITION BY pid ORDER BY day) = 1
stays GROUP BY ALL
stays GROUP BY ROLLUP (pid)
stays UNION BY NAME SELECT pid FROM labs
stays s, LATERAL (SELECT MAX(age) AS m FROM stays) q
stays AT (VERSION => 1)
stays PIVOT (COUNT(*) FOR ward IN (1))
stays WHERE ward = ANY (SELECT code FROM labs)
stays WINDOW w AS (PARTITION BY ward)
read_parquet('x.parquet')
'x.parquet'
"x.parquet"
x.main.stays
range(10) AS stays(pid)
(VALUES ('a')) AS v(pid)
query('SELECT 1 AS pid')
"""
CELLS = """
* EXCLUDE (age)
* REPLACE (1 AS pid)
COLUMNS(*)
DISTINCT ON (ward) pid
pid: ward
pid, rowid
pid, "current_timestamp" AS t
pid, current_date AS t
pid, uuid() AS t
pid, getenv('HOME') AS t
pid, nextval('s') AS t
pid, CAST(ward AS VARCHAR COLLATE NOCASE) AS t
pid, ward COLLATE NOCASE AS t
pid, ward AS k, COUNT(*) OVER (PARTITION BY k) AS t
"""
AGGREGATES = """
FIRST(age)|ANY_VALUE(age)|ARG_MAX(age, day)|LIST(age)|STRING_AGG(age)|MAX(age, 2)|AVG(age)
SUM(CAST(age AS DOUBLE))|SUM(CAST(age AS UHUGEINT))|COUNT(*) FILTER (WHERE age > 1)
"""


@pytest.mark.parametrize(
    "query",
    [f"SELECT pid FROM {one}" for one in TRAPS.strip().splitlines()]
    + [f"SELECT {one} FROM stays" for one in CELLS.strip().splitlines()]
    + [
        f"SELECT pid, {one} AS a FROM stays GROUP BY pid"
        for one in AGGREGATES.strip().replace("\n", "|").split("|")
    ],
)
def test_what_the_dialect_adds_is_refused(query):
    public = {"public_tables": ["wards"]} if "wards" in query else {}
    with pytest.raises(ValueError, match=r"the query|acts on one patient|must be over CAST|given"):
        source(query, **PLACES, **public).check_patient_local("pid")


def test_texts_are_compared_by_bytes_and_cells_are_those_of_the_database(database):
    place = database(
        "CREATE TABLE Stays (Pid VARCHAR COLLATE NOCASE, n HUGEINT, e ENUM('b', 'a'), "
        "t TIMESTAMPTZ, d DECIMAL(10, 2), f FLOAT)",
        "INSERT INTO Stays VALUES ('a', 170141183460469231731687303715884105727, 'a', "
        "'2020-01-01 01:00:00+02', 1.10, 0.5), ('A', NULL, NULL, NULL, NULL, NULL)",
        "CREATE MACRO upper(x) AS (SELECT COUNT(*) FROM stays)",
    )
    pairs = read("SELECT a.pid, COUNT(*) AS n FROM stays a JOIN stays b USING (pid) "
                 "GROUP BY a.pid", **place)  # fmt: skip
    assert Counter(pairs["Pid"]) == {"a": 1, "A": 1}
    table = read("SELECT *, CAST(t AS DATE) AS day FROM stays WHERE pid = :p", **place,
                 parameters={"p": "a"})  # fmt: skip
    moment = datetime(2019, 12, 31, 23, tzinfo=UTC)
    cells = ["a", str(2**127 - 1), "a", str(moment), "1.10", 0.5, "2019-12-31"]
    assert table.iloc[0].tolist() == cells
    assert read("SELECT pid, UPPER(e) AS u FROM stays", **place)["u"].tolist()[0] == "A"


def test_names_of_a_database_are_tables_or_declared_views(database):
    place = database(
        "CREATE TABLE t (pid INTEGER, x INTEGER[])",
        "INSERT INTO t VALUES (1, [1])",
        "CREATE SCHEMA s; CREATE VIEW s.v AS SELECT pid FROM main.t",
        "CREATE TABLE u (pid DOUBLE)",
    )
    for name in ("v", "s.v", "duckdb_tables", "information_schema.tables", "source.t", "nope"):
        assert refused(f"SELECT * FROM {name}", **place).code == "UNDECLARED_VIEW"
    assert len(read("SELECT * FROM S.V", **place, patient_local=["s.v"])) == 1
    assert refused("SELECT * FROM t", **place).code == "COLUMN_TYPE"
    joined = "SELECT t.pid FROM t JOIN u ON t.pid = u.pid"
    assert refused(joined, **place).code == "JOIN_TYPES"
    assert len(read("SELECT t.pid FROM t JOIN t AS u ON t.pid = u.pid", **place)) == 1
    assert refused("SELECT pid FROM t", database=f"{place['database']}x").code == (
        "SOURCE_UNREADABLE"
    )


def test_nothing_but_the_declared_places_is_reached(tmp_path, parquet, monkeypatch):
    place = parquet(pid=["a"])
    parquet("other", pid=["zebra"])
    for query in (
        f"SELECT pid FROM read_parquet('{tmp_path}/other')",
        f"ATTACH '{tmp_path}/x.duckdb'",
        "SET threads = 3",
        "INSTALL httpfs",
    ):
        declared = source("SELECT pid FROM stays", **place)
        with monkeypatch.context() as patch:
            patch.setattr(
                "storage.sources.tables.duckdb_tables.printed", lambda *_, query=query: query
            )
            with pytest.raises(InputError, match="SOURCE_UNREADABLE"):
                CohortReader(declared).header()
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_file()) == ["other", "stays"]


def test_files_are_parquet_of_one_schema_without_a_log(tmp_path, parquet):
    place = parquet("stays/ward=01/a.parquet", pid=["a"])
    parquet("stays/ward=02/b.parquet", pid=["b"])
    parquet("stays/_tmp/c.parquet", x=[1])
    query = "SELECT * FROM stays"
    assert read(query, **place).to_numpy().tolist() == [["a", "01"], ["b", "02"]]
    parquet("stays/ward=02/b[1].parquet", pid=["b"])
    assert refused(query, **place).code == "SOURCE_MISSING"  # a pattern to DuckDB
    (tmp_path / "stays/ward=02/b[1].parquet").unlink()
    parquet("stays/ward=02/c.parquet", pid=[1.5])
    assert refused(query, **place).code == "PARQUET_SCHEMA"
    (tmp_path / "stays/_delta_log").mkdir()
    (tmp_path / "stays/_delta_log/0.json").touch()
    found = refused(query, **place)
    assert (found.code, "kind: duckdb" in found.message) == ("TABLE_LOG", True)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("place", ["folder", "s3://hospital/folder"])
def test_an_extension_that_is_not_at_hand_is_named_and_not_downloaded(kind, place, monkeypatch):
    found = refused("SELECT * FROM stays", tables={"stays": {kind: place}})
    assert found.code == "EXTENSION_MISSING"
    assert "INSTALL" in found.message


def test_tables_are_read_from_s3(s3, parquet, tmp_path):
    for part in range(2):
        parquet(f"part{part}", pid=[f"p{part}", "q"])
        s3.put_file(str(tmp_path / f"part{part}"), f"hospital/duck/day={part}/a.parquet")
    s3.put_file(str(tmp_path / "part0"), "hospital/codes.parquet")
    tables = {
        "stays": {"parquet": "s3://hospital/duck"},
        "codes": {"parquet": "s3://hospital/codes.parquet"},
    }
    query = "SELECT s.* FROM stays s JOIN codes c ON c.pid = s.pid WHERE s.day = :day"
    found = read(query, tables=tables, parameters={"day": "1"})
    assert found.to_numpy().tolist() == [["q", "1"]]
    with pytest.raises(InputError, match="SOURCE_MISSING"):
        read("SELECT * FROM stays", tables={"stays": {"parquet": "s3://hospital/none"}})
    s3.pipe_file("hospital/duck/_delta_log/0.json", b"{}")
    found = refused(
        "SELECT * FROM stays", tables={"stays": {"parquet": "s3://hospital/duck/day=1"}}
    )
    assert found.code == "TABLE_LOG"


@pytest.mark.parametrize(
    "place",
    [
        {}, {"database": "a", "tables": {"stays": {"parquet": "a"}}}, {"tables": {"t": {}}},
        {"tables": {"stays": {"parquet": "a", "delta": "b"}}}, {"tables": {"t": {"parquet": "a"}}},
        {"tables": {"stays": {"csv": "a"}}}, {"tables": {"stays": {"parquet": "https://a/b"}}},
        {"tables": {"stays": {"parquet": "a/*.parquet"}}},
    ],
)  # fmt: skip
def test_a_wrong_place_is_refused(place):
    with pytest.raises(ValidationError):
        TypeAdapter(Source).validate_python(
            {"kind": "duckdb", "query": "SELECT * FROM stays", **place}
        )


@pytest.mark.parametrize("form", ["sex[]", "STRUCT(one sex)", "MAP(INTEGER, sex)"])
def test_the_name_of_a_refused_type_lists_no_level(database, form):
    file = database("CREATE TYPE sex AS ENUM ('Anna-p0')", f"CREATE TABLE stays (a {form})")
    assert "Anna" not in refused("SELECT a FROM stays", **file).message


def test_a_clean_up_beside_it_leaves_a_query_its_folder(database, tmp_path):
    file = database("CREATE TABLE stays AS SELECT range AS a FROM range(4)")
    root = tmp_path / "private"
    chunks = CohortReader(source("SELECT a FROM stays", **file), scratch=root).chunks(["a"], 2)
    next(chunks)
    purge_abandoned(root)
    assert len(list(root.glob("duckdb-*"))) == 1
    assert sum(map(len, chunks)) == 2
    assert not list(root.glob("duckdb-*"))
