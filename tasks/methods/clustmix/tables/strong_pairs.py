"""Pairs of columns whose released table shows a dependence that a mixture of products lacks.

Columns that are nearly functions of each other come out of a mixture nearly independent. The
strongest such pairs are coupled inside every component, along a forest: factors of pairs of codes
are shared by all components, each of which keeps its one-ways. So the mixture keeps its one-ways,
and tables of two trees. Nothing is drawn: post-processing of released values.

The wanted table of a pair starts from the mixture or, of two numbers, from the Gaussian copula that
explains the released table best. Where the table shows more, it goes towards the table by the step
of least estimated risk (Stein 1981), if any. Noise alone passes for a copula in about one of all
pairs, and its risk is estimated in about ten; of few pairs each in a tenth at most. Where noise
drowns the tables both are rarer.

Source: Chow and Liu 1968 (forest); Sklar 1959 (copulas); Sinkhorn 1967 (factors).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from scipy.special import ndtr, ndtri

from privacy.arrays import Floats
from tasks.measurement.method import Released
from tasks.methods.clustmix.records.table_layout import Layout
from tasks.methods.clustmix.tables.estimates import _PairTargets
from tasks.methods.clustmix.tables.measured_tables import doubly_centred, fitted
from tasks.methods.clustmix.tables.table_sampler import Mixture, coupled, pair_shares

_CORRELATIONS = (0.5, 0.65, 0.8, 0.9, 0.95, 0.98)
_SCREENED = 0.8
_STEPS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0)
_MOST_EXPONENT, _NODES, _TINY = 12.0, 16, 1e-12
_LEAST_DISTANCE, _MOST_CELLS, _PASSED_BY_NOISE = 0.01, 10_000, (1.0, 10.0)
_ROUNDS, _SWEEPS, _MOST_FACTOR, _SOFT = 60, 2, 1e3, 1e-7


def strong_pairs(
    layout: Layout,
    mixture: Mixture,
    measured: _PairTargets,
    *,
    drowned: float,
    left_out: Collection[int],
) -> Released:
    """Return the strong pairs (E, 2), each after that of its parent, and all of their factors.

    No pair has a hidden column, or one that is left out. `drowned` is the degree, from 0 to 1, to
    which noise drowns the tables; the tests of significance are stricter then.
    """
    columns = [column for column in range(layout.n_declared) if column not in left_out]
    pairs = [pair for two in combinations(columns, 2) if (pair := _Pair.of(layout, measured, two))]
    weight = (1.0 - drowned) ** 3
    shares = [weight * passed / max(len(pairs), 10.0 * passed) for passed in _PASSED_BY_NOISE]
    thresholds = [float(ndtri(1.0 - share)) for share in shares]
    wanted = {}
    for pair in pairs:
        own = pair_shares(mixture, layout, *pair.columns)
        found = pair.wanted(own, thresholds)
        distance = 0.5 * float(np.abs(found - own).sum())
        if distance > _LEAST_DISTANCE:
            wanted[pair.columns] = found, distance
    edges = _forest({columns: distance for columns, (_, distance) in wanted.items()})
    factors = []
    for parent, column in edges:
        table = wanted[min(parent, column), max(parent, column)][0]
        table = table if parent < column else table.T
        factors.append(_factors(layout, mixture, (parent, column), table).ravel())
    return {
        "strong_pairs": np.array(edges, dtype=np.int64).reshape(-1, 2),
        "strong_factors": np.concatenate([np.empty(0), *factors]),
    }


def _forest(distances: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Return the maximum spanning forest (Prim): pairs of a parent and a column, parents first."""
    left, found, reached = dict(distances), [], set[int]()
    while left:
        growing = [pair for pair in left if len(reached.intersection(pair)) == 1]
        first, second = max(growing or left, key=left.__getitem__)
        found.append((second, first) if second in reached else (first, second))
        reached |= {first, second}
        left = {pair: left[pair] for pair in left if not reached.issuperset(pair)}
    return found


