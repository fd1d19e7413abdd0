"""Reading a cohort: in chunks, the wanted columns only, and refused if it changes meanwhile."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pandas as pd

from privacy.errors import ClustMixError, ConfigurationError, InputError
from storage.datasets import find
from storage.formats import (
    ParquetFolder,
    csv_batches,
    csv_header,
    executed,
    files_of,
    rechunk,
    sklearn_frame,
)
from storage.settings import Settings
from storage.sources import CsvSource, ParquetSource, SklearnSource, Source, SqlSource

__all__ = [
    "CohortReader",
    "CsvSource",
    "Fingerprint",
    "ParquetSource",
    "SklearnSource",
    "Source",
    "SqlSource",
]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a source looked like at one moment; can be compared and does nothing else.

    It covers the names, sizes, modification times, inodes and bytes of all files. Its content is
    private, because the digest of a small file can be guessed, and therefore not in its repr.
    """

    _files: tuple[tuple[str, int, int, int, bytes], ...] = field(repr=False)

    def content_sha256(self) -> str:
        """Return a digest of the bytes of all files, in the order in which they are read."""
        return hashlib.sha256(b"".join(digest for *_, digest in self._files)).hexdigest()


class CohortReader:
    """Reads the rows of one source.

    Parameters
    ----------
    source : CsvSource or ParquetSource or SqlSource or SklearnSource
        Where the cohort is.
    settings : Settings or None
        Used to find a public dataset by name; None reads the environment.

    Raises
    ------
    InputError
        If a public dataset cannot be found.

    Privacy
    -------
    Everything that `chunks` yields is raw data. No message of this class repeats a value, a
    count, a database URL or the text of a driver or parser, and none has one as its context.
    """

    def __init__(self, source: Source, *, settings: Settings | None = None) -> None:
        self._source = source
        self._path: Path | None = None
        self._first: Fingerprint | None = None
        if isinstance(source, CsvSource | ParquetSource):
            self._path = source.path or find(str(source.data), settings=settings)

    def header(self) -> tuple[str, ...]:
        """Return the column names of the source without fetching a row.

        Returns
        -------
        tuple of str
            Column names in source order. Do not show them before a person has confirmed that
            they are names: a text file without a header has a patient in its first line.

        Raises
        ------
        InputError
            If the source is missing or unreadable, a name is empty or occurs twice, or the
            header of a text file was written with another delimiter.
        ConfigurationError
            If the environment variable with the database URL is not set.
        """
        with _Quiet() as reading:
            names = self._names()
        if reading.failed:
            raise _unreadable(self._source)
        # By place, not by name: a text file without a header has a patient in its first line.
        for place, name in enumerate(names, start=1):
            if not name.strip():
                raise InputError(
                    "HEADER_EMPTY_NAME",
                    f"every column needs a name; column {place} of the header has none: add it",
                )
            first = names.index(name) + 1
            if first < place:
                raise InputError(
                    "HEADER_DUPLICATE",
                    f"every column needs a name of its own; columns {first} and {place} of the "
                    "header have the same: rename one of them",
                )
        return names

    def chunks(self, columns: Sequence[str], chunk_rows: int = 50_000) -> Iterator[pd.DataFrame]:
        """Read the wanted columns from the first row to the last.

        Memory is bounded by `chunk_rows`, not by the number of rows.

        Parameters
        ----------
        columns : sequence of str
            Wanted columns, in the order of the frames. A column that is only selected on need
            not be among them.
        chunk_rows : int
            Most rows in one frame, at least 1. Rows that are not selected count.

        Returns
        -------
        iterator of DataFrame
            Non-empty frames of at most `chunk_rows` rows. The index is the position of the row
            in the source, from 0, rows that are not selected included. Cells of a text file are
            text, exactly as written (``None``, ``NA`` and the empty cell included).
            Cells of Parquet and SQL have their own types; an integer column with missing cells
            holds Python integers and None, never floating-point numbers, so that a patient's key
            is the same in all chunks.

        Raises
        ------
        InputError
            If a column is absent, the source cannot be parsed, or it changed while it was read
            (code ``SOURCE_CHANGED``, raised after the last frame: discard what was computed).
            A query is one statement and so sees one state of the database; two calls see two.
        ConfigurationError
            If `columns` or `chunk_rows` is wrong.
        """
        if chunk_rows < 1 or len(set(columns)) != len(columns):
            raise ConfigurationError(
                "CHUNK_REQUEST", "chunk_rows must be at least 1 and no column may be named twice"
            )
        names = self.header()
        needed = list(dict.fromkeys([*columns, *self._source.select]))
        for column in needed:
            if column not in names:
                raise InputError(
                    "COLUMN_MISSING",
                    f"column {column!r} is declared and the source does not have it; correct the "
                    "site file or the export (names are compared exactly, blanks included)",
                )
        return self._stream(names, list(columns), needed, chunk_rows)

    def fingerprint(self) -> Fingerprint | None:
        """Return the state of the files; None for a source without files.

        Returns
        -------
        Fingerprint or None
            Equal to an earlier one if no file was added, removed, replaced or written to.

        Raises
        ------
        InputError
            If a file is missing.
        """
        if self._path is None:
            return None
        states: list[tuple[str, int, int, int, bytes]] = []
        with _Quiet() as reading:
            for file in files_of(self._require_path()):
                with file.open("rb") as handle:
                    digest = hashlib.file_digest(handle, "sha256").digest()
                    status = os.fstat(handle.fileno())
                states.append(
                    (str(file), status.st_size, status.st_mtime_ns, status.st_ino, digest)
                )
        if reading.failed:
            raise _unreadable(self._source)
        return Fingerprint(tuple(states))

    def content_sha256(self) -> str | None:
        """Return a digest of the content of the files, whatever their names, places and times.

        What `chunks` reads afterwards is checked against the same state.

        Returns
        -------
        str or None
            64 hexadecimal digits; None for a database, whose content is not known before it is
            read.

        Raises
        ------
        InputError
            If a file is missing.

        Privacy
        -------
        Private: whoever can guess the table can compute it. Only a keyed digest of it is stored.
        """
        if isinstance(self._source, SqlSource):
            return None
        state = self.fingerprint()
        if state is None:  # a dataset that comes with a library
            return hashlib.sha256(self._source.model_dump_json().encode()).hexdigest()
        self._first = state
        return state.content_sha256()

    def _names(self) -> tuple[str, ...]:
        source = self._source
        if isinstance(source, CsvSource):
            return csv_header(self._require_file(), source)
        if isinstance(source, ParquetSource):
            return ParquetFolder(self._require_path()).names
        if isinstance(source, SqlSource):
            with executed(source) as rows:
                return tuple(rows.keys())
        return tuple(str(name) for name in sklearn_frame().columns)

    def _stream(
        self, names: tuple[str, ...], columns: list[str], needed: list[str], chunk_rows: int
    ) -> Iterator[pd.DataFrame]:
        before = self.fingerprint()
        if self._first is None:
            self._first = before
        if before != self._first:
            raise _changed()
        with _Quiet() as reading:
            n_read = 0
            for frame in self._frames(names, needed, chunk_rows):
                numbered = frame.set_axis(pd.RangeIndex(n_read, n_read + len(frame)))
                n_read += len(frame)
                selected = _select(numbered, self._source.select)
                if len(selected):
                    yield selected[columns]
        if before != self.fingerprint():
            raise _changed()
        if reading.failed:
            raise _unreadable(self._source)

    def _frames(
        self, names: tuple[str, ...], needed: list[str], chunk_rows: int
    ) -> Iterator[pd.DataFrame]:
        source = self._source
        if isinstance(source, SqlSource):
            with executed(source) as rows:
                # Not pandas.read_sql: it turns integers into floating-point numbers in those
                # chunks that have a missing cell, so one key would get two spellings.
                for part in rows.partitions(chunk_rows):
                    yield pd.DataFrame(
                        [tuple(row) for row in part], columns=list(names), dtype=object
                    )
            return
        if isinstance(source, SklearnSource):
            frame = sklearn_frame()
            for start in range(0, len(frame), chunk_rows):
                yield frame.iloc[start : start + chunk_rows]
            return
        if isinstance(source, CsvSource):
            batches = csv_batches(self._require_file(), source, names, needed)
        else:
            batches = ParquetFolder(self._require_path()).batches(needed, chunk_rows)
        for table in rechunk(batches, chunk_rows):
            yield table.to_pandas(integer_object_nulls=True)

    def _require_path(self) -> Path:
        if self._path is None or not (self._path.is_file() or self._path.is_dir()):
            raise InputError(
                "SOURCE_MISSING",
                f"expected a file or folder at {self._path}; correct the path in the site file",
            )
        return self._path

    def _require_file(self) -> Path:
        path = self._require_path()
        if not path.is_file():
            raise InputError("SOURCE_MISSING", f"expected a file at {path}, found a folder")
        return path


