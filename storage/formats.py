"""The file formats and the database: from a place to column names and batches of rows.

Nothing here guards its exceptions, which may quote the data: `storage.cohorts` does.
"""

import csv
import gzip
import io
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import sqlalchemy as sa

from privacy.errors import ConfigurationError, InputError
from storage.sources import CsvSource, SqlSource

_MAX_HEADER_CHARACTERS = 1_000_000
# The parser reads ahead about forty blocks; a row must fit into one.
_CSV_BLOCK_BYTES = 1 << 18
_PARQUET_BUFFER_BYTES = 1 << 20
_COMMON_DELIMITERS = ",;\t|"
_SQLITE_READS = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)
_SQLITE_REACHING = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def rechunk(batches: Iterable[pa.RecordBatch], chunk_rows: int) -> Iterator[pa.Table]:
    """Join and cut batches into tables of exactly `chunk_rows` rows; the last may be shorter.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        Batches of any sizes with one schema.
    chunk_rows : int
        Rows of a table, at least 1.

    Yields
    ------
    pyarrow.Table
        Non-empty tables in the order of the rows.
    """
    held: list[pa.RecordBatch] = []
    n_held = 0
    for batch in batches:
        held.append(batch)
        n_held += batch.num_rows
        while n_held >= chunk_rows:
            table = pa.Table.from_batches(held)
            yield table.slice(0, chunk_rows)
            # A batch without rows would keep the memory that it was cut from.
            held = [rest for rest in table.slice(chunk_rows).to_batches() if rest.num_rows]
            n_held -= chunk_rows
    if n_held:
        yield pa.Table.from_batches(held)


def csv_header(path: Path, source: CsvSource) -> tuple[str, ...]:
    """Read the first line of a text file.

    Parameters
    ----------
    path : Path
        File, plain or ``.gz``.
    source : CsvSource
        Delimiter and encoding.

    Returns
    -------
    tuple of str
        The names, not checked for being unique.

    Raises
    ------
    InputError
        If the line is empty or much too long, or is one column although it has other delimiters.
    """
    line = _first_line(path, source)
    if len(line) >= _MAX_HEADER_CHARACTERS or not line.strip():
        raise InputError(
            "CSV_HEADER",
            "the first line must hold the column names; it is empty or longer than a million "
            "characters",
        )
    names = tuple(next(csv.reader([line], delimiter=source.delimiter, strict=True)))
    others = [mark for mark in _COMMON_DELIMITERS if mark != source.delimiter and mark in names[0]]
    if len(names) == 1 and others:
        raise InputError(
            "CSV_DELIMITER",
            f"the header is one column with delimiter {source.delimiter!r} and contains "
            f"{others[0]!r}; set 'delimiter' in the site file to the one the file uses",
        )
    return names


def _first_line(path: Path, source: CsvSource) -> str:
    encoding = "utf-8-sig" if source.encoding == "utf-8" else source.encoding
    raw = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    # The decoder is given more than one line, and errors of later lines are not the header's.
    with io.TextIOWrapper(raw, encoding=encoding, errors="replace") as handle:
        line = handle.readline(_MAX_HEADER_CHARACTERS)
    if "\ufffd" in line:
        raise UnicodeError
    return line


def csv_batches(
    path: Path, source: CsvSource, names: tuple[str, ...], needed: list[str]
) -> Iterator[pa.RecordBatch]:
    """Read the wanted columns of a text file as text.

    Parameters
    ----------
    path : Path
        File, plain or ``.gz``.
    source : CsvSource
        Delimiter and encoding.
    names : tuple of str
        All names of the header.
    needed : list of str
        Names of the wanted columns.

    Yields
    ------
    pyarrow.RecordBatch
        Batches of about `_CSV_BLOCK_BYTES` bytes.
    """
    if not _first_line(path, source).endswith("\n"):
        return  # the parser refuses a header line without an end
    # Not pandas.read_csv: it fills the cells of a row that is too short and, when only some
    # columns are wanted, accepts a row that is too long, whose cells stand in wrong columns.
    reader = pa_csv.open_csv(
        path,
        read_options=pa_csv.ReadOptions(
            encoding=source.encoding,
            block_size=_CSV_BLOCK_BYTES,
        ),
        parse_options=pa_csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=needed,
            strings_can_be_null=False,
        ),
    )
    with reader:
        yield from reader


def files_of(path: Path) -> list[Path]:
    """Return the file, or the Parquet files below a folder.

    Parameters
    ----------
    path : Path
        File or folder.

    Returns
    -------
    list of Path
        In sorted order, without hidden ones (a name on the way begins with a dot or ``_``).
    """
    if path.is_file():
        return [path]
    hidden = (".", "_")
    return sorted(
        file
        for file in path.rglob("*.parquet")
        if file.is_file()
        and not any(part.startswith(hidden) for part in file.relative_to(path).parts)
    )


