"""What the released counts say: one least-squares estimate of everything that counts codes.

Post-processing throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.centred import (
    blocks_to_simplex,
    centred_norm,
    counts_of,
    without_means,
)
from tasks.synthesizers.clustmix.tables.draws import pair_cells
from tasks.synthesizers.clustmix.tables.layout import Layout
from tasks.synthesizers.clustmix.tables.rule import PairChoice

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Estimated numbers of patients, at least 1, by label and code (C, W), with noise.

    Every block of ``by_label`` sums to the size of the label. `stddev` is of one of its entries,
    `one_way_stddev` of one code's number over all labels. Shares of labels (C,) are each above 0,
    and every block of the shares of codes (W,) is a distribution.
    """

    by_label: Array
    stddev: float
    one_way_stddev: float
    patients: float
    labels: Array
    shares: Array


def first_counts(layout: Layout, noisy: Array, *, unit_stddev: float) -> Counts:
    """Return the counts of the first draw, of noisy label counts (C, 1 + W)."""
    sizes, by_label = counts_of(noisy, layout.n_codes)
    stddev = unit_stddev * centred_norm(layout.n_codes)
    return _counts(layout, sizes, by_label, stddev, stddev * np.sqrt(layout.n_labels))


def better_counts(
    layout: Layout, first: Counts, one_ways: Array, *, one_way_stddev: float
) -> Counts:
    """Combine the first draw with the one-ways measured beside the pair tables.

    The sum over labels is the mean of both by inverse variance. What it moves is shared equally by
    the labels, whose counts have equal noise: the least-squares estimate of all of them.

    The one-ways (W,) are centred, in patients.
    """
    sizes = first.by_label[:, layout.block(0)].sum(axis=1)
    total = first.by_label.sum(axis=0)
    mine = without_means(total, layout.offsets)
    theirs = without_means(one_ways, layout.offsets)
    weights = 1.0 / first.one_way_stddev**2, 1.0 / one_way_stddev**2
    moved = (theirs - mine) * weights[1] / sum(weights)
    by_label = first.by_label + moved / layout.n_labels
    return _counts(layout, sizes, by_label, first.stddev, sum(weights) ** -0.5)


def _counts(
    layout: Layout, sizes: Array, by_label: Array, stddev: float, one_way_stddev: float
) -> Counts:
    patients = max(float(sizes.sum()), 1.0)
    # A label that noise has lost keeps what the noise allows: half a standard deviation.
    labels = np.maximum(sizes, 0.5 * stddev)
    return Counts(
        by_label=by_label,
        stddev=stddev,
        one_way_stddev=float(one_way_stddev),
        patients=patients,
        labels=labels / labels.sum(),
        shares=blocks_to_simplex(by_label.sum(axis=0) / patients, layout.offsets),
    )


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What the mixture is fitted to.

    Joins (M, W) say by 0 or 1 which codes are in which group. The tables (M, M) are shares of pairs
    of groups, symmetric; rows and columns sum to the one-ways. Weights (M, M) are the inverse
    variance of each share, 0 where nothing was measured; `share_weight` is that of the squared
    error of a one-way share (W,).
    """

    joins: Array
    tables: Array
    weights: Array
    shares: Array
    share_weight: float


def targets_of(
    layout: Layout, choice: PairChoice, counts: Counts, noisy: Array, *, stddev: float
) -> Targets:
    """Put pair tables onto the estimated one-ways.

    The noisy cells of the chosen pairs are doubly centred, in patients.
    """
    sizes = np.asarray(choice.n_groups)
    width = int(sizes.sum())
    column = np.repeat(np.arange(len(sizes)), sizes)
    row = np.repeat(np.cumsum(sizes) - sizes, layout.n_codes) + choice.groups
    joins = np.zeros((width, layout.width))
    joins[row, np.arange(layout.width)] = 1.0
    tables = np.zeros((width, width))
    cells = pair_cells(choice.n_groups, choice.used)
    tables[cells] = noisy[: int(cells.sum())] / counts.patients
    tables += tables.T
    # Rows and columns of a doubly centred table sum to zero; what they sum to is noise.
    starts = np.cumsum(sizes) - sizes
    for _ in range(2):
        means = np.add.reduceat(tables, starts, axis=1) / sizes
        tables = (tables - means[:, column]).T
    margin, each = joins @ counts.shares, 1.0 / sizes[column]
    tables += np.outer(margin, each) + np.outer(each, margin) - np.outer(each, each)
    measured = choice.used[np.ix_(column, column)]
    weight = (counts.patients / stddev) ** 2
    return Targets(
        joins=joins,
        tables=np.where(measured, tables, 0.0),
        weights=np.where(measured, weight, 0.0),
        shares=counts.shares,
        share_weight=max(4.0 * weight, (counts.patients / counts.one_way_stddev) ** 2),
    )
