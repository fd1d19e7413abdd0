"""Readers of text files, databases and a library; `storage.sources.cohorts` guards exceptions."""

import csv
import gzip
import io
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from itertools import chain, count
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import sqlalchemy as sa

from privacy.errors import InputError, refusals
from storage.sources.cells import is_read, sql_is_read, sql_text
from storage.sources.declared import SqlSource
from storage.sources.reading import RefusedRow, SourceTable, check_form, unreadable

refusal = refusals(__package__)
_log = logging.getLogger(__name__)
_LONG_SECONDS = 10.0
_MAX_HEADER_CHARACTERS = 1_000_000
# The parser reads ahead about forty blocks; a row must fit into one.
_CSV_BLOCK_BYTES = 1 << 18
_END = "\x00the end\x00"  # no line of a file
_COMMON_DELIMITERS = ",;\t|"
_DAY_FORM = "-".join("[0-9]" * n for n in (4, 2, 2)) + "*"
_SQLITE_READS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_SQLITE_REACHING = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


class CsvTable(SourceTable):
    """A text file, plain or ``.gz``, as columns of text.

    Names are those of the first line; they may repeat. It is an InputError if the line is empty
    or much too long, or is one column that contains other delimiters.
    """

    def files(self) -> list[Path]:
        """Return the file."""
        return [self._source.path]

    def _opened(self) -> io.TextIOWrapper:
        path, encoding = self._source.path, self._source.encoding
        encoding = "utf-8-sig" if encoding == "utf-8" else encoding
        raw = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
        # The decoder reads ahead, so that errors of later lines must not stop it.
        return io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="")

    @cached_property
    def _line(self) -> str:
        with self._opened() as handle:
            line = handle.readline(_MAX_HEADER_CHARACTERS)
        if "\ufffd" in line:
            raise UnicodeError
        return line

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the names; every cell is text."""
        delimiter = self._source.delimiter
        check_form(self._source.path, "csv", encoding=self._source.encoding)
        if len(self._line) >= _MAX_HEADER_CHARACTERS or not self._line.strip():
            raise refusal("CSV_HEADER")
        if re.fullmatch(r"\s*\"?sep=.?\"?\s*", self._line, re.IGNORECASE):
            raise refusal("CSV_HEADER sep")
        cells = next(csv.reader([self._line], delimiter=delimiter, strict=True))
        names = tuple(cell.strip() for cell in cells)
        if len(names) > 1 and not names[0]:
            raise refusal("HEADER_EMPTY_NAME")
        others = [mark for mark in _COMMON_DELIMITERS if mark != delimiter and mark in names[0]]
        if len(names) == 1 and others:
            raise refusal("CSV_DELIMITER", delimiter=delimiter, found=others[0])
        return names, {}

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns as text, in batches of about `_CSV_BLOCK_BYTES` bytes."""
        names, _ = self.described()
        if not self._line.endswith("\n"):  # no row, and the parser refuses such a header
            return
        # pandas.read_csv pads short rows and, with chosen columns, shifts the cells of long ones.
        with self._odd_rows_located():
            reader = pa_csv.open_csv(
                self._source.path,
                read_options=pa_csv.ReadOptions(
                    encoding=self._source.encoding,
                    block_size=_CSV_BLOCK_BYTES,
                    column_names=names,
                    skip_rows=1,
                ),
                parse_options=pa_csv.ParseOptions(
                    delimiter=self._source.delimiter, newlines_in_values=True
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    include_columns=list(needed),
                    strings_can_be_null=False,
                ),
            )
            with reader:
                yield from reader

    @contextmanager
    def _odd_rows_located(self) -> Iterator[None]:
        """Locate the row that the parser refuses, or that an unclosed quote ends (`RefusedRow`)."""
        odd: RefusedRow | None = None
        try:
            yield
            with self._opened() as handle:
                n_quotes = sum(part.count('"') for part in iter(lambda: handle.read(1 << 20), ""))
            # The parser takes the rest of a file for the last cell, where a quote is not closed.
            odd = self._first_odd_row() if n_quotes % 2 else None
        except pa.ArrowInvalid:
            odd = self._first_odd_row()
            if odd is None:
                raise
        if odd is not None:
            raise odd

    def _first_odd_row(self) -> RefusedRow | None:
        """Return the refusal of the first row with too few or many cells, or an unclosed quote."""
        with self._opened() as handle:
            rows = csv.reader(chain(handle, [_END]), delimiter=self._source.delimiter)
            n_cells, about = len(next(rows)), ""
            for number in count():
                place = f"{self._source.path.name}, line {rows.line_num + 1}"
                try:
                    row = next(rows)
                except csv.Error:  # a cell without end
                    row = [_END, _END]
                if row == [_END]:
                    return None
                if row and row[-1].endswith(_END):
                    about = "quotes"
                elif row and len(row) != n_cells:
                    about = "cells"
                if about:
                    return RefusedRow(unreadable("csv", about), row=number, place=place)
        return None


