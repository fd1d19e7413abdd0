"""Stretches of a Parquet source, for workers that read it side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from storage.formats import rechunk
from storage.parquet_files import ParquetPart
from storage.reading import Quiet, chosen, unreadable


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stretch:
    """Consecutive rows of a Parquet source, for one worker. Without a repr, as it is private.

    Attributes
    ----------
    parts : tuple of ParquetPart
        Where the rows are; none for a stretch without rows.
    columns, needed : tuple of str
        Wanted columns, and those with the ones that are only selected on.
    select : dict
        As in the source.
    """

    parts: tuple[ParquetPart, ...]
    columns: tuple[str, ...]
    needed: tuple[str, ...]
    select: Mapping[str, str | int]

    def frames(self, chunk_rows: int = 50_000) -> Iterator[pd.DataFrame]:
        """Read the rows as `CohortReader.chunks` does, numbered as in the whole source.

        Memory is bounded by `chunk_rows`. The reader that made the stretch finds out whether the
        source changed meanwhile.

        Parameters
        ----------
        chunk_rows : int
            Most rows in one frame.

        Raises
        ------
        InputError
            If the files cannot be read.
        """
        with Quiet() as reading:
            batches = (b for part in self.parts for b in part.batches(self.needed, chunk_rows))
            n_read = self.parts[0].first_row if self.parts else 0
            for table in rechunk(batches, chunk_rows):
                frame = table.to_pandas(integer_object_nulls=True)
                yield from chosen(frame, n_read, self.columns, self.select)
                n_read += len(frame)
        if reading.failed:
            raise unreadable("parquet")
