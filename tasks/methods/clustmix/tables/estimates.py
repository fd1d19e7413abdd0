"""One least-squares estimate from all released counts of codes; post-processing throughout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import Self

import numpy as np

from privacy.arrays import Floats
from tasks.measurement.centred import centred_norm, count_factor, counts_of, without_means
from tasks.measurement.method import Noisy, Released
from tasks.methods.clustmix.records.table_layout import PAIR_TABLES, Layout, pair_cells
from tasks.methods.clustmix.tables.one_ways import smooth_shares
from tasks.methods.clustmix.tables.table_rule import PairChoice

_POOLED_CODES = 3.0
_OWN_EVENNESS = 0.25
_LEAST_SCALE = 0.5


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Estimated counts of patients by label and code (C, W), their noise, and shares from them.

    Every block of ``by_label`` sums to the size of its label. `stddev` is the noise of one entry,
    `one_way_stddev` about that of a code's count over all labels. `patients` is at least 1. Shares
    of labels (C,) are above 0, and every block of the shares of codes (W,) is a distribution.
    """

    by_label: Floats
    stddev: float
    one_way_stddev: float
    patients: float
    labels: Floats
    shares: Floats


def first_counts(layout: Layout, noisy: Floats, *, unit_stddev: float) -> Counts:
    """Return the counts of the first draw, of noisy label counts (C, 1 + W)."""
    sizes, by_label = counts_of(noisy, layout.n_codes)
    stddev = unit_stddev * centred_norm(layout.n_codes)
    patients = max(float(sizes.sum()), 1.0)
    # Where noise dominates, the floor makes labels nearly even, so that none dominates the weights.
    labels = _possible(sizes / patients, np.full(layout.n_labels, 0.5 * stddev / patients))
    counts = _counts(layout, labels, patients, by_label, stddev=stddev)
    deviation = stddev / count_factor(layout.n_codes) / patients
    labels = _possible(*label_shares(layout, counts, sizes / patients, deviation))
    moved = (labels * patients - sizes)[:, None] / layout.sizes
    return _counts(layout, labels, patients, by_label + moved, stddev=stddev)


def better_counts(
    layout: Layout, first: Counts, one_ways: Floats, *, one_way_stddev: float
) -> Counts:
    """Combine the first draw with the one-ways measured beside the pair tables.

    The one-ways (W,) are centred, in patients. The correction to the sum is split equally across
    labels, whose counts have equal noise: the least-squares estimate of all of them.
    """
    mine = without_means(first.by_label.sum(axis=0), layout.offsets)
    theirs = without_means(one_ways, layout.offsets)
    variances = layout.n_labels * first.stddev**2, one_way_stddev**2
    moved = (theirs - mine) * variances[0] / sum(variances)
    return replace(
        _counts(
            *(layout, first.labels, first.patients, first.by_label),
            stddev=first.stddev,
            one_ways=theirs,
            one_way_stddev=one_way_stddev,
        ),
        by_label=first.by_label + moved / layout.n_labels,
    )


def _counts(
    layout: Layout,
    labels: Floats,
    patients: float,
    by_label: Floats,
    *,
    stddev: float,
    one_ways: Floats | float = 0.0,
    one_way_stddev: float = np.inf,
) -> Counts:
    centred = without_means(by_label, layout.offsets) / patients
    weights, precision = label_weights(layout, labels, centred, stddev=stddev / patients)
    more = (patients / one_way_stddev) ** 2
    total = np.einsum("cw,wc->w", centred, np.repeat(weights, layout.n_codes, axis=0))
    total += more * one_ways / patients
    deviations = (precision + more) ** -0.5
    total *= np.repeat(deviations**2, layout.n_codes)
    return Counts(
        by_label=by_label,
        stddev=stddev,
        one_way_stddev=float(np.sqrt((deviations**2).mean())) * patients,
        patients=patients,
        labels=labels,
        shares=smooth_shares(layout, total + 1.0 / layout.sizes, stddev=deviations),
    )


def _possible(shares: Floats, least: Floats) -> Floats:
    """Raise shares to their least values (C,), and normalise them to a distribution."""
    found = np.maximum(shares, least)
    return np.asarray(found / found.sum())


