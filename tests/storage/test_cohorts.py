import csv
import gzip
import logging
import os
import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privacy.errors import ClustMixError, ConfigurationError, InputError
from storage.sources import formats
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource, ParquetSource, SqlSource

SECRET = "MRN-SECRET-4711"  # noqa: S105  (a planted patient, no password)


def csv_reader(path, **options):
    return CohortReader(CsvSource(kind="csv", path=path, **options))


def parquet_reader(path, **options):
    return CohortReader(ParquetSource(kind="parquet", path=path, **options))


def sql_reader(path, query, **options):
    return CohortReader(SqlSource(kind="sql", url=f"sqlite:///{path}", query=query, **options))


def all_rows(reader, columns, chunk_rows=50_000):
    return pd.concat(list(reader.chunks(columns, chunk_rows)), ignore_index=True)


def written(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def assert_public(error):
    assert isinstance(error, ClustMixError)
    assert error.__context__ is None
    assert error.__cause__ is None
    assert SECRET not in str(error)


CELL = st.sampled_from(["NA", "nan", "None", "007", "1.50", " 8 ", ""]) | st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(CELL, CELL, CELL), max_size=12),
    chunk_rows=st.integers(1, 5),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    mark=st.sampled_from([",", ";", "\t"]),
)
@example([("007", "1.50", "NA"), (" 8 ", "", "nan")], 5, csv.QUOTE_MINIMAL, ",")
def test_reading_agrees_with_the_csv_module(tmp_path_factory, rows, chunk_rows, quoting, mark):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, quoting=quoting, delimiter=mark)
        writer.writerows([("a", "b", "c"), *rows])
    frames = list(csv_reader(path, delimiter=mark).chunks(["c", "a"], chunk_rows))
    assert [len(frame) for frame in frames] == [
        len(rows[start : start + chunk_rows]) for start in range(0, len(rows), chunk_rows)
    ]
    assert [row for frame in frames for row in frame.index] == list(range(len(rows)))
    read = [tuple(row) for frame in frames for row in frame.to_numpy()]
    assert read == [(c, a) for a, _b, c in rows]


def test_compressed_and_encoded_files(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress("a;b\nä;1\n".encode("cp1252")))
    reader = csv_reader(tmp_path / "a.csv.gz", delimiter=";", encoding="cp1252")
    assert reader.header() == ("a", "b")
    assert all_rows(reader, ["a", "b"]).to_numpy().tolist() == [["ä", "1"]]
    marked = csv_reader(written(tmp_path / "b.csv", "\ufeffa,b\r\n1,2\r\n"))
    assert marked.header() == ("a", "b")
    assert all_rows(marked, ["a", "b"]).to_numpy().tolist() == [["1", "2"]]


def test_blocks_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_CSV_BLOCK_BYTES", 64)
    rows = [f'{i},"x\ny{i}"' for i in range(100)]
    path = written(tmp_path / "a.csv", "a,b\n" + "\n".join(rows) + "\n")
    frames = list(csv_reader(path).chunks(["a", "b"], 30))
    assert [len(frame) for frame in frames] == [30, 30, 30, 10]
    assert pd.concat(frames)["b"].tolist() == [f"x\ny{i}" for i in range(100)]


def parts_of(*tables):
    def write(folder):
        for name, columns in tables:
            (folder / name).parent.mkdir(exist_ok=True)
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        return parquet_reader(folder)

    return write


def text(content, **options):
    content = content if isinstance(content, bytes) else content.encode()

    def write(folder):
        (folder / "a.csv").write_bytes(content)
        return csv_reader(folder / "a.csv", **options)

    return write


ROW = f"a,b,c\n1,2,3\n{SECRET}"
KEYED = {"a": [1], "key": [1]}
REFUSED = {
    "empty": (text(""), "CSV_HEADER: the first line must hold the column names"),
    "semicolons": (text("a;b\n1;2\n"), "CSV_DELIMITER: the header is one column .* contains ';'"),
    "tabs": (text("a\tb\n1\t2\n"), r"CSV_DELIMITER: .* contains '\\t'; set 'delimiter'"),
    "commas": (text("a,b\n", delimiter=";"), "CSV_DELIMITER: .* contains ','; set 'delimiter'"),
    "a name of blanks": (text("a,,c\n"), "HEADER_EMPTY_NAME"),
    "no character": (text(f"a,{SECRET}\ufffd\n"), "SOURCE_UNREADABLE"),
    "a name twice": (text(f"a,{SECRET},{SECRET}\n"), "HEADER_DUPLICATE"),
    "an open quote": (text(f'a,"{SECRET}\n1,2\n'), "SOURCE_UNREADABLE"),
    "a short row": (text(f"{ROW},2\n"), "SOURCE_UNREADABLE: .* as many cells"),
    "a long row": (text(f"{ROW},2,3,4\n"), "SOURCE_UNREADABLE: .* as many cells"),
    "other bytes": (text(f"{ROW},".encode() + b"\xff\xfe,3\n"), "not in the declared encoding"),
    "types that differ": (
        parts_of(("1", KEYED), ("2", {"a": [1], "key": [1.0]})),
        r"PARQUET_SCHEMA: every file .* differ in: key; write",
    ),
    "keys that differ": (
        parts_of(("1", KEYED), ("a=1/2", KEYED)),
        "PARQUET_SCHEMA: .* they differ in: partition keys",
    ),
    "a key that is a column": (
        parts_of(("a=1/2", KEYED)),
        "HEADER_DUPLICATE: every column needs a name of its own",
    ),
}


