"""What all readers of private rows share: quiet failures, row numbers, selection, fragments."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from privacy.errors import ClustMixError, InputError
from storage.schema.columns import raw_text
from storage.sources.cells import arrow_frame, distinct


class FailureNote(AbstractContextManager["FailureNote"]):
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


def rechunk(batches: Iterable[pa.RecordBatch], chunk_rows: int) -> Iterator[pa.Table]:
    """Join and cut batches of one schema into tables of `chunk_rows` rows, the last of the rest."""
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


def unreadable(kind: str) -> InputError:
    """Return the error for a source that cannot be read; it says what the source has to be."""
    rule = {
        "csv": "the file must have a header line, the declared encoding and delimiter, and as many "
        "cells in every row as in the header; export it again or correct the site file",
        "parquet": "every file must be Parquet with the same columns and types; write it again",
        "sql": "the query could not be run or its result not be read; try the query, the address "
        "and the driver with the database's own client",
        "idx": "the images and the labels must each be a whole idx file; get them again",
        "sklearn": "the dataset could not be loaded; install scikit-learn",
    }[kind]
    return InputError("SOURCE_UNREADABLE", rule)


def chosen(
    frame: pd.DataFrame, first_row: int, columns: Sequence[str], select: Mapping[str, str | int]
) -> Iterator[pd.DataFrame]:
    """Yield the wanted columns of the selected rows, numbered, unless no row is left."""
    numbered = frame.set_axis(pd.RangeIndex(first_row, first_row + len(frame)))
    selected = _select(numbered, select)
    if len(selected):
        yield selected[list(columns)]


def _select(frame: pd.DataFrame, select: Mapping[str, str | int]) -> pd.DataFrame:
    for column, value in select.items():
        index, texts = distinct(frame[column])
        # The last entry serves index -1, an empty cell.
        frame = frame[np.array([*(text == raw_text(value) for text in texts), False])[index]]
    return frame


class FilePart(Protocol):
    """Consecutive rows of one file, such as `storage.sources.parquet_files.ParquetPart`."""

    @property
    def first_row(self) -> int:
        """Position of its first row in the source."""

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns in batches of at most `chunk_rows` rows."""


class Table(Protocol):
    """A source that was opened, such as `storage.sources.parquet_files.ParquetFolder`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Columns in the order of the source."""

    @property
    def refused_types(self) -> Mapping[str, str]:
        """Columns of a type that is not read, with its name."""

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns from the first row to the last."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fragment:
    """Consecutive rows of a source, for one worker. Without a repr, as it is private.

    `parts` say where the rows are, none for a fragment without rows; `needed` are `columns` and
    those that are only selected on.
    """

    kind: str
    parts: tuple[FilePart, ...]
    columns: tuple[str, ...]
    needed: tuple[str, ...]
    select: Mapping[str, str | int]

    def frames(self, chunk_rows: int = 50_000) -> Iterator[pd.DataFrame]:
        """Read the rows as `CohortReader.chunks` does, numbered as in the whole source.

        Memory is bounded by `chunk_rows`. The reader that made the fragment finds out whether the
        source changed meanwhile. Files that cannot be read are an InputError.
        """
        with FailureNote() as reading:
            batches = (b for part in self.parts for b in part.batches(self.needed, chunk_rows))
            n_read = self.parts[0].first_row if self.parts else 0
            for table in rechunk(batches, chunk_rows):
                frame = arrow_frame(table)
                yield from chosen(frame, n_read, self.columns, self.select)
                n_read += len(frame)
        if reading.failed:
            raise unreadable(self.kind)
