"""The vocabulary of a sealed measurement: names of the codes in its arrays.

A code is a place in a stored, ordered list of names, with which a decoding schema is compared.
"""

from collections.abc import Iterator
from itertools import groupby, zip_longest
from typing import Annotated, Self

from pydantic import Field

from privacy.errors import refusals
from storage.files.documents import Record
from storage.schema.columns import CategoricalColumn, Column, NumericColumn
from storage.schema.table import TableSchema

refusal = refusals(__package__)

MISSING_CODE = "(missing)"
"""Name of the code of a missing cell, always the last one of its column."""


class _CodedColumns(Record):
    """Consecutive columns whose codes have the same names, such as the pixels of an image.

    In the order of the arrays. `codes` are names from code 0: levels, or bins ``[lower, upper)``.
    """

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    codes: Annotated[tuple[str, ...], Field(min_length=1)]


class Vocabulary(Record):
    """Ordered names of all codes: feature columns, and the label as one column."""

    columns: tuple[_CodedColumns, ...]
    label: _CodedColumns

    @classmethod
    def of(cls, schema: TableSchema) -> Self:
        """Return the vocabulary that a schema gives to its codes."""
        return cls(
            # Hundreds of pixels have the same codes, which are written once.
            columns=tuple(
                _CodedColumns(names=tuple(column.name for column in columns), codes=codes)
                for codes, columns in groupby(schema.columns, key=_codes_of)
            ),
            label=_CodedColumns(names=(schema.labels.name,), codes=schema.labels.level_names),
        )

    def require(self, schema: TableSchema) -> None:
        """Refuse (IntegrityError) a schema with another meaning of a code."""
        others = Vocabulary.of(schema)._by_column()
        for mine, theirs in zip_longest(self._by_column(), others, fillvalue=("no column", ())):
            if mine != theirs:
                same = mine[0] == theirs[0]
                found = "others, or in another order" if same else f"{theirs[0]} in its place"
                raise refusal("VOCABULARY_MISMATCH", mine=mine[0], found=found)

    def _by_column(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for coded in (*self.columns, self.label):
            for name in coded.names:
                yield name, coded.codes


def _codes_of(column: Column) -> tuple[str, ...]:
    names = column.levels if isinstance(column, CategoricalColumn) else _bins_of(column)
    return (*names, MISSING_CODE) if column.has_missing else names


def _bins_of(column: NumericColumn) -> tuple[str, ...]:
    starts = [*map(column.text, column.bin_starts)]
    ends = [f"{end})" for end in starts[1:]] + [f"{column.text(column.upper)}]"]
    return tuple(f"[{start}, {end}" for start, end in zip(starts, ends, strict=True))
