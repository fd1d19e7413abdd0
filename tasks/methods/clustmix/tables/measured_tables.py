"""Tables of shares of a release: unbiased estimates with their noise, and shares of the model.

Each cell has two numbers. The estimate is a weighted sum of sealed values: its error is noise
alone, of a known standard deviation. The share is that of the model: not negative, and consistent
across tables. Post-processing of released values.

Shares are of patients; a row of a patient with m rows counts 1 / m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats
from tasks.measurement.centred import centred_norm, count_factor, counts_of, without_means
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.method import Noisy, Table
from tasks.measurement.record_rules import LABEL, RecordRules
from tasks.methods.clustmix.records.table_layout import LABEL_COUNTS, Layout
from tasks.methods.clustmix.tables.estimates import DrawnPairs, joint_one_ways
from tasks.methods.clustmix.tables.table_sampler import kept_weights, mixture_of, pair_shares

Groups = tuple[tuple[int, ...], ...]

_FITTINGS, _LEAST, _TINY = 200, 1e-12, 1e-300


def measured_tables(
    domain: EncodingDomain, released: Mapping[str, NDArray[Any]], noisy: Noisy, *, by_label: Floats
) -> Iterator[Table]:
    """Return the label, every column, every column by label, and every pair of columns.

    Shares by label (W, C) are those of the model, before they are fitted to the one-ways.
    """
    layout = Layout.of(domain)
    margins = _Margins(layout, released, noisy, rules=domain.rules, of_model=by_label)
    yield margins.label()
    for column in range(layout.n_declared):
        yield margins.one_way(column)
        yield margins.by_label(column)
    if margins.drawn is not None:
        yield from _pairs(layout, margins, margins.drawn, released, rules=domain.rules)


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """Unbiased estimates (a, b) of patients by groups of codes of one or two columns.

    `noise` maps weights (a, b) to the variance of the noise of the weighted sum of estimates.
    """

    counts: Floats
    groups: tuple[Groups, ...]
    noise: Callable[[Floats], float]


def measured_cells(
    domain: EncodingDomain, released: Mapping[str, NDArray[Any]], noisy: Noisy, *columns: int
) -> _Cells | None:
    """Return the cells of a column, or of two that were measured together (else None).

    The last column may be the label. In a centred draw the noise of a block of k codes has the
    covariance ``I - 1 / k``, times a variance.
    """
    layout = Layout.of(domain)
    margins = _Margins(layout, released, noisy, rules=None, of_model=np.empty((0, 0)))
    if LABEL in columns or len(columns) == 1:
        return margins.cells(*columns)
    first, second = columns
    if margins.drawn is None or not margins.drawn.choice.used[first, second]:
        return None
    return _pair_cells(layout, margins, margins.drawn, columns=(first, second))


def _pair_cells(
    layout: Layout, margins: _Margins, drawn: DrawnPairs, *, columns: tuple[int, int]
) -> _Cells:
    first, second = (_part(layout, margins, drawn, j) for j in columns)
    noisy, variance = drawn.cells(layout), drawn.stddev**2
    noisy = (noisy + noisy.T)[first.place, second.place]
    share, _ = _measured_pair(noisy, margins, first, second, variance=variance)
    a, b = share.shape
    constant = first.constant[:, None] / b + second.constant / a - 1.0 / (a * b)

    def noise(weights: Floats) -> float:
        found = variance * float((doubly_centred(weights) ** 2).sum())
        for part, own in ((first, weights.sum(axis=1) / b), (second, weights.sum(axis=0) / a)):
            # A group of m of the k codes has the constant m / k.
            k = layout.n_codes[columns[part is second]]
            spread = float(own**2 @ part.constant) - float(own @ part.constant) ** 2
            found += margins.code_variance * k * spread
        return found + margins.total_variance * float((weights * constant).sum()) ** 2

    return _Cells(
        counts=share * margins.patients, groups=(first.groups, second.groups), noise=noise
    )


class _Margins:
    """Estimates of the label and of single columns from the counts."""

    def __init__(
        self,
        layout: Layout,
        released: Mapping[str, NDArray[Any]],
        noisy: Noisy,
        *,
        rules: RecordRules | None,
        of_model: Floats,
    ) -> None:
        self._layout, self._released, self._rules = layout, released, rules
        self._of_model = of_model
        label_counts, stddev = noisy(LABEL_COUNTS)
        entry = stddev * centred_norm(layout.n_codes)
        self._entry, self.size_variance = entry**2, (entry / count_factor(layout.n_codes)) ** 2
        self._sizes, self._by_label = counts_of(label_counts, layout.n_codes)
        self.patients = float(self._sizes.sum())
        self.total_variance = layout.n_labels * self.size_variance
        centred = without_means(self._by_label.sum(axis=0), layout.offsets)
        self.code_variance = self._entry * layout.n_labels
        self.drawn: DrawnPairs | None = None
        if "pair_used" in released:
            self.drawn = DrawnPairs.of(layout, released, noisy, patients=self.patients)
            one_ways, stddev = joint_one_ways(layout, [self.drawn])
            part = self.code_variance / (self.code_variance + stddev**2)
            centred += part * (without_means(one_ways, layout.offsets) - centred)
            self.code_variance *= 1.0 - part
        self.centred = centred

    def shares(self, column: int) -> Floats:
        """Released shares of a column's codes."""
        found = np.asarray(self._released["code_shares"][self._layout.block(column)])
        return np.asarray(found / found.sum())

    def counts(self, column: int, *label: int) -> tuple[Floats, float, float]:
        """Return estimated patients (k, n) by code, with the variances of a code and of a total."""
        if column == LABEL:
            return self._sizes[None], 0.0, self.size_variance
        block = self._layout.block(column)
        if label:
            return self._by_label[:, block].T, self._entry, self.size_variance
        even = self.patients / self._layout.n_codes[column]
        return (self.centred[block] + even)[:, None], self.code_variance, self.total_variance

    def cells(self, *columns: int) -> _Cells:
        """Return the cells of the label, of a column, or of a column by label."""
        counts, variance, of_total = self.counts(*columns)

        def noise(weights: Floats) -> float:
            totals = float((weights.sum(axis=0) ** 2).sum()) / len(counts)
            found = variance * (float((weights**2).sum()) - totals)
            return found + of_total * totals / len(counts)

        return _Cells(counts=counts, groups=_each(counts.shape), noise=noise)

    def label(self) -> Table:
        shares = self._released["label_shares"]
        if self._rules is not None:
            shares = shares * self._rules.possible_labels
            shares = shares / shares.sum()
        return self._table((LABEL,), shares)

    def one_way(self, column: int) -> Table:
        return self._table((column,), self.shares(column))

    def by_label(self, column: int) -> Table:
        allowed, model = self.allowed(column, LABEL), self._of_model[self._layout.block(column)]
        shares = fitted(model, self.shares(column), self.label().shares[:, 0], allowed)
        return self._table((column, LABEL), shares)

    def allowed(self, first: int, second: int) -> NDArray[np.bool_]:
        """Return the allowed pairs of codes (k, l) of a column and of another, or the label."""
        if self._rules is not None and max(first, second) < len(self._rules.n_codes):
            return self._rules.together(first, second)
        other = self._layout.n_labels if second == LABEL else self._layout.n_codes[second]
        return np.ones((self._layout.n_codes[first], other), dtype=np.bool_)

    def _table(self, columns: tuple[int, ...], shares: Floats) -> Table:
        counts, variance, of_total = self.counts(*columns)
        (k, n_totals), shares = counts.shape, shares.reshape(len(shares), -1)
        found = counts / self.patients
        rest = (1.0 / k - found) ** 2 + (n_totals - 1) * found**2
        stddevs = np.sqrt(variance * (1.0 - 1.0 / k) + of_total * rest) / self.patients
        return Table(
            columns=columns,
            groups=_each(shares.shape[: len(columns)]),
            origin="measured",
            shares=shares,
            estimates=found.reshape(shares.shape),
            stddevs=stddevs.reshape(shares.shape),
        )


