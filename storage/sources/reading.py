"""What all readers of private rows share: quiet failures, row numbers and selection."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

import numpy as np
import pandas as pd

from privacy.errors import ClustMixError, InputError
from storage.schema.columns import raw_text
from storage.sources.cells import distinct


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


def check_names(names: Sequence[str]) -> None:
    """Refuse a header with a column that has no name, or the name of another (InputError)."""
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
