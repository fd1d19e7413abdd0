"""Shared parts of the readers of private rows: readers by kind, failures, selection, fragments."""

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from privacy.errors import ClustMixError, InputError
from storage.files.documents import listed
from storage.schema.columns import raw_text
from storage.sources.cells import arrow_frame, distinct

MAX_CELLS = 40_000_000
"""Most cells that are read at once, so that wide rows need no more memory."""

_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
_LISTED = listed(__package__, "forms.toml")
_FORMS = {bytes.fromhex(start): form for start, form in _LISTED["first_bytes"].items()}
_OTHER = "another form; correct the name of the file, or its kind in the site file"


def check_form(file: Path, kind: str, *, encoding: str = "utf-8") -> None:
    """Refuse a file (``FILE_FORM``) whose first bytes are those of another form than declared.

    Text is plain, or gzip where the name ends in ``.gz``.
    """
    with file.open("rb") as handle:
        found = _form_of(handle.read(16))
    if kind != "parquet" and file.suffix == ".gz":
        kind = f"{kind} in gzip, as the name ends in .gz"
        if not found.startswith("gzip"):
            raise InputError("FILE_FORM", f"expected {kind}, found {found}")
        with gzip.open(file) as inner:
            found = _form_of(inner.read(16))
    is_text = found == _OTHER or (found.startswith("UTF-16") and encoding.startswith("utf-16"))
    if not (found.startswith("Parquet") if kind == "parquet" else is_text):
        raise InputError("FILE_FORM", f"expected {kind}, found {found}")


def _form_of(head: bytes) -> str:
    return next((form for start, form in _FORMS.items() if head.startswith(start)), _OTHER)


class Part(Protocol):
    """Location of consecutive rows of a source."""

    @property
    def first_row(self) -> int:
        """Number of the first row in the source, from 0."""

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns in batches of about `chunk_rows` rows."""


class SourceTable(ABC):
    """Reader of one kind of source: a table that was declared and not opened yet.

    `CohortReader` guards what a reader raises, as its text may quote the data.
    """

    divisible: ClassVar[bool] = False
    """True if workers can read parts of it side by side."""

    def __init__(self, source: Any, scratch: Path | None = None) -> None:
        """Take a declared source, and a private folder for what memory does not hold."""
        self._source, self._scratch = source, scratch

    @abstractmethod
    def described(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return the names of the columns, and the type of each column that cannot be read."""

    @abstractmethod
    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns in batches of about `chunk_rows` rows."""

    def files(self) -> Sequence[Path] | None:
        """Return the files in the order of reading, None for a source without files."""
        return None

    def cells_of_folders(self) -> Sequence[object]:
        """Return the names of folders that are cells of each file's rows, empty if none are."""
        return ()

    def fragments(self, n_fragments: int) -> Sequence[tuple[Part, ...]]:
        """Divide a divisible source in order; with few rows the last fragments are empty."""
        raise NotImplementedError


def reader_of(kind: str) -> type[SourceTable]:
    """Load the reader of a kind of source."""
    module, _, name = _LISTED["readers"][kind].partition(":")
    return cast(type[SourceTable], getattr(import_module(f"{__package__}.{module}"), name))


class RefusedRow(InputError):
    """A refusal with its row, from 0, and `place`, file and line: for the restricted file alone."""

    def __init__(self, refusal: InputError, *, row: int, place: str) -> None:
        super().__init__(refusal.code, refusal.message)
        self.row, self.place = row, place


class FailureNote(AbstractContextManager["FailureNote"]):
    """Records that a block failed and drops the exception, whose text may quote the data.

    The caller raises a new exception after the block, so that it has no context.
    """

    failed = False
    about = ""

    def refuse(self, kind: str) -> None:
        """Refuse a source of this kind if the block failed (InputError)."""
        if self.failed:
            raise unreadable(kind, self.about)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, Exception) and not isinstance(error, ClustMixError):
            self.failed, text = True, str(error)
            if isinstance(error, _DAMAGED) or "compressed" in text or "zlib" in text:
                self.about = "gzip"
            elif "UTF8" in text or isinstance(error, UnicodeError):
                self.about = "encoding"
            elif "columns, got" in text:
                self.about = "cells"
        elif isinstance(error, ClustMixError):
            error.__context__ = None  # the failure behind it may quote the data
        return self.failed


def rechunk(batches: Iterable[pa.RecordBatch], chunk_rows: int) -> Iterator[pa.Table]:
    """Join and cut batches into tables of `chunk_rows` rows and at most `MAX_CELLS` cells."""
    held: list[pa.RecordBatch] = []
    n_held = 0
    for batch in batches:
        chunk_rows = max(1, min(chunk_rows, MAX_CELLS // max(batch.num_columns, 1)))
        held.append(batch)
        n_held += batch.num_rows
        while n_held >= chunk_rows:
            table = pa.Table.from_batches(held)
            yield table.slice(0, chunk_rows)
            # An empty slice would keep the memory of its batch.
            held = [rest for rest in table.slice(chunk_rows).to_batches() if rest.num_rows]
            n_held -= chunk_rows
    if n_held:
        yield pa.Table.from_batches(held)


def unreadable(kind: str, about: str = "") -> InputError:
    """Return the error for a source that cannot be read, with the requirements of its kind."""
    rules = _LISTED["readable"]
    return InputError(
        "SOURCE_UNREADABLE", rules.get(f"{kind} {about}", rules.get(about, rules[kind]))
    )


def numbered_rows(
    batches: Iterable[pa.RecordBatch],
    chunk_rows: int,
    *,
    first_row: int,
    columns: Sequence[str],
    select: Mapping[str, str | int],
) -> Iterator[pd.DataFrame]:
    """Yield the wanted columns of the selected rows, numbered as in the source; none is empty."""
    for table in rechunk(batches, chunk_rows):
        frame = arrow_frame(table)
        end = first_row + len(frame)
        selected = _select(frame.set_axis(pd.RangeIndex(first_row, end)), select)
        if len(selected):
            yield selected[list(columns)]
        first_row = end


def _select(frame: pd.DataFrame, select: Mapping[str, str | int]) -> pd.DataFrame:
    for column, value in select.items():
        index, texts = distinct(frame[column])
        # The last entry serves index -1, an empty cell.
        frame = frame[np.array([*(text == raw_text(value) for text in texts), False])[index]]
    return frame


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fragment:
    """Consecutive rows of a source for one worker. Private, so it has no repr.

    `parts` locate the rows, if any. `needed` are `columns` and the columns of `select`.
    """

    kind: str
    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    needed: tuple[str, ...]
    select: Mapping[str, str | int]

    def frames(self, chunk_rows: int = 50_000) -> Iterator[pd.DataFrame]:
        """Read rows as `CohortReader.chunks` does, numbered as in the source (InputError)."""
        with FailureNote() as reading:
            yield from numbered_rows(
                (b for part in self.parts for b in part.batches(self.needed, chunk_rows)),
                chunk_rows,
                first_row=self.parts[0].first_row if self.parts else 0,
                columns=self.columns,
                select=self.select,
            )
        reading.refuse(self.kind)