@pytest.mark.parametrize("defect", REFUSED)
def test_a_malformed_source_is_refused_and_not_repeated(tmp_path, defect, caplog):
    write, message = REFUSED[defect]
    reader = write(tmp_path)
    with caplog.at_level(logging.DEBUG), pytest.raises(InputError, match=message) as caught:
        list(reader.chunks(reader.header()))
    assert_public(caught.value)
    assert SECRET not in caplog.text
    if defect.endswith(" row"):  # whatever is wanted of it
        with pytest.raises(InputError, match=message):
            list(reader.chunks(["b"]))


def test_select_on_numbers_missing_cells_and_text(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3], "n": [1.0, np.nan, 2.0], "t": ["x", None, "nan"]})
    frame.to_parquet(tmp_path / "a.parquet")
    for select, kept in (
        ({"n": 1}, [1]),
        ({"n": "2"}, [3]),
        ({"t": "nan"}, [3]),
        ({"t": "x"}, [1]),
        ({"t": " x "}, [1]),
        ({"n": "one"}, []),
        ({"a": "02"}, []),
    ):
        reader = parquet_reader(tmp_path / "a.parquet", select=select)
        assert [row for frame in reader.chunks(["a"]) for row in frame["a"]] == kept


@pytest.mark.parametrize("when", ["first", "last"])
def test_a_change_while_reading_is_refused(tmp_path, when):
    path = written(tmp_path / "a.csv", "a\n1\n2\n3\n")
    chunks = csv_reader(path).chunks(["a"], 1)
    next(chunks)
    if when == "last":
        next(chunks)
        next(chunks)
    status = path.stat()
    with path.open("r+b") as handle:
        handle.seek(2)
        handle.write(b"9")
    # Same size, same inode, same modification time: the bytes alone differ.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError, match="SOURCE_CHANGED: the source changed while it was read"):
        list(chunks)


def test_a_change_between_two_passes_is_refused(tmp_path):
    path = written(tmp_path / "a.csv", f"a\n{SECRET}\n")
    reader = csv_reader(path)
    for _ in range(2):
        assert len(list(reader.chunks(["a"]))) == 1
    first = reader.fingerprint()
    assert first == csv_reader(path).fingerprint()
    assert repr(first) == "Fingerprint()"
    written(tmp_path / "b.csv", f"a\n{SECRET}\n").replace(path)
    with pytest.raises(InputError, match="SOURCE_CHANGED"):
        list(reader.chunks(["a"]))
    second = csv_reader(path).fingerprint()
    os.utime(path, ns=(1, 1))
    assert len({first, second, csv_reader(path).fingerprint()}) == 3


def test_folder_with_partitions_dictionaries_and_hidden_files(tmp_path):
    no_ward = "__HIVE_DEFAULT_PARTITION__"
    for year, ward, values in (("2020", "01", ["x", "y"]), ("2021", no_ward, ["y", None])):
        folder = tmp_path / f"year={year}" / f"ward={ward}"
        folder.mkdir(parents=True)
        table = pa.table(
            {
                "level": pa.array(values).dictionary_encode(),
                "key": pa.array([2**60 + 1, None if year == "2021" else 5], pa.int64()),
            }
        )
        pq.write_table(table, folder / "part.parquet")
    (tmp_path / "_hidden").mkdir()
    written(tmp_path / "_hidden" / "x.parquet", "not parquet")
    written(tmp_path / ".x.parquet", "not parquet")
    reader = parquet_reader(tmp_path)
    assert reader.header() == ("level", "key", "year", "ward")
    frames = list(reader.chunks(["ward", "key", "level", "year"], 3))
    assert [len(frame) for frame in frames] == [3, 1]
    frame = pd.concat(frames, ignore_index=True)
    assert not isinstance(frame["level"].dtype, pd.CategoricalDtype)
    assert frame["level"].tolist()[:3] == ["x", "y", "y"]
    assert pd.isna(frame["level"][3])
    assert frame["ward"].tolist()[:2] == ["01", "01"]
    assert frame["ward"][2:].isna().all()
    selected = parquet_reader(tmp_path, select={"ward": "01"})
    assert all_rows(selected, ["year"])["year"].tolist() == ["2020", "2020"]
    assert frame["year"].tolist() == ["2020", "2020", "2021", "2021"]
    # A key in a chunk with a missing key is still an exact integer.
    assert [str(key) for key in frame["key"]] == [str(2**60 + 1), "5", str(2**60 + 1), "<NA>"]


