"""Inner products of what a statistic showed with the vector of every canary.

The vector of a canary is what a contribution function makes of its one row. That is the reference,
and it is what a method's other statistics are projected by. For the statistics of the histograms,
moments and residuals, of tables and of images, the same inner products are formulas, as fast for
20,000 canaries as for one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Integers
from tasks.measurement.centred import (
    Clusters,
    centred_norm,
    count_factor,
    label_counts,
    measured_codes,
)
from tasks.measurement.curator import Contribution, exact_sum, in_memory
from tasks.measurement.encoded import EncodedRows, row_slices
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.clustmix.images import image_draws
from tasks.methods.clustmix.images.coefficients import Basis
from tasks.methods.clustmix.images.image_layout import ImageLayout
from tasks.methods.clustmix.tables import table_draws as draws

Projection = tuple[Floats, Floats]
"""Inner product with the direction, and squared norm, of the vector of each row."""


def project(
    contribution: Contribution, public: dict[str, Any], rows: EncodedRows, direction: Floats
) -> Projection:
    """Project a direction on the vector of every row, a patient each, in squared grid points."""
    formula = _FORMULAS.get(contribution)
    if formula is None:
        return project_one_by_one(contribution, public, rows, direction)
    parts = [formula(rows.only(part), direction, **public) for part in row_slices(len(rows))]
    inner, squared_norm = zip(*parts, strict=True)
    return np.concatenate(inner), np.concatenate(squared_norm)


def project_one_by_one(
    contribution: Contribution, public: dict[str, Any], rows: EncodedRows, direction: Floats
) -> Projection:
    """As `project`, by the contribution function alone."""
    flat = direction.reshape(-1)
    inner, squared_norm = np.zeros((2, len(rows)))
    for i in range(len(rows)):
        one = in_memory([rows.only(slice(i, i + 1))])
        vector = exact_sum(contribution, public, one)
        values = vector.reshape(-1).astype(np.float64)
        inner[i], squared_norm[i] = values @ flat, values @ values
    return inner, squared_norm


def _label_counts(
    rows: EncodedRows,
    direction: Floats,
    *,
    n_codes: tuple[int, ...],
    n_labels: int,
    n_visits: int = 0,
    clustering: Clusters | None = None,
) -> Projection:
    line = rows.label.astype(np.intp)
    if clustering is not None:
        line = line * clustering.n_clusters + clustering.assign(rows.codes, rows.label)
    inner = count_factor(n_codes) * direction[line, 0] + _centred(
        measured_codes(rows, n_visits), n_codes, direction[:, 1:], line
    )
    amount = rows.weight * (SUM_SCALE / centred_norm(n_codes))
    return amount * inner, (rows.weight * SUM_SCALE) ** 2


def _centred(
    codes: Integers, n_codes: tuple[int, ...], direction: Floats, line: NDArray[Any]
) -> Floats:
    """Inner products of centred one-hot codes with a line of a direction for each row."""
    inner, start = np.zeros(len(codes)), 0
    for column, k in enumerate(n_codes):
        block = direction[:, start : start + k]
        inner += (block - block.mean(axis=1, keepdims=True))[line, codes[:, column]]
        start += k
    return inner


def _pair_tables(
    rows: EncodedRows,
    direction: Floats,
    *,
    n_codes: tuple[int, ...],
    n_visits: int,
    groups: Integers,
    n_groups: tuple[int, ...],
    used: NDArray[np.bool_],
    one_way: float,
    norm: float,
    length: int,
) -> Projection:
    codes, width = measured_codes(rows, n_visits), int(sum(n_codes))
    everybody = np.zeros(len(rows), dtype=np.intp)
    inner = one_way * _centred(codes, n_codes, direction[None, :width], everybody)
    joined = groups[np.cumsum(n_codes) - n_codes + codes]
    starts = np.cumsum(n_groups) - n_groups
    cells = draws.pair_cells(n_groups, used)
    table = np.zeros(cells.shape)
    table[cells] = direction[width : width + int(cells.sum())]
    squared = one_way**2 * sum(1.0 - 1.0 / k for k in n_codes)
    for i, j in zip(*np.nonzero(np.triu(used, 1)), strict=True):
        block = table[starts[i] : starts[i] + n_groups[i], starts[j] : starts[j] + n_groups[j]]
        block = block - block.mean(axis=0) - block.mean(axis=1, keepdims=True) + block.mean()
        inner += block[joined[:, i], joined[:, j]]
        squared += (1.0 - 1.0 / n_groups[i]) * (1.0 - 1.0 / n_groups[j])
    amount = rows.weight * SUM_SCALE / norm
    return amount * inner, amount**2 * squared


def _weighted_residuals(
    rows: EncodedRows,
    direction: Floats,
    *,
    features: tuple[Floats, ...],
    constant: float,
    log_odds: Floats,
    intercepts: Floats,
) -> Projection:
    ones = draws.one_hot(rows.codes, features)
    found = draws.probabilities_of(ones, log_odds, intercepts)
    norms = draws.row_norms(ones, features, constant)
    residual = np.eye(found.shape[1])[rows.label] - found
    residual *= (rows.weight * draws.residual_weights(found) / np.maximum(1.0, norms))[:, None]
    residual *= draws.RESIDUAL_SUM_SCALE
    phi = [np.full((len(rows), 1), constant)]
    phi += [table[rows.codes[:, column]] for column, table in enumerate(features)]
    inner = ((np.concatenate(phi, axis=1) @ direction) * residual).sum(axis=1)
    return inner, norms**2 * (residual**2).sum(axis=1)


def _of_vectors(vectors: Floats, direction: Floats, weight: Floats) -> Projection:
    """Of vectors (n, v) of the rows, with the part (n, v) of the direction where each is added."""
    amount = weight * SUM_SCALE
    return amount * (vectors * direction).sum(axis=1), amount**2 * (vectors**2).sum(axis=1)


def _counted(rows: EncodedRows, layout: ImageLayout) -> Floats:
    vectors = Basis.of(layout).vectors(layout.pixels(rows.codes))
    return np.concatenate([np.ones((len(rows), 1)), vectors], axis=1)


def _class_sums(rows: EncodedRows, direction: Floats, *, layout: ImageLayout) -> Projection:
    return _of_vectors(_counted(rows, layout), direction[rows.label], rows.weight)


def _cell_sums(
    rows: EncodedRows, direction: Floats, *, layout: ImageLayout, **public: Floats
) -> Projection:
    counted = _counted(rows, layout)
    cell = image_draws.nearest_cells(counted[:, 1:], rows.label, **public)
    return _of_vectors(counted, direction[rows.label, cell], rows.weight)


def _class_moments(
    rows: EncodedRows, direction: Floats, *, layout: ImageLayout, means: Floats
) -> Projection:
    vectors = _counted(rows, layout)[:, 1:]
    psi = image_draws.moment_factors(vectors, rows.weight, means[rows.label])
    upper, inner = np.triu_indices(psi.shape[1]), np.zeros(len(rows))
    for label in np.unique(rows.label):
        form, own = np.zeros((psi.shape[1],) * 2), rows.label == label
        form[upper] = direction[label]
        np.fill_diagonal(form, np.diagonal(form) / np.sqrt(2.0))
        inner[own] = ((psi[own] @ form) * psi[own]).sum(axis=1)
    return inner, (psi**2).sum(axis=1) ** 2 / 2.0


def _norms(rows: EncodedRows, direction: Floats, *, layout: ImageLayout) -> Projection:
    bins = image_draws.norm_bins(layout.pixels(rows.codes))
    return _of_vectors(np.ones((len(rows), 1)), direction[rows.label, bins][:, None], rows.weight)


def _intensity(rows: EncodedRows, direction: Floats, *, layout: ImageLayout) -> Projection:
    shares = image_draws.shares_of_pixels(layout.pixels(rows.codes))
    return _of_vectors(shares, direction, rows.weight)


def _residuals(
    rows: EncodedRows, direction: Floats, *, weights: Floats, residual_norm: float
) -> Projection:
    features, residual = image_draws.residual_factors(rows, weights, residual_norm)
    inner = ((features @ direction) * residual).sum(axis=1)
    return inner, (features**2).sum(axis=1) * (residual**2).sum(axis=1)


_FORMULAS: dict[Contribution, Callable[..., Projection]] = {
    label_counts: _label_counts,
    draws.pair_tables: _pair_tables,
    draws.weighted_residuals: _weighted_residuals,
    image_draws.class_sums: _class_sums,
    image_draws.class_moments: _class_moments,
    image_draws.cell_sums: _cell_sums,
    image_draws.norms: _norms,
    image_draws.intensity: _intensity,
    image_draws.residuals: _residuals,
}
"""Sums are not truncated to their grid, of 2**-24 of a patient, which nobody would see."""
