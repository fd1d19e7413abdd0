"""Reader of a cohort in chunks; files are hashed in parallel, and refused if they change."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from privacy.errors import refusals
from storage.public_data.datasets import find
from storage.schema.table import check_names
from storage.settings import DataPlaces
from storage.sources.cells import type_refused
from storage.sources.declared import CsvSource, ParquetSource, Source, query_of
from storage.sources.declared_fhir import FhirSource
from storage.sources.omop import OmopSource
from storage.sources.reading import (
    FailureNote,
    Fragment,
    SourceTable,
    numbered_rows,
    reader_of,
    unreadable,
)

N_HASHED_TOGETHER = 16
"""Groups of files that are hashed in parallel. A constant, as the number of files is private."""

Mapper = Callable[[Callable[..., Any], Iterable[Any]], list[Any]]
"""The method ``map`` of an executor: the results of a function for each item, in order."""

FileState = tuple[str, int, int, int]
"""Name, size, modification time and inode of a file."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """State of a source at one moment, for comparison alone.

    It covers the names, sizes, modification times, inodes and bytes of all files. It is private,
    because the digest of a small file can be guessed, and so its repr is empty.

    Notes
    -----
    A source is hashed twice: for the key of the request, and after its last row was read. In
    between only the state of the file system is compared. That is a hint: a writer can set the time
    of a file back, or write through memory without changing the time. The second hash proves that
    the bytes that were read are those of the key.
    """

    files: tuple[FileState, ...] = field(repr=False)
    digests: tuple[bytes, ...] = field(repr=False)

    def content_sha256(self, cells: Sequence[object] = ()) -> str:
        """Return a digest of all files in order, with `cells` that folders name (keys, labels)."""
        whole = hashlib.sha256(b"".join(self.digests))
        if cells:
            whole.update(json.dumps(cells).encode())
        return whole.hexdigest()


def states_of(files: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the state of each file, which must be readable."""
    states = list[FileState]()
    for file in files:
        # Opening a file makes a network file system ask its server.
        with file.open("rb") as handle:
            status = os.fstat(handle.fileno())
        states.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(states)


def fingerprint_of(states: Sequence[FileState], map: Mapper | None = None) -> Fingerprint | None:
    """Hash the files with `map`, or in this process; None if one cannot be read."""
    paths = [Path(name).absolute() for name, *_ in states]
    groups = [tuple(paths[start::N_HASHED_TOGETHER]) for start in range(N_HASHED_TOGETHER)]
    digests = dict[Path, bytes]()
    hashed = [digests_of(group) for group in groups] if map is None else map(digests_of, groups)
    for group, found in zip(groups, hashed, strict=True):
        if found is None:
            return None
        digests.update(zip(group, found, strict=True))
    return Fingerprint(tuple(states), tuple(digests[path] for path in paths))


def digests_of(files: tuple[Path, ...]) -> tuple[bytes, ...] | None:
    """Return the SHA-256 of each file, None if one cannot be read. It is private."""
    try:
        return tuple(_digest_of(file) for file in files)
    except OSError:
        return None


def _digest_of(file: Path) -> bytes:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()


refusal = refusals(__package__)
_Answer = TypeVar("_Answer")


