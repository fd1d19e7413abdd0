"""What becomes of a row, or of a patient, is what becomes of it when it is read alone.

Tables of a few rows are generated for each kind of source, with cells that are equal and spelled
differently, nulls, many types, selections and borders of chunks. They go through the reader, the
encoder and the bounding of contributions, everything but the input gate and the disk between the
steps. Then each row is read again from a source that holds no other, and each patient from a source
that holds no other patient. Defects that were once in the readers are planted at the end, and must
be found.
"""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
import uuid
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pandas as pd
import postgres_server
import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from privacy.parameters import PrivacyUnit
from storage.files.diagnostics import DiagnosticsFile
from storage.schema.columns import raw_text
from storage.schema.table import TableSchema
from storage.sources import formats, reading
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource, ParquetSource, Source, SqlSource
from storage.sources.tables import parquet_files
from tasks.ingest import pieces as ingest_pieces
from tasks.ingest import shards
from tasks.ingest.pieces import IngestRules, bound_shard, spread_fragment
from tasks.ingest.violations import Rule

COLUMNS = ("n", "key", "x", "c", "d", "y")
SELECTED = "s"
SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "n", "kind": "integer", "lower": 0, "upper": 7, "bins": 8},
            {"name": "x", "kind": "real", "lower": 0, "upper": 10, "bins": 100, "decimals": 1}
            | {"nullable": True, "missing": ["?", -9223372036854775807]},
            {"name": "c", "kind": "categorical", "nullable": True, "other": "rest"}
            | {"levels": ["a", "1", "1.1", "1.10", "9007199254740992", "True", "p", "r", "rest"]}
            | {"prefixes": {"p": ["2020-"]}, "numeric_ranges": {"r": [[5, 6]]}},
            {"name": "d", "kind": "categorical", "nullable": True, "levels": ["a", "1", "1.10"]},
        ],
        "label": {"name": "y", "levels": {"no": ["0", "False"], "yes": ["1", "True", "1.1"]}}
        | {"nullable": True, "missing": ["?"]},
    }
)
N_SHARDS = 2
LARGE = 2**53

TEXTS = ["1", "1.0", " 1 ", "01", "5", "a", "a\0", "a ", "1.1", "1.10", "?", "", "True", "-0"]
LABELS = ["0", "1", " 1", "?", ""]
NUMBERS = ["1", "1.0", " 1 ", "0.04", "?", "", "-9223372036854775807", "1e400"]
DAY, OFFSET = dt.datetime(2020, 1, 1), dt.timezone(dt.timedelta(hours=1))

ARROW = {
    "string": (pa.string(), TEXTS),
    "large_string": (pa.large_string(), TEXTS),
    "string_view": (pa.string_view(), TEXTS),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "int64": (pa.int64(), [0, 1, 5, 1 - 2**63, LARGE, LARGE + 1]),
    "int8": (pa.int8(), [0, 1, 5, -1]),
    "uint8": (pa.uint8(), [0, 1, 5, 255]),
    "uint64": (pa.uint64(), [0, 1, LARGE + 1, 2**64 - 1]),
    "float64": (pa.float64(), [0.0, -0.0, 1.0, 1.1, 5.0, float(LARGE), math.nan, math.inf]),
    "float32": (pa.float32(), [0.0, -0.0, 1.0, 1.1, 5.0, math.nan]),
    "float16": (pa.float16(), [0.0, 1.0, 1.5, 5.0]),
    "bool": (pa.bool_(), [True, False]),
    "decimal128": (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("1.00"), Decimal("0.00")]),
    "decimal256": (pa.decimal256(50, 0), [Decimal(1), Decimal(LARGE + 1)]),
    "date32": (pa.date32(), [DAY.date(), dt.date(1, 1, 1)]),
    "timestamp": (pa.timestamp("us"), [DAY, DAY.replace(microsecond=1)]),
    "timestamp_tz": (pa.timestamp("ns", "Europe/Berlin"), [DAY.replace(tzinfo=OFFSET)]),
    "time64": (pa.time64("us"), [dt.time(1), dt.time(1, 0, 0, 1)]),
    "null": (pa.null(), [None]),
}
POSTGRES = {
    "text": ("text", [text for text in TEXTS if "\0" not in text]),
    "varchar": ("varchar", ["1", "a", "a "]),
    "bigint": ("bigint", [0, 1, 5, LARGE, LARGE + 1]),
    "float8": ("float8", [0.0, -0.0, 1.0, 1.1, float(LARGE), math.nan, math.inf]),
    "float4": ("float4", [0.0, 1.0, 1.1]),
    "numeric": ("numeric", [Decimal(t) for t in ("1.1", "1.10", "1", "1.0", "0.00", "NaN")]),
    "boolean": ("boolean", [True, False]),
    "date": ("date", [DAY.date()]),
    "timestamp": ("timestamp", [DAY, DAY.replace(microsecond=1)]),
    "timestamptz": ("timestamptz", [DAY.replace(tzinfo=OFFSET), DAY.replace(tzinfo=dt.UTC)]),
    "time": ("time", [dt.time(1)]),
    "uuid": ("uuid", [uuid.UUID(int=1)]),
}
# A SQLite column has no type of its own: each cell has one.
ANY = [0, 0.0, -0.0, 1, 1.0, 1.1, 5, float(LARGE), LARGE, LARGE + 1, math.inf]