class ParquetFolder:
    """The files of a Parquet source and their partition values.

    Parameters
    ----------
    path : Path
        File or folder.

    Raises
    ------
    InputError
        If there is no file, or two files differ in columns, types or partition keys: a key that
        is an integer in one file and a floating-point number in the next has two spellings.
    """

    def __init__(self, path: Path) -> None:
        self._files = files_of(path)
        if not self._files:
            raise InputError("SOURCE_MISSING", f"expected files '*.parquet' in folder {path}")
        self._partitions = [_hive_values(file.relative_to(path)) for file in self._files]
        keys = list(self._partitions[0])
        schemas = [_decoded(pq.read_schema(file)) for file in self._files]
        self._types = schemas[0]
        self.names = (*(name for name, _ in self._types), *keys)
        for schema, values in zip(schemas, self._partitions, strict=True):
            if sorted(schema) != sorted(self._types) or list(values) != keys:
                ours, theirs = set(self._types), set(schema)
                differing = sorted({name for name, _ in ours ^ theirs})
                raise InputError(
                    "PARQUET_SCHEMA",
                    "every file of the folder must have the same columns, types and partition "
                    f"keys; they differ in: {', '.join(differing) or 'partition keys'}; write the "
                    "folder again with one schema",
                )
        # A key such as 01 stays text; only if all values are plain integers are they integers.
        self._integer_keys = {
            key
            for key in keys
            if all(
                value is None or (value.isdecimal() and str(int(value)) == value)
                for value in (values[key] for values in self._partitions)
            )
        }

    def batches(self, needed: list[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns of all files in sorted order, dictionaries decoded.

        Parameters
        ----------
        needed : list of str
            Names of stored columns and partition keys.
        chunk_rows : int
            Most rows in a batch.

        Yields
        ------
        pyarrow.RecordBatch
            Batches with one schema.
        """
        for file, values in zip(self._files, self._partitions, strict=True):
            stored = [name for name in needed if name not in values]
            # A buffered reader decodes pages on demand; the dataset scanner of pyarrow would hold
            # whole row groups, and a file may be one row group.
            with pq.ParquetFile(
                file, buffer_size=_PARQUET_BUFFER_BYTES, pre_buffer=False
            ) as parquet:
                for batch in parquet.iter_batches(batch_size=chunk_rows, columns=stored):
                    yield pa.RecordBatch.from_arrays(
                        [
                            self._constant(name, values[name], batch.num_rows)
                            if name in values
                            else _decode(batch.column(name))
                            for name in needed
                        ],
                        names=needed,
                    )

    def _constant(self, key: str, value: str | None, n_rows: int) -> pa.Array:
        if key in self._integer_keys:
            return pa.repeat(pa.scalar(None if value is None else int(value), pa.int64()), n_rows)
        return pa.repeat(pa.scalar(value, pa.large_string()), n_rows)


def _hive_values(relative: Path) -> dict[str, str | None]:
    pairs = (part.split("=", maxsplit=1) for part in relative.parent.parts if "=" in part)
    return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs}


def _decoded(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return names and type names with dictionaries decoded and both string widths alike."""
    pairs = []
    for item in schema:
        plain = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
        pairs.append((item.name, "string" if _is_text(plain) else str(plain)))
    return pairs


def _decode(column: pa.Array) -> pa.Array:
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return plain.cast(pa.large_string()) if _is_text(plain.type) else plain


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


@contextmanager
def executed(source: SqlSource) -> Iterator[sa.CursorResult[tuple[object, ...]]]:
    """Run the fixed query on a connection that only reads, and stream the result.

    Parameters
    ----------
    source : SqlSource
        Address, query and parameters.

    Yields
    ------
    CursorResult
        Open result; no row has been fetched.

    Raises
    ------
    ConfigurationError
        If the environment variable with the URL is not set.
    InputError
        If a SQLite file is missing.
    """
    url = source.url or os.environ.get(str(source.url_env))
    if not url:
        raise ConfigurationError(
            "DATABASE_URL",
            f"environment variable {source.url_env} is not set; set it to the SQLAlchemy URL of "
            "the database",
        )
    engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True)
    try:
        # SQLite would create an empty database under a mistyped name.
        if engine.dialect.name == "sqlite" and not Path(engine.url.database or "").is_file():
            raise InputError(
                "SOURCE_MISSING",
                "expected a SQLite file at the address of the source; correct the site file or "
                "the environment variable",
            )
        # Where there is one, a read-only mode is a second line behind the filter of the query.
        options = {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
        with engine.execution_options(**options).connect() as connection:
            driver = connection.connection.driver_connection
            if isinstance(driver, sqlite3.Connection):
                driver.execute("PRAGMA query_only = ON")
                driver.set_authorizer(_authorize_reading)
            yield connection.execute(
                sa.text(source.query), source.parameters, execution_options={"stream_results": True}
            )
    finally:
        engine.dispose()


def _authorize_reading(
    action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
) -> int:
    """Let SQLite prepare what reads tables, and nothing else: no file, setting or transaction."""
    if action == sqlite3.SQLITE_FUNCTION and second in _SQLITE_REACHING:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _SQLITE_READS else sqlite3.SQLITE_DENY


def sklearn_frame() -> pd.DataFrame:
    """Load the breast cancer data of scikit-learn: 30 features and ``target``.

    Returns
    -------
    DataFrame
        One row per patient.
    """
    from sklearn.datasets import load_breast_cancer  # slow import, rarely needed

    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    return frame