class QueryTable(SourceTable):
    """The result of the fixed query of a source, run by `executed`; its cells are all text."""

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Run the query; return its columns, and the types that are not read as the driver does."""
        with executed(self._source) as rows:
            described = rows.cursor.description if rows.cursor is not None else ()
            kinds = {str(item[0]): getattr(item, "type_display", "") for item in described or ()}
            refused = {name: kind for name, kind in kinds.items() if not sql_is_read(kind)}
            return tuple(rows.keys()), refused

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Run the query and read the wanted columns in batches of at most `chunk_rows`."""
        with executed(self._source) as rows:
            names = tuple(rows.keys())
            # pandas.read_sql would turn integers to floats beside a missing cell: two spellings.
            first_row = 0
            for part in rows.partitions(chunk_rows):
                cells = dict(zip(names, zip(*part, strict=True), strict=True))
                try:
                    columns = [sql_text(name, cells[name]) for name in needed]
                except InputError as error:
                    wanted = zip(*(cells[name] for name in needed), strict=True)
                    row = first_row + [
                        all(is_read(type(c)) for c in cells) for cells in wanted
                    ].index(False)
                    place = f"row {row + 1} of the query"
                    raise RefusedRow(error, row=row, place=place) from None
                yield pa.RecordBatch.from_arrays(columns, names=list(needed))
                first_row += len(part)