# Equal cells with different texts, which are one cell to a hash table.
TWINS = {
    "sqlite": ("any", [float(LARGE), LARGE]),
    "postgres": ("numeric", [Decimal("1.1"), Decimal("1.10")]),
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A generated table: cells by column, how it is stored and how it is read."""

    kind: str
    types: dict[str, str]
    rows: list[dict[str, Any]]
    select: dict[str, str | int]
    chunk_rows: int
    max_rows: int
    partition: str | None
    fragmented: bool


@st.composite
def tables(draw, kind):
    """Tables of a kind of source; half of them break no rule, so that their patients are bound."""
    clean = draw(st.booleans())
    types = {}
    pools = {}
    for column in ("key", "x", "c", "d", "y", SELECTED):
        types[column], pool = _pool(draw, kind, column)
        if column == "key" and clean:
            pool = [c for c in pool if raw_text(c) not in ("", "nan", "NaN", "None")] or ["k"]
            types[column] = "string" if pool == ["k"] else types[column]
        elif column != "key" and kind != "csv":
            pool = [*pool, None]
        # Of a few cells that stand together, so that many are equal.
        first = draw(st.integers(0, len(pool) - 1))
        pools[column] = st.sampled_from([*pool[first : first + 3], *pool[-1:]])
    if clean:
        pools["d"] = st.just("" if kind == "csv" else None)
    n_rows = draw(st.integers(2, 6))
    rows = [{"n": n} | {c: draw(cells) for c, cells in pools.items()} for n in range(n_rows)]
    value = st.sampled_from(["05", "01", 5, "1.1", "True"])
    partition = None
    if kind == "hive":
        partition = draw(st.sampled_from(["key", "c", SELECTED]))
        for row in rows:
            spelling = draw(st.sampled_from(["1", "01", "5", "1.1", "a", "a b", "True"]))
            row[partition] = spelling
    return Table(
        kind=kind,
        types=types,
        rows=rows,
        select=draw(st.sampled_from([{}, {SELECTED: draw(value)}])),
        chunk_rows=draw(st.integers(1, 4)),
        max_rows=draw(st.integers(1, 3)),
        partition=partition,
        fragmented=kind in ("parquet", "hive") and draw(st.booleans()),
    )


def _pool(draw, kind, column):
    """Return a type that a column may have, and its cells."""
    texts = {"x": NUMBERS, "y": LABELS}.get(column, TEXTS)
    if kind == "csv":
        return "text", texts
    if column in ("key", "c", SELECTED) and kind in TWINS and draw(st.integers(0, 2)) == 0:
        return TWINS[kind]
    if kind == "sqlite":
        numbers = [0, 1, 0.0, 1.0, -0.0] if column == "y" else ANY
        return "any", [*numbers, *texts]
    known = POSTGRES if kind == "postgres" else ARROW
    names = list(known)
    if column == "x":
        names = [n for n in names if n.startswith(("string", "text", "int", "uint", "float", "b"))]
    elif column == "y":
        names = [n for n in names if n in ("string", "text", "int8", "bool", "boolean", "numeric")]
    elif column == SELECTED and kind != "postgres":
        names = ["int64", "uint8", "int8", "string", "bool", "decimal128"]
    name = draw(st.sampled_from(names))
    return name, texts if name in ("string", "text") and column in "xy" else known[name][1]


# --- sources -----------------------------------------------------------------------------------


class Sources:
    """Writes the rows of tables to sources, one at a time, in a folder or a database."""

    def __init__(self, folder):
        self.folder, self.number = folder, 0

    def source(self, table, rows):
        self.number += 1
        path = self.folder / f"{self.number % 4}-{table.kind}"
        names = ["n", *table.types]
        if table.kind == "csv":
            columns = {name: [str(row[name]) for row in rows] for name in names}
            pa_csv.write_csv(pa.table(columns), path)
            return CsvSource(kind="csv", path=path, select=table.select)
        if table.kind in ("sqlite", "postgres"):
            return self.query(table, rows, names)
        stored = [name for name in names if name != table.partition]
        kinds = {"n": pa.int64()} | {n: ARROW[t][0] for n, t in table.types.items()}
        path = self.folder / f"{self.number}"
        path.mkdir()
        folders = defaultdict(list)
        for row in rows:
            folders[str(row.get(table.partition, ""))].append(row)
        for value, members in folders.items():
            file = path / (f"{table.partition}={quote(value)}" if table.partition else "") / "p"
            file.parent.mkdir(exist_ok=True)
            arrays = {
                name: pa.array([row[name] for row in members], kinds[name]) for name in stored
            }
            pq.write_table(pa.table(arrays), file.with_suffix(".parquet"), row_group_size=2)
        if table.kind == "duckdb":
            query = f"SELECT {', '.join(names)} FROM t"  # noqa: S608
            return TypeAdapter(Source).validate_python(
                {"kind": "duckdb", "query": query, "select": table.select}
                | {"tables": {"t": {"parquet": str(path)}}}
            )
        return ParquetSource(kind="parquet", path=path, select=table.select)

    def query(self, table, rows, names):
        """Return a query of a table of its own."""
        name, marks = (
            f"t{self.number}",
            ", ".join("?" if table.kind == "sqlite" else "%s" for _ in names),
        )
        kinds = {"n": "bigint"} | {
            n: "" if table.kind == "sqlite" else POSTGRES[t][0] for n, t in table.types.items()
        }
        create = f"CREATE TABLE {name} ({', '.join(f'{n} {kinds[n]}' for n in names)})"
        insert = f"INSERT INTO {name} VALUES ({marks})"  # noqa: S608 - names of this module
        cells = [tuple(row[n] for n in names) for row in rows]
        query = f"SELECT {', '.join(names)} FROM {name}"  # noqa: S608
        if table.kind == "postgres":
            url = postgres_server.database_url()
            with psycopg.connect(url) as connection, connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE IF EXISTS {name}; {create}")
                cursor.executemany(insert, cells)
            return SqlSource(kind="sql", url_env="ROWS_ALONE", query=query, select=table.select)
        path = self.folder / f"{self.number % 4}.sqlite"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            connection.execute(create)
            connection.executemany(insert, cells)
            connection.execute("COMMIT")
        url = f"sqlite:///{path}"
        return SqlSource(kind="sql", url=url, query=query, select=table.select)


# --- what becomes of rows ----------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of the rows of a source, by number ``n``, and of its patients."""

    codes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    broken: dict[int, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    patients: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    kept: list[tuple[Any, ...]] = field(default_factory=list)


def outcome(source, table):
    """Read a source to the end; the steps leave what they store in memory."""
    found, stored = Outcome(), {}
    encode = ingest_pieces.encode_chunk
    unit = PrivacyUnit(column="key", max_rows=table.max_rows)
    rules = IngestRules(schema=SCHEMA, unit=unit, partition=None)
    numbers = {}

    def encoded(frame, schema):
        chunk = encode(frame, schema)
        for place, (row, n) in enumerate(zip(frame.index, frame["n"], strict=True)):
            numbers[row] = int(n)
            codes = tuple(chunk.codes[place].tolist())
            found.codes[int(n)] = (codes, int(chunk.label[place]), bool(chunk.valid[place]))
        return chunk

    def add(column, rule, rows, _values):
        for row in rows:
            found.broken[numbers[row]].add((column, rule))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_pieces, "encode_chunk", encoded)
        patch.setattr(ingest_pieces, "N_SHARDS", N_SHARDS)
        for module in (ingest_pieces, shards):
            patch.setattr(module, "store_arrays", lambda path, **a: stored.update({path: a}))
        patch.setattr(ingest_pieces, "load_arrays", stored.__getitem__)
        patch.setattr(ingest_pieces, "replaced", lambda _: BytesIO())
        patch.setattr(parquet_files, "ROWS_WORTH_A_FRAGMENT", 2)
        reader = CohortReader(source)
        fragments = [reader.chunks(COLUMNS, table.chunk_rows)]
        if table.fragmented:
            parts = reader.fragments(COLUMNS, 3) or ()
            fragments = [part.frames(table.chunk_rows) for part in parts]
        workspace, diagnostics = Path("/"), cast(DiagnosticsFile, SimpleNamespace(add=add))
        for number, frames in enumerate(fragments):
            spread_fragment(
                frames, rules, number=number, workspace=workspace, diagnostics=diagnostics
            )
        pieces = [(path, arrays) for path, arrays in stored.items() if "keys" in arrays]
        for path, arrays in pieces:
            for codes, fold, key in zip(
                arrays["codes"], arrays["fold"], arrays["keys"], strict=True
            ):
                shard = path.name.split("-")[1]
                found.patients[int(codes[0])] = (shard, int(fold), str(key))
        for shard in range(N_SHARDS if pieces else 0):
            bound_shard(shard, n_fragments=len(fragments), workspace=workspace, rules=rules)
            arrays = stored[ingest_pieces.shard_path(workspace, shard)]
            columns = (arrays[name].tolist() for name in ("codes", "label", "weight", "fold"))
            found.kept += [(tuple(codes), *rest) for codes, *rest in zip(*columns, strict=True)]
    return found


def check(table, sources):
    """Compare each row, and each patient, with what becomes of it alone."""
    among = outcome(sources.source(table, table.rows), table)
    patients = defaultdict(list)
    for row in table.rows:
        n = row["n"]
        alone = outcome(sources.source(table, [row]), table)
        assert among.codes.get(n) == alone.codes.get(n), (table, row)
        assert among.broken.get(n) == alone.broken.get(n), (table, row)
        if not among.broken:
            assert among.patients.get(n) == alone.patients.get(n), (table, row)
        patients["" if row["key"] is None else raw_text(row["key"])].append(row)
    if among.broken:
        return
    for rows in patients.values():
        if len(rows) < len(table.rows):
            own = {row["n"] for row in rows}
            kept = [row for row in among.kept if row[0][0] in own]
            assert kept == outcome(sources.source(table, rows), table).kept, (table, rows)


def search(kind, sources, examples):
    """Check generated tables of a kind of source."""

    @settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(table=tables(kind))
    def run(table):
        check(table, sources)

    run()


@pytest.fixture
def sources(tmp_path):
    return Sources(tmp_path)


@pytest.fixture
def postgres(monkeypatch):
    url = postgres_server.database_url()
    monkeypatch.setenv("ROWS_ALONE", url.replace("postgresql:", "postgresql+psycopg:"))


@pytest.mark.parametrize("examples", [20, pytest.param(600, marks=pytest.mark.integration)])
@pytest.mark.parametrize("kind", ["csv", "parquet", "hive", "sqlite", "duckdb"])
def test_rows_and_patients_are_read_as_if_alone(kind, examples, sources):
    # Each example of DuckDB opens a database of its own, which takes a third of a second.
    search(kind, sources, min(examples, 150) if kind == "duckdb" else examples)


@pytest.mark.integration
@pytest.mark.usefixtures("postgres")
def test_rows_and_patients_of_postgresql_are_read_as_if_alone(sources):
    search("postgres", sources, 100)


# --- planted defects ---------------------------------------------------------------------------


def merge_equal_cells(patch):
    """Let the first of equal cells stand for all of them."""

    def merged(_, cells):
        index, uniques = pd.factorize(pd.Series(cells, dtype=object))
        return pa.array([raw_text(value) for value in uniques]).take(
            pa.array(index, mask=index < 0)
        )

    patch.setattr(formats, "sql_text", merged)


def convert_by_chunk(patch, **options):
    """Let pandas choose a type for the cells of each chunk."""
    patch.setattr(reading, "arrow_frame", lambda table: table.to_pandas(**options))


def select_by_chunk(patch):
    """Compare numbers where a chunk of a column holds numbers, and text where it does not."""

    def select(frame, select):
        for column, value in select.items():
            cells = frame[column]
            keep = cells.notna() & (cells.astype(str) == str(value))
            if pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_bool_dtype(cells):
                with suppress(ValueError):
                    keep = cells == int(value)
            frame = frame[keep]
        return frame

    convert_by_chunk(patch, integer_object_nulls=True)
    patch.setattr(reading, "_select", select)


def keep_nul(patch):
    """Accept patients whose keys end in NUL characters."""
    unnamed = ingest_pieces.unnamed_patients

    def accept(*arguments):
        return tuple(v for v in unnamed(*arguments) if v.rule is not Rule.TEXT)

    patch.setattr(ingest_pieces, "unnamed_patients", accept)


def planted(defect, kind):
    """Return a table that shows a defect."""
    kinds = {"key": "string", "x": "string", "c": "int64", "d": "null", "y": "string"}
    types = dict.fromkeys(kinds, "text") if kind == "postgres" else {**kinds, SELECTED: "int64"}
    cells = {"key": ["a", "b"]}
    select = {}
    if defect is merge_equal_cells:
        types |= {"c": TWINS[kind][0], SELECTED: TWINS[kind][0]}
        cells["c"] = TWINS[kind][1]
    elif defect is select_by_chunk:
        cells[SELECTED], select = [5, None], {SELECTED: "05"}
    elif defect is convert_by_chunk:
        cells["c"] = [LARGE, None]
    else:
        cells["key"] = [letter + end for letter in "abcd" for end in ("", "\0")]
    partition = (
        {select_by_chunk: "c", convert_by_chunk: SELECTED}[defect] if kind == "hive" else None
    )
    rows = []
    for n, key in enumerate(cells["key"]):
        empty = "" if kind == "csv" else None
        row = {"n": n} | dict.fromkeys(types, empty) | {"key": key, "y": "1"}
        if partition:
            row[partition] = "1"
        rows.append(row | {name: column[n] for name, column in cells.items()})
    return Table(
        kind=kind,
        types=types,
        rows=rows,
        select=select,
        chunk_rows=8,
        max_rows=1,
        partition=partition,
        fragmented=False,
    )


PLANTED = [
    (merge_equal_cells, "sqlite"),
    pytest.param(merge_equal_cells, "postgres", marks=pytest.mark.integration),
    (select_by_chunk, "parquet"),
    (select_by_chunk, "hive"),
    (convert_by_chunk, "parquet"),
    (convert_by_chunk, "hive"),
    (keep_nul, "csv"),
    (keep_nul, "parquet"),
    (keep_nul, "sqlite"),
]


@pytest.mark.parametrize(("defect", "kind"), PLANTED)
def test_planted_defect_is_found(defect, kind, sources, request):
    if kind == "postgres":
        request.getfixturevalue("postgres")
    table = planted(defect, kind)
    check(table, sources)
    with pytest.MonkeyPatch.context() as patch:
        defect(patch)
        with pytest.raises(AssertionError):
            check(table, sources)