class _Quiet(AbstractContextManager["_Quiet"]):
    """Remembers that a block failed and drops the exception, whose text may quote the data.

    The caller raises after the block, so that the new exception has no context.
    """

    failed = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, Exception) and not isinstance(error, ClustMixError):
            self.failed = True
        return self.failed


def _unreadable(source: Source) -> InputError:
    rule = {
        "csv": "the file must have a header line, the declared encoding and delimiter, and as many "
        "cells in every row as in the header; export it again or correct the site file",
        "parquet": "every file must be Parquet with the same columns and types; write it again",
        "sql": "the query could not be run or its result not be read; try the query, the address "
        "and the driver with the database's own client",
        "sklearn": "the dataset could not be loaded; install scikit-learn",
    }[source.kind]
    return InputError("SOURCE_UNREADABLE", rule)


def _changed() -> InputError:
    return InputError(
        "SOURCE_CHANGED",
        "the source changed while it was read; wait until the export is complete and start again",
    )


def _select(frame: pd.DataFrame, select: Mapping[str, str | int]) -> pd.DataFrame:
    for column, value in select.items():
        cells = frame[column]
        if pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_bool_dtype(cells):
            try:
                keep = cells == int(value)
            except ValueError:
                keep = None
            if keep is None:
                raise InputError(
                    "SELECT_TYPE",
                    f"column {column!r} holds numbers; select an integer in the site file",
                )
        else:
            keep = cells.notna() & (cells.astype(str) == str(value))
        frame = frame[keep]
    return frame