def label_shares(
    layout: Layout, counts: Counts, counted: Floats, deviation: float
) -> tuple[Floats, Floats]:
    """Estimate the shares of the labels (C,) from their counts and codes, with standard errors.

    If a label had the codes of all patients, its centred counts would be its share times the
    centred one-ways. Weighted least squares on these counts is therefore a second estimate beside
    ``counted``, whose noise is ``deviation``. Its error has two parts. In each column a label's
    codes deviate with the variance of `own_variances`. Over all columns they are more or less
    uneven than those of all patients, with a relative standard deviation of a quarter of the share
    of the other labels (as in fifteen public tables). Both are weighted by inverse variance.
    """
    share, stddev = counts.labels, counts.stddev / counts.patients
    centred = without_means(counts.by_label, layout.offsets) / counts.patients
    uneven, starts = counts.shares - 1.0 / layout.sizes, layout.offsets[:-1]
    own = own_variances(layout, share, centred, stddev=stddev)[:, None]
    variances = stddev**2 + own * (share**2 - share**4 / (share @ share))
    loudness = np.add.reduceat(uneven**2, starts)[:, None] / variances
    weighted = (np.add.reduceat(centred * uneven, starts, axis=1).T / variances).sum(axis=0)
    precision = np.maximum(loudness.sum(axis=0), 1e-12)
    # Shrinkage of the one-ways toward even shares inflates all slopes alike; they sum to one.
    scale = max(float((weighted / precision).sum()), _LEAST_SCALE)
    errors = 1.0 / (precision * scale**2) + (_OWN_EVENNESS * share * (1.0 - share)) ** 2
    both = 1.0 / deviation**2 + 1.0 / errors
    return (counted / deviation**2 + weighted / (precision * scale) / errors) / both, both**-0.5


def own_variances(layout: Layout, labels: Floats, by_label: Floats, *, stddev: float) -> Floats:
    """Variance (d,) by which the codes of a label deviate from those of all, for each column.

    Moment estimates, shrunk to a pooled one. Centred counts (C, W) and noise are in patient shares.
    """
    squared = float(labels @ labels)
    left = by_label - labels[:, None] * by_label.sum(axis=0)
    free = np.asarray(layout.n_codes, dtype=np.float64) - 1.0
    squares = np.add.reduceat((left**2).sum(axis=0), layout.offsets[:-1])
    noise = stddev**2 * (len(labels) * (1.0 + squared) - 2.0)
    excess = (squares - free * noise) / (squared - float((labels**4).sum()) / squared)
    pooled = max(0.0, float(excess.sum() / free.sum()))
    return np.asarray(np.maximum(0.0, (excess + _POOLED_CODES * pooled) / (free + _POOLED_CODES)))


def label_weights(
    layout: Layout, labels: Floats, by_label: Floats, *, stddev: float
) -> tuple[Floats, Floats]:
    """Weights (d, C) of the labels' counts in a column's one-ways, and their precision (d,).

    Counts of a label of share ``a_c`` estimate ``a_c (p + delta_c)``, with the shares p of all and
    the label's own deviation. Where noise exceeds the deviations, mainly large labels estimate p;
    otherwise p is the sum of all. The weights are the best linear ones (Gauss-Markov), given
    ``sum a_c delta_c = 0`` and each column's variance of ``delta`` by `own_variances`. The weighted
    sum estimates p times the precision. Centred counts (C, W) and noise are in patient shares.
    """
    own = own_variances(layout, labels, by_label, stddev=stddev)
    covariance = own[:, None, None] * own_covariance(labels) + stddev**2 * np.eye(len(labels))
    weights = np.linalg.solve(
        covariance, np.broadcast_to(labels[:, None], (len(own), len(labels), 1))
    )
    found: Floats = weights[..., 0].astype(np.float64)
    return found, found @ labels


def own_covariance(labels: Floats) -> Floats:
    """Covariance (C, C) of ``a_c delta_c`` in `label_weights`, where ``delta`` has variance one."""
    return np.asarray(np.diag(labels**2) - np.outer(labels**2, labels**2) / (labels @ labels))


@dataclass(frozen=True, kw_only=True)
class DrawnPairs:
    """A released draw of one-ways and pair tables, in its own units, and its number of patients."""

    choice: PairChoice
    values: Floats
    unit_stddev: float
    patients: float

    @classmethod
    def of(cls, layout: Layout, arrays: Released, noisy: Noisy, *, patients: float) -> Self:
        """Return the draw of a release or of a part of a pool (ValueError for invalid groups)."""
        groups, (norm, one_way) = arrays["code_groups"], arrays["pair_scale"]
        if ((groups < 0) | (groups >= layout.sizes)).any():
            raise ValueError("expected groups of the codes of a column")
        upper = np.triu(arrays["pair_used"], 1).astype(np.bool_)
        choice = PairChoice(
            groups=groups,
            n_groups=tuple((np.maximum.reduceat(groups, layout.offsets[:-1]) + 1).tolist()),
            used=upper | upper.T,
            one_way=float(one_way),
            norm=float(norm),
        )
        values, unit_stddev = noisy(PAIR_TABLES)
        return cls(choice=choice, values=values, unit_stddev=unit_stddev, patients=patients)

    def cells(self, layout: Layout) -> Floats:
        """Return noisy cells (M, M) of pairs of groups, in patients, above the diagonal."""
        cells = pair_cells(self.choice.n_groups, self.choice.used)
        found = np.zeros(cells.shape)
        found[cells] = self.values[layout.width :][: int(cells.sum())] * self.choice.norm
        return found

    @property
    def stddev(self) -> float:
        """Noise of a cell in patients."""
        return self.unit_stddev * self.choice.norm

    @property
    def precision(self) -> float:
        """Root of the inverse variance of a cell's share."""
        return self.patients / self.stddev


