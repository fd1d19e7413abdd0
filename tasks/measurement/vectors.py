"""Public map between coded records and real vectors, for methods that add and average records.

A numeric column is a number in [0, 1], the place of its bin; a column of two levels is 0 or 1; any
other column, and the label, is one-hot. The map back takes the nearest valid code of each column,
so that whatever numbers a method ends with, the records it releases are valid.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from privacy.arrays import AnyFloats, Codes, Floats
from tasks.measurement.encoded import EncodingDomain

VectorBlockKind = Literal["unit", "binary", "one_hot"]

_MISSING_SCORE = 0.5
"""Place of a missing number: the middle of the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Half-open range: one number in [0, 1], one 0 or 1, or one 1 among zeros."""

    start: int
    stop: int
    kind: VectorBlockKind


@dataclass(frozen=True, slots=True)
class VectorMap:
    """Map codes, and labels at the end where wanted, to vectors in [0, 1], and back."""

    domain: EncodingDomain
    with_label: bool = False

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks in the order of the coordinates."""
        blocks: list[Block] = []
        for column in self._columns():
            for kind, width in _blocks_of(*column):
                start = blocks[-1].stop if blocks else 0
                blocks.append(Block(start=start, stop=start + width, kind=kind))
        return tuple(blocks)

    @property
    def width(self) -> int:
        """Number D of coordinates."""
        return sum(self._widths())

    @property
    def spans(self) -> tuple[slice, ...]:
        """Coordinates of each feature column; those of the label, if any, stand behind them."""
        stops = np.cumsum(self._widths()[: self.domain.n_columns]).tolist()
        return tuple(map(slice, [0, *stops[:-1]], stops))

    @property
    def middle(self) -> Floats:
        """Middle (D,) of the domain, a point whose largest distance to a record is small."""
        return middle_of(self.blocks)

    @property
    def typical_distance(self) -> float:
        """Root mean squared distance of two records that are uniform in the domain."""
        squared = {"unit": 1.0 / 6.0, "binary": 0.5}
        widths = [(block.kind, block.stop - block.start) for block in self.blocks]
        return math.sqrt(sum(squared.get(kind, 2.0 - 2.0 / width) for kind, width in widths))

    def radius(self, centre: Floats | float = 0.0) -> float:
        """Largest Euclidean distance of a record's vector from a point (D,); 1 if it is zero.

        A record has any code in each column, so the largest squares of the columns add up.
        """
        centre = np.broadcast_to(centre, self.width)
        square = 0.0
        for span, table in self._tables():
            square += float(((table - centre[span]) ** 2).sum(axis=1).max())
        return math.sqrt(square) or 1.0

    def vectors(self, codes: Codes, label: Codes | None = None) -> Floats:
        """Vectors (n, D), values in [0, 1], of records (n, d), with labels if the map has them."""
        if (label is not None) is not self.with_label:
            raise ValueError("expected labels if and only if the map is one with labels")
        columns = list(codes.T) if label is None else [*codes.T, label]
        vectors = np.zeros((len(codes), self.width))
        for values, (span, table) in zip(columns, self._tables(), strict=True):
            vectors[:, span] = table[values]
        return vectors

    def codes(self, vectors: AnyFloats) -> tuple[Codes, Codes | None]:
        """Nearest valid records (n, d) of finite (ValueError) vectors (n, D); labels if mapped."""
        if not np.isfinite(vectors).all():
            raise ValueError("expected finite numbers, found another")
        columns = [_nearest(vectors[:, span], table) for span, table in self._tables()]
        label = columns.pop() if self.with_label else None
        return np.stack(columns, axis=1), label

    def _columns(self) -> list[tuple[int, bool, bool]]:
        """Return n_codes, has_missing and numeric of each column, and of the label at the end."""
        domain = self.domain
        columns = list(zip(domain.n_codes, domain.has_missing, domain.numeric, strict=True))
        return [*columns, (domain.n_labels, False, False)] if self.with_label else columns

    def _widths(self) -> list[int]:
        return [sum(width for _, width in _blocks_of(*column)) for column in self._columns()]

    def _tables(self) -> Iterator[tuple[slice, Floats]]:
        """Coordinates of each column, and the vector of each of its codes."""
        start = 0
        for column in self._columns():
            table = _table(*column)
            yield slice(start, start + table.shape[1]), table
            start += table.shape[1]


def middle_of(blocks: Sequence[Block]) -> Floats:
    """Middle (D,) of the domain: one half, an equal share of each level of a one-hot block."""
    widths = np.array([block.stop - block.start for block in blocks])
    is_one_hot = np.array([block.kind == "one_hot" for block in blocks])
    return np.repeat(np.where(is_one_hot, 1.0 / widths, 0.5), widths)


def one_hot_numbers(domain: EncodingDomain, *, most_codes: int) -> EncodingDomain:
    """Return the domain with numeric columns of at most `most_codes` codes as levels.

    Their mean is a histogram; largest norms do not grow, except for columns of one code.
    """
    numeric = tuple(
        is_number and n_codes > most_codes
        for is_number, n_codes in zip(domain.numeric, domain.n_codes, strict=True)
    )
    return replace(domain, numeric=numeric)


def _blocks_of(n_codes: int, has_missing: bool, numeric: bool) -> list[tuple[VectorBlockKind, int]]:
    if numeric:
        return [("unit", 1), ("binary", 1)] if has_missing else [("unit", 1)]
    if n_codes == 2 and not has_missing:
        return [("binary", 1)]
    return [("one_hot", n_codes)]


def _table(n_codes: int, has_missing: bool, numeric: bool) -> Floats:
    if not numeric:
        if n_codes == 2 and not has_missing:
            return np.array([[0.0], [1.0]])
        return np.eye(n_codes)
    n_bins = n_codes - int(has_missing)
    place = np.arange(n_bins) / max(n_bins - 1, 1)
    if not has_missing:
        return place[:, None]
    table = np.zeros((n_codes, 2))
    table[:n_bins, 0] = place
    table[n_bins] = (_MISSING_SCORE, 1.0)
    return table


def _nearest(block: AnyFloats, table: Floats) -> Codes:
    """Index of the nearest row of a table; the first one where several are as near."""
    if table.shape[1] == 1:
        # Evenly spaced places: the nearest one is found by rounding.
        steps = max(len(table) - 1, 1)
        rounded = np.ceil(np.clip(block[:, 0], 0.0, 1.0) * steps - 0.5)
        near: Codes = np.minimum(rounded, len(table) - 1).astype(np.uint16)
        return near
    # |v - t|^2 without |v|^2, which is the same for all codes of a record.
    scores = block @ table.T - (table**2).sum(axis=1) / 2.0
    nearest: Codes = scores.argmax(axis=1).astype(np.uint16)
    return nearest
