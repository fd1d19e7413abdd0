"""A distribution over all records as a product over components of dependent columns.

The multiplicative weights of MWEM live on the universe of all records, which is far too large to
write down. A query on few columns multiplies weights by a function of these columns alone, so the
distribution stays a product: columns that no query has joined are independent of each other. Every
column starts as a component of its own; the components of a query are merged before the query
changes them, by an outer product. Nothing is approximated: the product is the same distribution as
the full table of weights (Hardt et al. 2012, section on scaling). What has a limit is the size of
a component, and so the queries that can be used; `admissible` names them.

Everything here is post-processing of released values.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.rivals.workload import Workload
from privacy.arrays import Codes, Floats, Integers


class FactoredDistribution:
    """Independent components, each a table of probabilities of its columns (ValueError)."""

    def __init__(self, marginals: Sequence[Floats]) -> None:
        for marginal in marginals:
            if marginal.ndim != 1 or (marginal < 0.0).any() or abs(marginal.sum() - 1.0) > 1e-9:
                raise ValueError("expected probabilities of every column that sum to one")
        self.n_codes = tuple(len(marginal) for marginal in marginals)
        self.component = np.arange(len(marginals))
        self._tables = {column: np.array(marginal) for column, marginal in enumerate(marginals)}
        self._members: dict[int, tuple[int, ...]] = {
            column: (column,) for column in range(len(marginals))
        }

    @classmethod
    def uniform(cls, n_codes: Sequence[int]) -> "FactoredDistribution":
        """All records alike."""
        return cls([np.full(n, 1.0 / n) for n in n_codes])

    def probability(self, columns: Sequence[int], codes: Sequence[int]) -> float:
        """Probability of the given codes in the given columns; a column may be named twice."""
        parts: dict[int, dict[int, int]] = {}
        for column, code in zip(columns, codes, strict=True):
            parts.setdefault(int(self.component[column]), {})[int(column)] = int(code)
        return math.prod(
            float(self._tables[number][self._index(number, wanted)].sum())
            for number, wanted in parts.items()
        )

    def tilt(self, columns: Sequence[int], codes: Sequence[int], theta: float) -> None:
        """Multiply the records that have the codes by ``exp(theta)`` and normalise.

        The components of the columns are merged first.
        """
        number = self._merged({int(column) for column in columns})
        wanted = {int(column): int(code) for column, code in zip(columns, codes, strict=True)}
        table = self._tables[number]
        table[self._index(number, wanted)] *= math.exp(theta)
        table /= table.sum()

    def answers(self, workload: Workload) -> Floats:
        """Probability of every query of a workload, of shape (n_queries,)."""
        offsets = np.concatenate([[0], np.cumsum(self.n_codes)])
        single = np.concatenate([self.marginal(column) for column in range(len(self.n_codes))])
        left, right = (single[offsets[workload.columns] + workload.codes]).T
        same = workload.columns[:, 0] == workload.columns[:, 1]
        answers = np.where(same, left, left * right)
        joined = self.component[workload.columns]
        for query in np.flatnonzero((joined[:, 0] == joined[:, 1]) & ~same):
            answers[query] = self.probability(workload.columns[query], workload.codes[query])
        return np.asarray(answers)

    def admissible(self, workload: Workload, *, max_cells: int) -> Integers:
        """Return the queries whose columns are joined, or may be within ``max_cells``."""
        cells = np.array([self._tables[int(number)].size for number in self.component])
        left, right = self.component[workload.columns].T
        merged = cells[workload.columns[:, 0]] * cells[workload.columns[:, 1]]
        return np.flatnonzero((left == right) | (merged <= max_cells))

    def marginal(self, column: int) -> Floats:
        """Probabilities of the codes of one column."""
        number = int(self.component[column])
        members = self._members[number]
        others = tuple(axis for axis, member in enumerate(members) if member != column)
        return np.asarray(self._tables[number].sum(axis=others))

    def sample(self, n_rows: int, rng: np.random.Generator) -> Codes:
        """Draw records, a component at a time, of shape (n_rows, number of columns)."""
        records = np.empty((n_rows, len(self.n_codes)), dtype=np.uint16)
        for number, members in self._members.items():
            table = self._tables[number]
            cumulative = np.cumsum(table)
            cell = np.searchsorted(cumulative, rng.random(n_rows) * cumulative[-1], side="right")
            # Rounding may put a draw at the very end: into the last cell that has any weight.
            cell = np.minimum(cell, np.flatnonzero(table)[-1])
            records[:, members] = np.column_stack(np.unravel_index(cell, table.shape))
        return records

    def _index(self, number: int, wanted: dict[int, int]) -> tuple[int | slice, ...]:
        return tuple(wanted.get(member, slice(None)) for member in self._members[number])

    def _merged(self, columns: set[int]) -> int:
        """Join the components of the columns; return the number of the one that stays."""
        first, *others = sorted({int(self.component[column]) for column in columns})
        for number in others:
            self._tables[first] = np.multiply.outer(self._tables[first], self._tables.pop(number))
            self._members[first] += self._members.pop(number)
            self.component[np.array(self._members[first])] = first
        return first


Tilt = Callable[[float, float], float]
"""Exponent of an update, from the measured and the present probability of a query."""

_SMALLEST = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyAnswer:
    """A query with its noisy answer, as a share of the records in [0, 1]."""

    columns: tuple[int, ...]
    codes: tuple[int, ...]
    share: float


def printed_tilt(measured: float, present: float) -> float:
    """Return the exponent of Hardt et al. 2012, Figure 1: half the error of the share."""
    return (measured - present) / 2.0


def matching_tilt(measured: float, present: float) -> float:
    """Return the exponent to the measured probability; the paper's is a short step to it."""
    return _log_odds(measured) - _log_odds(present)


def _log_odds(share: float) -> float:
    clipped = min(max(share, _SMALLEST), 1.0 - _SMALLEST)
    return math.log(clipped) - math.log1p(-clipped)


def update(
    distribution: FactoredDistribution, history: Sequence[NoisyAnswer], *, passes: int, tilt: Tilt
) -> None:
    """Apply all measurements so far, in order and so many times; changes the distribution."""
    for _ in range(passes):
        for measurement in history:
            present = distribution.probability(measurement.columns, measurement.codes)
            theta = tilt(measurement.share, present)
            distribution.tilt(measurement.columns, measurement.codes, theta)


def iterates(
    start: FactoredDistribution, history: Sequence[NoisyAnswer], *, passes: int, tilt: Tilt
) -> Iterator[FactoredDistribution]:
    """Yield the distribution after each round of a history; the next round changes it in place."""
    for n_known in range(1, len(history) + 1):
        update(start, history[:n_known], passes=passes, tilt=tilt)
        yield start
