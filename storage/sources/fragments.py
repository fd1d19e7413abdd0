"""Fragments of a Parquet or idx source, for workers that read it side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd
import pyarrow as pa

from storage.sources.cells import arrow_frame
from storage.sources.formats import rechunk
from storage.sources.reading import FailureNote, chosen, unreadable


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