def _each(sizes: tuple[int, ...]) -> tuple[Groups, ...]:
    return tuple(tuple((code,) for code in range(size)) for size in sizes)


def _pairs(
    layout: Layout,
    margins: _Margins,
    drawn: DrawnPairs,
    released: Mapping[str, NDArray[Any]],
    *,
    rules: RecordRules | None,
) -> Iterator[Table]:
    """Yield a table of every pair of declared columns, by the groups of codes of pair tables."""
    noisy, variance = drawn.cells(layout), drawn.stddev**2
    mixture = mixture_of(released, layout)
    if rules is not None:
        mixture = replace(mixture, weights=kept_weights(mixture, layout, rules))
    parts = [_part(layout, margins, drawn, j) for j in range(layout.n_columns)]
    for i in range(layout.n_declared):
        for j in range(i + 1, layout.n_declared):
            first, second = parts[i], parts[j]
            allowed = margins.allowed(i, j)
            model = pair_shares(mixture, layout, i, j) * allowed
            implied = Table(
                columns=(i, j),
                groups=(first.groups, second.groups),
                origin="implied",
                shares=fitted(
                    first.joins @ model @ second.joins.T,
                    first.shares,
                    second.shares,
                    first.joins @ allowed @ second.joins.T > 0.0,
                ),
            )
            if not drawn.choice.used[i, j]:
                yield implied
                continue
            table = noisy[first.place, second.place]
            estimates, stddevs = _measured_pair(table, margins, first, second, variance=variance)
            whole = table.shape == (layout.n_codes[i], layout.n_codes[j])
            yield replace(
                implied,
                origin="measured" if whole else "coarsened",
                estimates=estimates,
                stddevs=stddevs,
            )


