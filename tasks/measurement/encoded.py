"""Encoded records, the only input of a synthesizer, and their public domain.

A synthesizer never sees a data frame. It sees integer codes that the public schema alone
produced, so that no statistic of the private rows can hide in the encoding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Indices, Integers
from tasks.measurement.record_rules import RecordRules

N_FOLDS = 5
"""Number of folds into which a hash of the patient splits the patients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingDomain:
    """Public shape of the encoded table, of d feature columns in the order of the schema.

    The codes of a column are public bins or declared levels; where it `has_missing`, the last one
    means "missing". The codes of a `numeric` column are ordered bins of numbers. At most
    `rows_per_patient` rows of a patient are kept. `patients` is their approximate number, declared
    and public, or None. `image` has the rows, columns and channels of the image whose pixels are
    the columns, from the top left; None for a table. `parts` is the number of measurements, of
    disjoint patients, that a pool will add up. Every record keeps the `rules`.
    """

    column_names: tuple[str, ...]
    n_codes: tuple[int, ...]
    has_missing: tuple[bool, ...]
    numeric: tuple[bool, ...]
    label_levels: tuple[str, ...]
    rows_per_patient: int = 1
    patients: int | None = None
    parts: int = 1
    image: tuple[int, int, int] | None = None
    rules: RecordRules | None = None

    @property
    def n_columns(self) -> int:
        """Number d of feature columns."""
        return len(self.column_names)

    @property
    def n_labels(self) -> int:
        """Number C of label levels."""
        return len(self.label_levels)

    @property
    def one_hot_offsets(self) -> Integers:
        """Start of each column's block in a one-hot row, with the total width at the end."""
        return np.concatenate([[0], np.cumsum(self.n_codes)]).astype(np.int64)

    @property
    def one_hot_width(self) -> int:
        """Total number of codes over all feature columns."""
        return int(sum(self.n_codes))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Encoded records of one shard. A patient's rows never straddle two shards.

    Codes (n, d) are below ``n_codes`` of their column; labels (n,) are indices of levels. The
    weight (n,) is one over the number of rows kept of a row's patient, so that those of a patient
    sum to one. The fold (n,), in [0, N_FOLDS), is a hash of the patient.
    """

    codes: Codes
    label: Codes
    weight: Floats
    fold: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if not len(self.codes) == len(self.label) == len(self.weight) == len(self.fold):
            raise ValueError("expected as many codes, labels, weights and folds as rows")
        if not ((self.weight > 0.0) & (self.weight <= 1.0)).all():
            raise ValueError("expected every weight in (0, 1], found one outside")

    def __len__(self) -> int:
        return len(self.label)

    def load(self) -> "EncodedRows":
        """Return the rows themselves: in memory they are a shard."""
        return self

    def recoded(self, rows: "EncodedRows") -> "EncodedRows":
        """Return a shard of these rows in the place of this one."""
        return rows

    def only(self, chosen: slice | Indices | NDArray[np.bool_]) -> "EncodedRows":
        """Return some of the rows."""
        return EncodedRows(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})

    def by_weight(self, size: int = 4_096) -> Iterator[tuple[float, Iterator["EncodedRows"]]]:
        """Yield each weight and its rows, `size` at a time: rows of one weight sum as counts."""
        for weight in np.unique(self.weight):
            member = np.flatnonzero(self.weight == weight)
            yield weight, (self.only(member[part]) for part in row_slices(len(member), size))

    def require_inside(self, n_codes: Sequence[int] | Integers, n_labels: int) -> None:
        """Refuse codes or labels outside a domain (ValueError): they would enter other cells."""
        codes = self.codes[:, : len(n_codes)]
        if (codes >= np.asarray(n_codes)).any() or (self.label >= n_labels).any():
            raise ValueError("expected codes inside the public domain, found one outside")


def mixed_bits(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of SplitMix64 (Steele, Lea and Flood 2014): high bits depend on every bit."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def row_slices(n_rows: int, size: int = 4_096) -> Iterator[slice]:
    """Yield slices of `size` consecutive rows, to bound the memory of a computation."""
    for start in range(0, n_rows, size):
        yield slice(start, start + size)