def joint_one_ways(layout: Layout, drawn: Sequence[DrawnPairs]) -> tuple[Floats, float]:
    """Add up the centred one-ways (W,) of draws, in patients, with their noise."""
    each = [one.values[: layout.width] * (one.choice.norm / one.choice.one_way) for one in drawn]
    return np.sum(each, axis=0), hypot(*(one.stddev / one.choice.one_way for one in drawn))


@dataclass(frozen=True, kw_only=True)
class _PairTargets:
    """Target tables (M, M) of the fit of the mixture: shares of pairs of groups, symmetric.

    Joins (M, W) say by 0 or 1 which codes are in which group. Rows and columns sum to the one-ways.
    Weights (M, M) are the inverse variance of each share, 0 where nothing was measured.
    """

    joins: Floats
    tables: Floats
    weights: Floats


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Targets of the fit of the mixture: pair tables of each draw, and shares from all draws.

    `share_weight` is the weight of the squared error of a one-way share (W,). Codes by label (C, W)
    are shares as well, of inverse variance `label_weight`; their blocks sum to the shares of the
    labels. `drowned` is the degree, from 0 to 1, to which noise dominates the tables.
    """

    pairs: tuple[_PairTargets, ...]
    shares: Floats
    share_weight: float
    by_label: Floats
    label_weight: float = 0.0
    drowned: float = 0.0


def targets_of(
    layout: Layout, counts: Counts, drawn: Sequence[DrawnPairs], *, drowned: float
) -> Targets:
    """Put pair tables, each of its own patients and noise, onto the estimated one-ways."""
    weight = sum(pairs.precision**2 for pairs in drawn)
    return Targets(
        pairs=tuple(pair_targets(layout, counts.shares, pairs) for pairs in drawn),
        shares=counts.shares,
        by_label=_by_label(layout, counts),
        label_weight=(counts.patients / counts.stddev) ** 2,
        share_weight=max(4.0 * weight, (counts.patients / counts.one_way_stddev) ** 2),
        drowned=drowned,
    )


def pair_targets(layout: Layout, shares: Floats, pairs: DrawnPairs) -> _PairTargets:
    """Return the tables of one draw, whose noisy cells are doubly centred."""
    choice = pairs.choice
    sizes = np.asarray(choice.n_groups)
    width = int(sizes.sum())
    column = np.repeat(np.arange(len(sizes)), sizes)
    row = np.repeat(np.cumsum(sizes) - sizes, layout.n_codes) + choice.groups
    joins = np.zeros((width, layout.width))
    joins[row, np.arange(layout.width)] = 1.0
    tables = pairs.cells(layout) / pairs.patients
    tables += tables.T
    # Rows and columns of a doubly centred table sum to zero; other sums are noise.
    starts = np.cumsum(sizes) - sizes
    for _ in range(2):
        means = np.add.reduceat(tables, starts, axis=1) / sizes
        tables = (tables - means[:, column]).T
    margin, each = joins @ shares, 1.0 / sizes[column]
    tables += np.outer(margin, each) + np.outer(each, margin) - np.outer(each, each)
    measured = choice.used[np.ix_(column, column)]
    return _PairTargets(
        joins=joins,
        tables=np.where(measured, tables, 0.0),
        weights=np.where(measured, pairs.precision**2, 0.0),
    )


def _by_label(layout: Layout, counts: Counts) -> Floats:
    """Joint shares of labels and codes (C, W), with the estimated shares as margins.

    Deviations from independence are scaled by the root of the part of their variance that is not
    noise: posterior means would vary too little, noisy values too much (Louis, JASA 79, 1984).
    """
    stddev = counts.stddev / counts.patients
    centred = without_means(counts.by_label, layout.offsets) / counts.patients
    own = own_variances(layout, counts.labels, centred, stddev=stddev)
    expected = counts.labels[:, None] * counts.shares
    beyond = centred - without_means(expected, layout.offsets)
    # Deviations sum to zero over the labels, and in each block already.
    beyond -= beyond.mean(axis=0)
    variances, directions = np.linalg.eigh(own_covariance(counts.labels))
    true = np.maximum(variances, 0.0)[:, None] * np.repeat(own, layout.n_codes)
    return np.asarray(
        expected + directions @ (np.sqrt(true / (true + stddev**2)) * (directions.T @ beyond))
    )