@contextmanager
def executed(source: SqlSource) -> Iterator[sa.CursorResult[tuple[object, ...]]]:
    """Run the fixed query on a connection that only reads, and stream the result.

    Yields the open result before its first row. It is a ConfigurationError if the environment
    variable with the URL is not set, the database is of another kind than the query, or the query
    reads a view that is not declared, and an InputError if a SQLite file is missing, or the
    vocabulary lacks a concept that the declaration names.
    """
    url = source.url or os.environ.get(str(source.url_env))
    if not url:
        raise refusal("DATABASE_URL", name=source.url_env)
    place = sa.make_url(url)
    if place.get_backend_name() not in ("postgresql", "sqlite"):
        raise refusal("DATABASE_KIND")
    if place.drivername == "postgresql":  # the driver that is installed
        place = place.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(place, poolclass=sa.NullPool, hide_parameters=True)
    late = threading.Timer(_LONG_SECONDS, _log_slow_query, [engine, source])
    try:
        # SQLite would create an empty database under a mistyped name.
        if engine.dialect.name == "sqlite" and not Path(engine.url.database or "").is_file():
            raise refusal("SOURCE_MISSING sqlite")
        # A read-only mode is a second barrier behind the check of the query.
        _check_database(engine, source)
        late.daemon = True
        options = {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
        with engine.execution_options(**options).connect() as connection:
            driver = connection.connection.driver_connection
            if isinstance(driver, sqlite3.Connection):
                driver.execute("PRAGMA query_only = ON")
                driver.set_authorizer(_authorize_reading)
                _check_times(driver, source)
            late.start()
            for query, lacking in source.vocabulary:
                if connection.execute(sa.text(query)).first() is None:
                    raise refusal("VOCABULARY", lacking=lacking)
            result = connection.execute(
                sa.text(source.query), source.parameters, execution_options={"stream_results": True}
            )
            with closing(result):
                yield result
    finally:
        late.cancel()
        engine.dispose()


def _check_database(engine: sa.Engine, source: SqlSource) -> None:
    """Refuse another kind of database, and views that are not declared."""
    if engine.dialect.name != source.language:
        raise refusal("DATABASE_KIND other", language=source.language)
    fold = folded if source.language == "sqlite" else str
    catalogue = sa.inspect(engine)
    for name in sorted(source.tables_read - source.declared):
        schema, _, table = name.rpartition(".")
        stored = {fold(one) for one in catalogue.get_table_names(schema or None)}
        # An unknown name makes the query itself fail.
        if table not in stored and catalogue.has_table(table, schema or None):
            raise refusal("UNDECLARED_VIEW", name=name)


def _log_slow_query(engine: sa.Engine, source: SqlSource) -> None:
    bare = list[str]()
    with suppress(Exception):  # a driver's message may hold the address
        bare += _without_index(sa.inspect(engine), source)
    said = f"; without an index on these columns, which slows it: {', '.join(bare)}" if bare else ""
    _log.warning("the database still computes the rows of the source%s", said)


def _without_index(catalogue: sa.Inspector, source: SqlSource) -> Iterator[str]:
    """Yield the tables of patients that the query joins by columns that begin no index."""
    from storage.sources.sql_queries import equated_of, parse_query

    joined = equated_of(parse_query(source.query, source.language))
    for name in sorted(source.tables_read - source.public):
        schema, _, table = name.rpartition(".")
        place = (table, schema or None)
        firsts = [*catalogue.get_pk_constraint(*place)["constrained_columns"][:1]]
        firsts += [str(*one["column_names"][:1]) for one in catalogue.get_indexes(*place)]
        columns = {one["name"].lower() for one in catalogue.get_columns(*place)}
        if joined & columns and not any(first.lower() in joined for first in firsts):
            yield f"{name} ({', '.join(sorted(joined & columns))})"


def _check_times(driver: sqlite3.Connection, source: SqlSource) -> None:
    """Refuse (InputError) a column that SQLite is to read as times and would misread or drop.

    SQLite reads any number as a Julian day, and a text of another form as no time.
    """
    from storage.sources.sql_queries import parse_query, times_of  # slow import, rarely needed

    for table, column in times_of(parse_query(source.query, source.language)):
        # Names of a parsed query, in quotes.
        name = ".".join(in_quotes(part) for part in table.split("."))
        cell = in_quotes(column)
        found = driver.execute(
            f"SELECT 1 FROM {name} WHERE {cell} IS NOT NULL "  # noqa: S608
            f"AND (TYPEOF({cell}) <> 'text' OR UNIXEPOCH({cell}) IS NULL "
            f"OR {cell} NOT GLOB '{_DAY_FORM}') LIMIT 1"
        )
        if found.fetchone() is not None:
            raise refusal("DATE_FORM", table=table, column=column)


def in_quotes(name: str) -> str:
    """Write a name of a table or column for a query."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Fold a name as SQLite and DuckDB do: A to Z alone."""
    return "".join(c.lower() if c.isascii() else c for c in name)


def _authorize_reading(action: int, *details: str | None) -> int:
    """Let SQLite prepare statements that read tables: no file, setting or transaction.

    The second detail of an action is the name of a called function.
    """
    if action == sqlite3.SQLITE_FUNCTION and details[1] in _SQLITE_REACHING:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _SQLITE_READS else sqlite3.SQLITE_DENY


class SklearnTable(SourceTable):
    """The breast cancer data of scikit-learn: 30 features and ``target``, one row per patient."""

    @cached_property
    def _frame(self) -> pd.DataFrame:
        from sklearn.datasets import load_breast_cancer  # slow import, rarely needed

        frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
        return frame

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the names; all columns are numbers."""
        return tuple(str(name) for name in self._frame.columns), {}

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Return the wanted columns in one batch."""
        yield pa.RecordBatch.from_pandas(self._frame[list(needed)], preserve_index=False)