def test_name_of_a_partition_folder_is_content(tmp_path):
    """The same bytes under another key are another table; under another file name they are not."""
    digests = set()
    for name in ("w=1/p", "w=1/q", "w=01/p", "v=1/p", "w=__HIVE_DEFAULT_PARTITION__/p", "w/p", "p"):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}" / f"{name}.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), file)
        folder = file.parent if name == "p" else file.parent.parent
        digests.add(parquet_reader(folder).content_sha256())
    assert len(digests) == 5
    single = parquet_reader(tmp_path / "0" / "w=1" / "p.parquet").content_sha256()
    assert single == parquet_reader(tmp_path / "6").content_sha256()
    assert single in digests


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()), pa.struct({"b": pa.string()}), pa.binary(),
        pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)  # fmt: skip
def test_column_of_a_type_without_text_is_refused_by_name(tmp_path, kind):
    pq.write_table(pa.table({"a": [1], "b": pa.nulls(1, kind)}), tmp_path / "a.parquet")
    reader = parquet_reader(tmp_path / "a.parquet")
    assert all_rows(reader, ["a"])["a"].tolist() == [1]
    for call in (reader.check_types, reader.chunks, lambda names: reader.fragments(names, 1)):
        with pytest.raises(InputError, match="COLUMN_TYPE: column 'b' has the type ") as caught:
            call(["a", "b"])
        assert_public(caught.value)
    with pytest.raises(InputError, match="COLUMN_TYPE: column 'b'"):
        parquet_reader(tmp_path / "a.parquet", select={"b": "x"}).check_types(["a"])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_rows(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(formats, "_CSV_BLOCK_BYTES", 1 << 15)

    def peak(n_rows):
        path = tmp_path / f"{n_rows}.{kind}"
        values = np.random.default_rng(1).integers(0, 2**40, n_rows)
        if kind == "csv":
            path.write_text("a\n" + "\n".join(map(str, values)) + "\n")
        else:
            # One row group: the worst case for a reader that decodes whole row groups.
            table = pa.table({"a": values, "b": values})
            pq.write_table(table, path, row_group_size=n_rows, use_dictionary=False)
        reader = csv_reader(path) if kind == "csv" else parquet_reader(path)
        start = pa.total_allocated_bytes()
        return max(pa.total_allocated_bytes() - start for _ in reader.chunks(["a"], 2_000))

    # The column alone takes 13 MB at the larger size.
    assert max(peak(200_000), peak(1_600_000)) < 4_000_000


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "c.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE stays (key INTEGER, age REAL, ward TEXT)")
        rows = [(2**60 + 1, 1.5, "a"), (None, None, "a"), (3, 2.5, "b"), (2**60 + 1, 4.0, "a")]
        connection.executemany("INSERT INTO stays VALUES (?, ?, ?)", rows)
    return path


def test_query_is_read_with_exact_keys(database):
    reader = sql_reader(
        database,
        "SELECT key, age, ward FROM stays WHERE ward = :ward ORDER BY age",
        parameters={"ward": "a"},
    )
    assert reader.header() == ("key", "age", "ward")
    assert reader.fingerprint() is None
    frames = list(reader.chunks(["age", "key"], 2))
    assert [list(frame.columns) for frame in frames] == [["age", "key"]] * 2
    keys = [str(key) for frame in frames for key in frame["key"]]
    assert keys == ["nan", str(2**60 + 1), str(2**60 + 1)]


def test_cell_of_a_query_without_text_is_refused_by_column(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("ALTER TABLE stays ADD COLUMN b BLOB DEFAULT x'00'")
    reader = sql_reader(database, "SELECT ward, b FROM stays")
    with pytest.raises(InputError, match="COLUMN_TYPE: column 'b' has the type bytes,") as caught:
        all_rows(reader, ["b"])
    assert_public(caught.value)
    assert all_rows(reader, ["ward"]).size == 4


def test_a_database_that_is_absent_or_of_another_kind_is_refused(tmp_path, database, monkeypatch):
    with pytest.raises(InputError, match="SOURCE_MISSING: expected a SQLite file") as caught:
        sql_reader(tmp_path / "no.sqlite", "SELECT 1").header()
    assert str(tmp_path) not in str(caught.value)
    assert not (tmp_path / "no.sqlite").exists()
    monkeypatch.setenv("COHORT_URL", f"sqlite:///{database}")
    source = SqlSource(kind="sql", url_env="COHORT_URL", query="SELECT ward FROM stays")
    with pytest.raises(ConfigurationError, match="DATABASE_KIND: expected a postgresql database"):
        CohortReader(source).header()


def test_a_view_is_read_where_the_site_file_answers_for_it(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE VIEW Latest AS SELECT * FROM stays ORDER BY key LIMIT 1")
    query = "SELECT key FROM latest"
    with pytest.raises(ConfigurationError, match=r"UNDECLARED_VIEW: .*latest, which is a view"):
        sql_reader(database, query).header()
    for declared in ("patient_local", "public_tables"):
        assert sql_reader(database, query, **{declared: ["Latest"]}).header() == ("key",)