def _factors(layout: Layout, mixture: Mixture, columns: tuple[int, int], wanted: Floats) -> Floats:
    """Return factors (k, l) that bring the coupled mixture to wanted shares of pairs of codes."""
    first, second = (mixture.components[:, layout.block(column)] for column in columns)
    tables, factors = first[:, :, None] * second[:, None], np.ones(wanted.shape)
    for _ in range(_ROUNDS):
        found = np.tensordot(mixture.weights, tables, 1)
        moved = factors * (wanted + _SOFT) / (found + _SOFT)
        moved = np.clip(moved, 1.0 / _MOST_FACTOR, _MOST_FACTOR)
        tables = coupled(tables * (moved / factors), first, second, sweeps=_SWEEPS)
        factors = moved
    return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """The released table (a, b) of two columns, with joins (a, k), (b, l) of codes to its groups.

    Numbers of bins are None if one of the columns is no number; the missing code comes after them.
    """

    columns: tuple[int, int]
    joins: tuple[Floats, Floats]
    table: Floats
    stddev: float
    n_bins: tuple[int, int] | None

    @classmethod
    def of(cls, layout: Layout, measured: _PairTargets, columns: tuple[int, int]) -> _Pair | None:
        """Return the table of a pair if it was measured, and every component can hold its cells."""
        joins, places = [], []
        for column in columns:
            own = measured.joins[:, layout.block(column)]
            places.append(np.flatnonzero(own.any(axis=1)))
            joins.append(own[places[-1]])
        weight = float(measured.weights[places[0][0], places[1][0]])
        if weight == 0.0 or prod(layout.n_codes[column] for column in columns) > _MOST_CELLS:
            return None
        numbers = all(layout.numeric[column] for column in columns)
        n_bins = [layout.n_codes[column] - layout.has_missing[column] for column in columns]
        return cls(
            columns=columns,
            joins=(joins[0], joins[1]),
            table=measured.tables[np.ix_(*places)],
            stddev=weight**-0.5,
            n_bins=(n_bins[0], n_bins[1]) if numbers else None,
        )

    def wanted(self, own: Floats, thresholds: Sequence[float]) -> Floats:
        """Return wanted shares (k, l) with the margins of the mixture's own ones.

        Thresholds are normal deviates: of the signal of a copula, and of what is left beyond it.
        """
        start = own if self.n_bins is None else self._copula(own, self.n_bins, thresholds[0])
        grouped, residual = self._grouped(start), self._residual(start)
        degrees = (grouped.shape[0] - 1.0) * (grouped.shape[1] - 1.0)
        squares = float((residual**2).sum()) / self.stddev**2 / max(degrees, 1.0)
        # Normal deviate of a chi-squared (Wilson and Hilferty 1931).
        variance = 2.0 / (9.0 * max(degrees, 1.0))
        if (squares ** (1.0 / 3.0) - 1.0 + variance) / variance**0.5 > thresholds[1]:
            ratio = self._towards(grouped, residual) / np.maximum(grouped, _TINY)
            start = start * (self.joins[0].T @ ratio @ self.joins[1])
        return start if start is own else _raked(start, own)

    def _grouped(self, shares: Floats) -> Floats:
        return np.asarray(self.joins[0] @ shares @ self.joins[1].T)

    def _residual(self, shares: Floats) -> Floats:
        """Part of the released table beyond these shares; margins are known better elsewhere."""
        return doubly_centred(self.table - self._grouped(shares))

    def _copula(self, own: Floats, n_bins: tuple[int, int], threshold: float) -> Floats:
        """Return the Gaussian copula that explains the released table best, or else the own shares.

        Missing codes keep their shares, and the others together.
        """
        residual, best, gain = self._residual(own), own, 0.0
        for sign in (1.0, -1.0):
            first = _of_copula(own, n_bins, sign * _SCREENED)
            if self._signal(residual, first - own)[0] <= threshold:
                continue
            for correlation in _CORRELATIONS:
                table = _of_copula(own, n_bins, sign * correlation)
                signal, more = self._signal(residual, table - own)
                if signal > threshold and more > gain:
                    best, gain = table, more
        return best

    def _signal(self, residual: Floats, direction: Floats) -> tuple[float, float]:
        """Return the signal along a direction, in deviations of noise, and the drop in error."""
        along = doubly_centred(self._grouped(direction))
        inner, squares = float((residual * along).sum()), float((along**2).sum())
        return inner / (self.stddev * max(squares**0.5, _TINY)), 2.0 * inner - squares

    def _towards(self, grouped: Floats, residual: Floats) -> Floats:
        """Return grouped shares, tilted to the table by the step of least estimated risk."""
        table, best, least = grouped + residual, grouped, float((residual**2).sum())
        for step in _STEPS:
            exponent = np.clip(step * residual / self.stddev, -_MOST_EXPONENT, _MOST_EXPONENT)
            found = _raked(grouped * np.exp(exponent), grouped)
            freedom = step / self.stddev * float((found * (1.0 - _leverage(found))).sum())
            risk = float(((found - table) ** 2).sum()) + 2.0 * self.stddev**2 * freedom
            if risk < least:
                best, least = found, risk
        return best


def _leverage(shares: Floats) -> Floats:
    """Part (a, b) of a small change of each cell that its margins take back."""
    rows, columns = shares.sum(axis=1), shares.sum(axis=0)
    inverse = np.linalg.pinv(np.block([[np.diag(rows), shares], [shares.T, np.diag(columns)]]))
    own, n_rows = np.diag(inverse), len(rows)
    both = own[:n_rows, None] + own[n_rows:] + 2.0 * inverse[:n_rows, n_rows:]
    return np.asarray(shares * both)


def _raked(table: Floats, like: Floats) -> Floats:
    every = np.ones(table.shape, dtype=np.bool_)
    return fitted(table, like.sum(axis=1), like.sum(axis=0), every)


def _of_copula(own: Floats, n_bins: tuple[int, int], correlation: float) -> Floats:
    """Return shares of two numbers that are jointly normal within their bins; see `_copula`."""
    place = slice(n_bins[0]), slice(n_bins[1])
    inner = np.maximum(own[place], _TINY)
    ends = [np.minimum(np.cumsum(inner.sum(axis=axis)) / inner.sum(), 1.0) for axis in (1, 0)]
    starts = np.concatenate([[0.0], ends[0][:-1]])
    inside = starts[:, None] + np.outer(ends[0] - starts, (np.arange(_NODES) + 0.5) / _NODES)
    inside = ndtri(np.clip(inside, _TINY, 1.0 - _TINY))
    below = np.append(-np.inf, ndtri(ends[1]))
    below[-1] = np.inf
    spread = (1.0 - correlation**2) ** 0.5
    passed = ndtr((below - correlation * inside[..., None]) / spread)
    found = own.copy()
    found[place] = np.diff(passed).mean(axis=1) * inner.sum(axis=1)[:, None]
    return found
