"""Reading a cohort: in chunks, the wanted columns only, and refused if it changes meanwhile."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from privacy.errors import ConfigurationError, InputError
from storage.public_data.datasets import find
from storage.schema.table import check_names
from storage.settings import DataPlaces, load_settings
from storage.sources.cells import arrow_frame, type_refused
from storage.sources.declared import (
    CsvSource,
    ParquetSource,
    SklearnSource,
    Source,
    SqlSource,
    query_of,
)
from storage.sources.declared_images import DicomSource, PngSource
from storage.sources.fhir import FhirExport, FhirSource, export_files
from storage.sources.fingerprints import FileState, Fingerprint, Mapper, fingerprint_of, states_of
from storage.sources.formats import CsvTable, QueryTable, SklearnTable
from storage.sources.image_folders import ImageFolder
from storage.sources.omop import OmopSource
from storage.sources.parquet_files import ParquetFolder, files_of
from storage.sources.reading import FailureNote, Fragment, Part, chosen, rechunk, unreadable

_Divisible: TypeAlias = ParquetFolder | ImageFolder


class CohortReader:
    """Reads the rows of one source.

    A public dataset is found by its name in `places`, else in those of the environment; if it
    cannot be had that is an InputError. What a FHIR export needs beside memory is written to the
    private folder `scratch`.

    Privacy
    -------
    Everything that `chunks` yields is raw data. No message of this class repeats a value, a
    count, a database URL or the text of a driver or parser, and none has one as its context.
    """

    def __init__(
        self,
        source: Source,
        *,
        places: DataPlaces | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._source = query_of(source) if isinstance(source, OmopSource) else source
        self._scratch = scratch
        self._path: Path | None = source.path if isinstance(source, FhirSource) else None
        self._first: Fingerprint | None = None
        if isinstance(source, CsvSource | ParquetSource):
            self._path = source.path or find(str(source.data), places=places)

    def header(self) -> tuple[str, ...]:
        """Return the column names of the source without fetching a row (InputError).

        Do not show them before a person has confirmed that they are names: a text file without a
        header has a patient in its first line.
        """
        return self._described()[0]

    def check_types(self, columns: Sequence[str]) -> None:
        """Refuse absent columns, and by declared type those without a text (InputError)."""
        self._needed(columns)

    def chunks(self, columns: Sequence[str], chunk_rows: int = 50_000) -> Iterator[pd.DataFrame]:
        """Read the wanted columns from the first row to the last.

        Memory is bounded by `chunk_rows`, the most rows in one frame, at least 1; rows that are not
        selected count. Frames have the columns in the given order and are not empty. Their index is
        the position of the row in the source, from 0, rows that are not selected included. Cells of
        a text file are text, exactly as written (``None``, ``NA`` and the empty cell included).
        Parquet columns are text or numbers, by their type; all cells of a query are text. See
        `storage.sources.cells`.

        It is an InputError if a column is absent, the source cannot be parsed, or it changed while
        it was read (code ``SOURCE_CHANGED``, raised after the last frame: discard what was
        computed). A query is one statement and so sees one state of the database; two calls see
        two.
        """
        if chunk_rows < 1:
            raise _wrong_request()
        return self._stream(list(columns), self._needed(columns), chunk_rows)

    def fragments(
        self, columns: Sequence[str], n_fragments: int, *, map: Mapper | None = None
    ) -> tuple[Fragment, ...] | None:
        """Divide Parquet files or images (other sources: None), in order, for workers side by side.

        Call `check_unchanged` when they are read. Let their number not depend on the data: whoever
        sees the tasks of a cluster can count them. `map` is that of an executor; None runs one
        after the other. It is an InputError if a column is absent, a file cannot be read, or the
        source changed since `content_sha256`.
        """
        if isinstance(self._source, CsvSource | FhirSource | SqlSource | SklearnSource):
            return None
        if n_fragments < 1:
            raise _wrong_request()
        needed = self._needed(columns)
        self._begin(map)
        found: Sequence[tuple[Part, ...]] = ()
        with FailureNote() as reading:
            found = self._divisible().fragments(n_fragments)
        reading.refuse(self._source.kind)
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
        """Hash the files again: discard what was computed if they differ (``SOURCE_CHANGED``)."""
        if self.fingerprint(map=map) != self._first:
            raise _changed()

    def fingerprint(self, *, map: Mapper | None = None) -> Fingerprint | None:
        """Return the state of the files, read where `map` runs (InputError); None if none."""
        files = self._files()
        if files is None:
            return None
        found = fingerprint_of(files, map)
        if found is None:
            raise unreadable(self._source.kind)
        return found

    def content_sha256(self, *, map: Mapper | None = None) -> str | None:
        """Return a digest of the content of the files, whatever their names, places and times.

        The names of partition folders are content: they are cells.
        What is read afterwards is checked against the same state. There are 64 hexadecimal digits,
        or None for a database, whose content is not known before it is read.

        Privacy
        -------
        Private: whoever can guess the table can compute it. Only a keyed digest of it is stored.
        """
        if isinstance(self._source, SqlSource):
            return None
        state = self.fingerprint(map=map)
        if state is None:  # a dataset that comes with a library
            return hashlib.sha256(self._source.model_dump_json().encode()).hexdigest()
        self._first = state
        if isinstance(self._source, PngSource | DicomSource):
            return state.content_sha256(labels=ImageFolder(self._source).labels)
        return state.content_sha256(self._path)

    def size_bytes(self) -> int | None:
        """Bytes of the files, of a dataset that comes with a library 0; None for a database.

        Privacy
        -------
        Private. It may decide where rows are read, and nothing else.
        """
        if isinstance(self._source, SqlSource):
            return None
        return sum(size for _, size, *_ in self._files() or ())

    def _files(self) -> tuple[FileState, ...] | None:
        if isinstance(self._source, SqlSource | SklearnSource):
            return None
        found: tuple[FileState, ...] = ()
        with FailureNote() as reading:
            if isinstance(self._source, PngSource | DicomSource):
                found = states_of(ImageFolder(self._source).files)
            else:
                found = states_of(self._listed())
        reading.refuse(self._source.kind)
        return found

    def _listed(self) -> list[Path]:
        is_export = isinstance(self._source, FhirSource)
        return (export_files if is_export else files_of)(self._require_path())

    def _begin(self, map: Mapper | None = None) -> None:
        """Remember what is going to be read, or compare it with what was read before."""
        if self._first is None:
            self._first = self.fingerprint(map=map)
            return
        files = self._files()
        if files is None or not self._first.is_of(files):
            raise _changed()

    def _needed(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read, with those selected on."""
        if len(set(columns)) != len(columns):
            raise _wrong_request()
        names, refused_types = self._described()
        known = set(names)
        needed = list(dict.fromkeys([*columns, *self._source.select]))
        for column in needed:
            if column not in known:
                raise InputError(
                    "COLUMN_MISSING",
                    f"column {column!r} is declared and the source does not have it; correct the "
                    "site file or the export (names are compared exactly, blanks included)",
                )
            if column in refused_types:
                raise type_refused(column, refused_types[column])
        return needed

    def _described(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return the names of the columns, and by column the types that are not read."""
        names: tuple[str, ...] = ()
        refused_types: Mapping[str, str] = {}
        with FailureNote() as reading:
            table = self._table()
            names, refused_types = table.names, table.refused_types
        reading.refuse(self._source.kind)
        check_names(names)
        return names, refused_types

    def _stream(
        self, columns: list[str], needed: list[str], chunk_rows: int
    ) -> Iterator[pd.DataFrame]:
        self._begin()
        with FailureNote() as reading:
            n_read = 0
            for table in rechunk(self._table().batches(needed, chunk_rows), chunk_rows):
                frame = arrow_frame(table)
                yield from chosen(frame, n_read, columns, self._source.select)
                n_read += len(frame)
        self.check_unchanged()
        reading.refuse(self._source.kind)

    def _table(self) -> CsvTable | FhirExport | QueryTable | SklearnTable | _Divisible:
        source = self._source
        if isinstance(source, FhirSource):
            return FhirExport(source, self._scratch or load_settings().private_root)
        if isinstance(source, CsvSource):
            return CsvTable(self._require_path(), source)
        if isinstance(source, SqlSource):
            return QueryTable(source)
        return SklearnTable() if isinstance(source, SklearnSource) else self._divisible()

    def _divisible(self) -> _Divisible:
        if isinstance(self._source, PngSource | DicomSource):
            return ImageFolder(self._source)
        return ParquetFolder(self._require_path())

    def _require_path(self) -> Path:
        is_csv = isinstance(self._source, CsvSource)
        if is_csv and self._path is not None and self._path.is_dir():
            raise InputError("SOURCE_MISSING", f"expected a file at {self._path}, found a folder")
        if self._path is None or not (self._path.is_file() or self._path.is_dir()):
            raise InputError(
                "SOURCE_MISSING",
                f"expected a file or folder at {self._path}; correct the path in the site file",
            )
        return self._path


def _changed() -> InputError:
    return InputError(
        "SOURCE_CHANGED",
        "the source changed while it was read; wait until the export is complete and start again",
    )


def _wrong_request() -> ConfigurationError:
    return ConfigurationError(
        "CHUNK_REQUEST", "chunk_rows must be at least 1 and no column may be named twice"
    )