def _measured_pair(
    table: Floats, margins: _Margins, first: _Part, second: _Part, *, variance: float
) -> tuple[Floats, Floats]:
    """Return the estimated shares of noisy cells (a, b) and their standard deviations."""
    # Rows and columns of a doubly centred table sum to zero; the rest is noise.
    table = doubly_centred(table)
    each, other = 1.0 / len(table), 1.0 / table.shape[1]
    constant = first.constant[:, None] * other + second.constant * each - each * other
    share = (
        table + first.centred[:, None] * other + second.centred * each
    ) / margins.patients + constant
    variances = (
        variance * (1.0 - each) * (1.0 - other)
        + first.variances[:, None] * other**2
        + second.variances * each**2
        + margins.total_variance * (constant - share) ** 2
    )
    return share, np.sqrt(variances) / margins.patients


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A column by its groups of codes: shares, centred counts and their variances.

    Joins (groups, k) have a 1 where a code is in a group. `place` is the slice of the groups among
    those of all columns. The constant is m / k for a group of m of the k codes.
    """

    place: slice
    joins: Floats
    shares: Floats
    centred: Floats
    variances: Floats
    constant: Floats

    @property
    def groups(self) -> Groups:
        """Codes of each group."""
        return tuple(tuple(np.flatnonzero(own).tolist()) for own in self.joins)


def _part(layout: Layout, margins: _Margins, drawn: DrawnPairs, column: int) -> _Part:
    sizes, k = drawn.choice.n_groups, layout.n_codes[column]
    joins = np.eye(sizes[column])[:, drawn.choice.groups[layout.block(column)]]
    size, start = joins.sum(axis=1), sum(sizes[:column])
    return _Part(
        place=slice(start, start + sizes[column]),
        joins=joins,
        shares=joins @ margins.shares(column),
        centred=joins @ margins.centred[layout.block(column)],
        variances=margins.code_variance * (size - size**2 / k),
        constant=size / k,
    )


def doubly_centred(table: Floats) -> Floats:
    """Return a table (a, b) less the means of its rows and columns."""
    table = table - table.mean(axis=0)
    return np.asarray(table - table.mean(axis=1, keepdims=True))


def fitted(table: Floats, first: Floats, second: Floats, allowed: NDArray[np.bool_]) -> Floats:
    """Fit a table (a, b), negative cells being zero, to margins by iterative proportional fitting.

    Cells that are not allowed stay zero. If no such table has both margins, which are noisy, the
    result has the second one. Source: Deming and Stephan 1940.
    """
    found = np.where(allowed, np.maximum(table, _LEAST), 0.0)
    for _ in range(_FITTINGS):
        found = found * (first / np.maximum(found.sum(axis=1), _TINY))[:, None]
        found = found * (second / np.maximum(found.sum(axis=0), _TINY))
        if np.abs(found.sum(axis=1) - first).max() < _LEAST:
            break
    return np.asarray(found)
