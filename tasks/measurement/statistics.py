"""Every exact statistic of private rows that a proven method may release, and its sensitivity.

These functions are the only ones in the proven analyses that see encoded private rows. Each maps
the rows of one shard and public arrays to an int64 array; shards are added up exactly, in any
order, and noise is added once to the total by the curator. The result of a shard is private.

Fixed point: a record's vector is truncated toward zero on an integer grid before it is added,
so a coordinate can only shrink and the stated bound survives. Partial sums of integers below
2**53 are exact in float64, which lets BLAS add them up. Before truncation a record is rounded by
itself: BLAS, which rounds a row by where it lies among others, sees no vector of a record.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from privacy.arrays import Floats, Integers
from privacy.sensitivity import ROOT_GRID_BITS, SUM_GRID_BITS
from tasks.measurement.cells import Cells
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.features import FeatureMap

SUM_SCALE = 2**SUM_GRID_BITS
"""Grid points per unit of a weighted sum."""

ROOT_SCALE = 2**ROOT_GRID_BITS
"""Grid points per unit of the weighted features whose products make a second moment."""

SECOND_MOMENT_SCALE = ROOT_SCALE**2
"""Grid points per unit of a second moment."""

_ROWS_AT_ONCE = 256
"""Rows expanded to features at a time: few enough for the cache; does not change the sum."""


def _blocks(rows: EncodedRows) -> Iterator[slice]:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        yield slice(start, start + _ROWS_AT_ONCE)


def _grid(values: Floats) -> Floats:
    """Truncate toward zero, kept in float64: integers below 2**53 are exact there."""
    return np.trunc(values)


def cell_histograms(rows: EncodedRows, *, cells: Cells, offsets: Integers) -> Any:
    """Weighted one-hot sums (n_labels, n_cells, one_hot_width) in units of ``1 / SUM_SCALE``.

    The cell of a record depends on that record alone; offsets are the starts, (d + 1,), of each
    column's block in a one-hot row.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * onehot / sqrt(d)``, of norm at
    most its weight, to one cell; the weights of a patient sum to at most one; so the Euclidean
    sensitivity is 1 (``SUM_SCALE`` grid points), also when the patient's records fall into
    different cells. Event: one discrete Gaussian.
    """
    n_columns, width = rows.codes.shape[1], int(offsets[-1])
    if (rows.codes >= np.diff(offsets)).any() or (rows.label >= cells.n_labels).any():
        # Such a code would be counted in another column, with one that is there already.
        raise ValueError("expected codes and labels inside the public domain, found one outside")
    amount = _grid(rows.weight / np.sqrt(n_columns) * SUM_SCALE)
    cell = rows.label.astype(np.int64) * cells.n_cells + cells.assign(rows.codes, rows.label)
    size = cells.n_labels * cells.n_cells * width
    total = np.zeros(size)
    for column in range(n_columns):
        index = cell * width + offsets[column] + rows.codes[:, column]
        total += np.bincount(index, weights=amount, minlength=size)
    return total.astype(np.int64).reshape(cells.n_labels, cells.n_cells, width)


def second_moments(rows: EncodedRows, *, feature_map: FeatureMap, validation_fold: int) -> Any:
    """Upper triangles (2, m * (m + 1) / 2) of the second moments of the features.

    In units of ``1 / SECOND_MOMENT_SCALE``; row 0: patients outside ``validation_fold``; row 1:
    patients inside it.

    Privacy
    -------
    Adjacency: add or remove one patient. With ``psi = trunc(sqrt(weight) phi * ROOT_SCALE)`` a
    patient adds ``sum psi psi^T`` of Frobenius norm at most ``ROOT_SCALE**2``, to one of the two
    rows only, because the fold is a function of the patient. The upper triangle with the diagonal
    has norm at most ``sqrt((1 + f) / 2)`` of that, where f bounds the sum of fourth powers of phi
    (`FeatureMap.max_fourth_power_sum`); see ``privacy.sensitivity``. Event: one discrete
    Gaussian.
    """
    m = feature_map.n_features
    upper = np.triu_indices(m)
    total = np.zeros((2, len(upper[0])), dtype=np.int64)
    for block in _blocks(rows):
        phi = feature_map.phi(rows.codes[block])
        psi = _grid(np.sqrt(rows.weight[block])[:, None] * phi * ROOT_SCALE)
        held_out = rows.fold[block] == validation_fold
        for part, member in enumerate((~held_out, held_out)):
            moment = psi[member].T @ psi[member]
            total[part] += moment[upper].astype(np.int64)
    return total


def feature_label_sums(rows: EncodedRows, *, feature_map: FeatureMap, **public: int) -> Any:
    """Weighted sums of the features of each label, training and validation patients.

    Of shape (2, m, n_labels), in units of ``1 / SUM_SCALE``. Beside the rows and the feature map
    the arguments are ``validation_fold`` and ``n_labels``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * phi`` to the column of its
    label, of norm at most its weight: sensitivity 1 (``SUM_SCALE`` grid points). Event: one
    discrete Gaussian.
    """
    n_labels = public["n_labels"]
    total = np.zeros((2, feature_map.n_features, n_labels), dtype=np.int64)
    for block in _blocks(rows):
        phi = feature_map.phi(rows.codes[block])
        amount = _grid(rows.weight[block][:, None] * phi * SUM_SCALE)
        indicator = np.eye(n_labels)[rows.label[block]]
        held_out = rows.fold[block] == public["validation_fold"]
        for part, member in enumerate((~held_out, held_out)):
            total[part] += (amount[member].T @ indicator[member]).astype(np.int64)
    return total


def residual_moments(
    rows: EncodedRows, *, feature_map: FeatureMap, weights: Floats, log_prior: Floats
) -> Any:
    """Weighted sums of features times the residual of a released label model.

    The residual of a record is its one-hot label minus the model's probabilities; the sum is the
    gradient of the multinomial log-likelihood of the private rows at the released model.

    The label model has weights (m, n_labels) and a log prior (n_labels,); the result has the shape
    of the weights, in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. ``||phi|| <= 1`` and the residual, a difference of two
    probability vectors, has norm at most sqrt(2); so the sensitivity is sqrt(2) given the released
    model. Event: one discrete Gaussian, composed adaptively.
    """
    total = np.zeros(weights.shape, dtype=np.int64)
    for block in _blocks(rows):
        phi = feature_map.phi(rows.codes[block])
        probabilities = softmax(logits_by_record(phi, weights) + log_prior)
        residual = np.eye(weights.shape[1])[rows.label[block]] - probabilities
        residual *= rows.weight[block][:, None] * SUM_SCALE
        for label in range(weights.shape[1]):
            total[:, label] += _grid(phi * residual[:, label : label + 1]).sum(0).astype(np.int64)
    return total


def logits_by_record(phi: Floats, weights: Floats) -> Floats:
    """Return ``phi @ weights`` of shape (n, C), each row rounded without regard to the others."""
    logits = np.empty((len(phi), weights.shape[1]))
    for label in range(weights.shape[1]):
        logits[:, label] = (phi * weights[:, label]).sum(axis=1)
    return logits


def softmax(logits: Floats) -> Floats:
    """Row-wise softmax of an array of shape (n, C), stable for large logits."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


