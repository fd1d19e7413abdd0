"""Interactions of two columns: products of their coordinates.

A number has one coordinate, its standardised bin, and a column of levels has the standardised
indicators of its largest ones. Products of two coordinates represent labels that depend on two
columns jointly and on neither alone, such as an exclusive or: the second order of the ANOVA
decomposition (Stitson and others, "Support vector ANOVA decomposition", 1997).

Coordinates are whole numbers whose products float64 holds exactly, so that those of a record are
the same in any batch. Released values determine the chosen products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from privacy.arrays import Floats, Integers
from tasks.methods.clustmix.records.table_layout import Layout

_UNIT, _WIDEST = 2**10, 3.0
"""Grid points of a standard deviation, and the farthest coordinate in standard deviations."""

_MOST_LEVELS = 3
_LEAST_VARIANCE, _LEAST_SPREAD = 0.01, 0.2
_EVERYWHERE = 0.1
"""Part of the mean association with the label that is added to that of each column."""


def n_coordinates(layout: Layout) -> Integers:
    """Return the number of coordinates of each declared column (d,), known before a row is read."""
    levels = np.minimum(np.asarray(layout.n_codes) - 1, _MOST_LEVELS)
    return np.where(layout.numeric, 1, levels)[: layout.n_declared]


def n_products(layout: Layout) -> int:
    """Return the number of products of coordinates of two different columns."""
    sizes = n_coordinates(layout)
    return int(sizes.sum() ** 2 - (sizes**2).sum()) // 2


def coordinates(layout: Layout, shares: Floats) -> Floats:
    """Coordinates (W', E) of the codes of declared columns, whole numbers, by their shares (W,)."""
    blocks = []
    for column, size in enumerate(n_coordinates(layout)):
        share = shares[layout.block(column)]
        if layout.numeric[column]:
            known = np.arange(len(share)) < len(share) - layout.has_missing[column]
            place = np.arange(len(share)) - np.average(np.arange(len(share)), weights=share * known)
            found = (place * known)[:, None]
        else:
            largest = np.argsort(-share, kind="stable")[:size]
            found = np.eye(len(share))[:, largest] - share[largest]
        spread = np.sqrt(np.maximum(share @ found**2, _LEAST_VARIANCE))
        blocks.append(np.rint(_UNIT * np.clip(found / spread, -_WIDEST, _WIDEST)))
    return np.asarray(block_diag(*blocks))


def chosen_products(layout: Layout, association: Floats, most: int) -> Integers:
    """Choose up to `most` pairs (Q, 2) of coordinates, by the association (d,) of both columns."""
    column = np.repeat(np.arange(layout.n_declared), n_coordinates(layout))
    left, right = np.triu_indices(len(column), 1)
    apart = column[left] != column[right]
    pairs = np.column_stack([left, right])[apart]
    likely = association + _EVERYWHERE * association.mean()
    order = np.argsort(-likely[column[pairs]].prod(axis=1), kind="stable")
    return np.asarray(pairs[order[:most]])


def products_of(
    layout: Layout, coordinates: Floats, products: Integers, codes: NDArray[Any]
) -> Floats:
    """Products (n, Q) of the coordinates of records (n, d): whole numbers."""
    found = np.zeros((len(codes), coordinates.shape[1]))
    for column in range(layout.n_declared):
        found += coordinates[layout.block(column)][codes[:, column]]
    return np.asarray(found[:, products[:, 0]] * found[:, products[:, 1]])


def spreads_of(made: Floats) -> Floats:
    """Root mean squares (Q,) of products over released records, at least a fifth of a unit."""
    return np.asarray(np.maximum(np.sqrt((made**2).mean(axis=0)), _LEAST_SPREAD * _UNIT**2))