class CohortReader:
    """Reads the rows of one source.

    A public dataset is found in `places`, else in those of the environment (else InputError). A
    FHIR export is collected in the private folder `scratch`; `beside` read tables of events.

    Privacy
    -------
    `chunks` yields raw data. No message repeats a value, a count, a database URL or the text of a
    driver or parser, and no exception has one as its context.
    """

    def __init__(
        self,
        source: Source,
        *,
        places: DataPlaces | None = None,
        scratch: Path | None = None,
        beside: "dict[str, CohortReader] | None" = None,
    ) -> None:
        self.beside = beside or {}
        if isinstance(source, OmopSource):
            source = query_of(source)
        elif isinstance(source, CsvSource | ParquetSource) and source.path is None:
            source = source.model_copy(update={"path": find(str(source.data), places=places)})
        self._source = source
        self._scratch = scratch
        self._first: Fingerprint | None = None

    def header(self) -> tuple[str, ...]:
        """Return the column names of the source without fetching a row (InputError).

        Show them only once a person has confirmed them: without a header, they are a patient.
        """
        names, _ = self._ask(lambda table: table.described())
        check_names(names)
        return names

    def check_types(self, columns: Sequence[str]) -> None:
        """Refuse absent columns and columns of a type that is not read (InputError)."""
        self._needed(columns)

    def chunks(self, columns: Sequence[str], chunk_rows: int = 50_000) -> Iterator[pd.DataFrame]:
        """Read the requested columns from the first row to the last.

        A frame has 1 to `chunk_rows` rows, so memory is bounded. Its index is the position of the
        row in the source, from 0; rows that `select` drops are counted. Cells of a text file are
        text exactly as written, ``None``, ``NA`` and the empty cell included. Parquet columns are
        text or numbers by their type; all cells of a query are text (`storage.sources.cells`).

        It is an InputError if a column is absent, the source cannot be parsed, or it changed while
        it was read (code ``SOURCE_CHANGED``, raised after the last frame: discard the results). A
        query is one statement and sees one state of the database.
        """
        return self._stream(list(columns), self._needed(columns), chunk_rows)

    def fragments(
        self, columns: Sequence[str], n_fragments: int, *, map: Mapper | None = None
    ) -> tuple[Fragment, ...] | None:
        """Divide Parquet files or images in order for parallel workers; None for other sources.

        Call `check_unchanged` at the end. A cluster shows the number of fragments, so it must not
        depend on the data. `map` is the method of an executor, None a plain loop. It is an
        InputError if a column is absent, a file cannot be read, or the source has changed.
        """
        if not reader_of(self._source.kind).divisible:
            return None
        needed = self._needed(columns)
        self._begin(map)
        found = self._ask(lambda table: table.fragments(n_fragments))
        return tuple(
            Fragment(
                kind=self._source.kind,
                parts=parts,
                columns=tuple(columns),
                needed=tuple(needed),
                select=dict(self._source.select),
            )
            for parts in found
        )

    def check_unchanged(self, *, map: Mapper | None = None) -> None:
        """Hash the files again; discard the results on a difference (``SOURCE_CHANGED``)."""
        if self.fingerprint(map=map) != self._first:
            raise refusal("SOURCE_CHANGED")

    def fingerprint(self, *, map: Mapper | None = None) -> Fingerprint | None:
        """Return the state of the files, hashed by `map` (InputError); None without files."""
        files = self._files()
        if files is None:
            return None
        found = fingerprint_of(files, map)
        if found is None:
            raise unreadable(self._source.kind)
        return found

    def content_sha256(self, *, map: Mapper | None = None) -> str | None:
        """Return a digest of the content of the files, without names, places and times.

        Names of partition folders count as content, since they are cells. Later reads are checked
        against the same state. The digest has 64 hexadecimal digits; it is None for a database.

        Privacy
        -------
        Private: it confirms a guess of the table. Only a keyed digest of it is stored.
        """
        if self._source.kind in ("sql", "duckdb"):
            return None
        state = self.fingerprint(map=map)
        if state is None:  # a dataset that comes with a library
            return hashlib.sha256(self._source.model_dump_json().encode()).hexdigest()
        self._first = state
        return state.content_sha256(self._ask(lambda table: table.cells_of_folders()))

    def size_bytes(self) -> int | None:
        """Return the bytes of all files: 0 for a dataset of a library, None for a database.

        Privacy
        -------
        Private. It may only decide where rows are read.
        """
        if self._source.kind in ("sql", "duckdb"):
            return None
        sizes = [other.size_bytes() for other in self.beside.values()]
        sizes.append(sum(size for _, size, *_ in self._files() or ()))
        return None if None in sizes else sum(filter(None, sizes))

    def _files(self) -> tuple[FileState, ...] | None:
        files = self._ask(lambda table: table.files())
        return None if files is None else self._ask(lambda _: states_of(files))

    def _begin(self, map: Mapper | None = None) -> None:
        """Store the state of the files, or compare it with the stored one."""
        if self._first is None:
            self._first = self.fingerprint(map=map)
        elif self._files() != self._first.files:
            raise refusal("SOURCE_CHANGED")

    def _needed(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read, including those of `select`."""
        names, refused_types = self._ask(lambda table: table.described())
        check_names(names)
        known = set(names)
        needed = list(dict.fromkeys([*columns, *self._source.select]))
        for column in needed:
            if column not in known:
                raise refusal("COLUMN_MISSING", column=column)
            if column in refused_types:
                raise type_refused(column, refused_types[column])
        return needed

    def _stream(
        self, columns: list[str], needed: list[str], chunk_rows: int
    ) -> Iterator[pd.DataFrame]:
        self._begin()
        with FailureNote() as reading:
            yield from numbered_rows(
                self._table().batches(needed, chunk_rows),
                chunk_rows,
                first_row=0,
                columns=columns,
                select=self._source.select,
            )
        self.check_unchanged()
        reading.refuse(self._source.kind)

    def _ask(self, question: Callable[[SourceTable], _Answer]) -> _Answer:
        """Ask the reader; an InputError replaces a failure, whose text may quote the data."""
        with FailureNote() as reading:
            return question(self._table())
        raise unreadable(self._source.kind, reading.about)

    def _table(self) -> SourceTable:
        source = self._source
        if isinstance(source, CsvSource | ParquetSource | FhirSource) and source.path is not None:
            if isinstance(source, CsvSource) and source.path.is_dir():
                raise refusal("SOURCE_MISSING file", path=source.path)
            if not (source.path.is_file() or source.path.is_dir()):
                raise refusal("SOURCE_MISSING path", path=source.path)
        return reader_of(source.kind)(source, self._scratch)