def symmetric_from_upper(upper: Floats, *, size: int) -> Floats:
    """Symmetric matrices of shape (..., size, size) from their upper triangles."""
    rows, columns = np.triu_indices(size)
    matrix = np.zeros((*upper.shape[:-1], size, size))
    matrix[..., rows, columns] = upper
    matrix[..., columns, rows] = upper
    return matrix


def patient_count(rows: EncodedRows) -> Integers:
    """Sum of the weights (1,), the number of patients, in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. Sensitivity 1 (``SUM_SCALE`` grid points). Event: one
    discrete Gaussian.
    """
    return np.array([np.trunc(rows.weight * SUM_SCALE).astype(np.int64).sum()], dtype=np.int64)


def class_counts(rows: EncodedRows, *, n_labels: int) -> Integers:
    """Weighted number of patients of each label (n_labels,), in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds its weight to one entry, and the weights of
    a patient sum to at most one: sensitivity 1 (``SUM_SCALE`` grid points), attained by a patient
    of one label. Event: one discrete Gaussian.
    """
    if (rows.label >= n_labels).any():
        raise ValueError("expected labels inside the public domain, found one outside")
    amount = np.trunc(rows.weight * SUM_SCALE)
    return np.bincount(rows.label, weights=amount, minlength=n_labels).astype(np.int64)
