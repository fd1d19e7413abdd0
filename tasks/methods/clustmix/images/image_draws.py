"""The draws of ClustMix on images: requests, and exact sums of private rows with their proofs.

Written like `tasks.measurement.statistics`: rows of one shard and public arrays to int64, in units
of ``1 / SUM_SCALE`` where nothing else is said. Whatever meets others in a matrix product is a
whole number before, so that products are exact and a record adds the same in any batch.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from privacy.arrays import Floats, Integers
from tasks.measurement.encoded import EncodedRows, row_slices
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.measurement.statistics import ROOT_SCALE, SECOND_MOMENT_SCALE, SUM_SCALE
from tasks.methods.clustmix.images.image_layout import BRIGHTEST, ImageLayout, basis_of, values
from tasks.methods.clustmix.images.image_rule import (
    CELL_ROUNDS,
    INTENSITY_BINS,
    MOMENT_NORM,
    NORM_BINS,
    ImageRule,
)
from tasks.methods.clustmix.images.scattering import scatter
from tasks.methods.clustmix.images.teacher import FEATURE_NORM, FEATURE_ZERO, Whitening
from tasks.methods.clustmix.tables.table_draws import residual_round

CLASS_SUMS, CLASS_MOMENTS = "class_sums", "class_moments"
NORMS, INTENSITY = "norms", "intensity"

_RESIDUAL_SCALE = 2**18
"""Grid points per unit of a residual."""

RESIDUAL_SUM_SCALE = FEATURE_NORM * _RESIDUAL_SCALE
"""Grid points per unit of the product of a feature and a residual."""

_WEIGHT_SCALE = 2**20
_ROWS_AT_ONCE = 1024


def cell_round(index: int) -> str:
    """Name of the statistic of a round of cells, from 0."""
    return f"cell_round_{index + 1}"


def plan_of(layout: ImageLayout, rule: ImageRule, *, mu: float) -> MeasurementPlan:
    """Plan every draw from public values alone.

    Privacy
    -------
    Reads no data. The sensitivities are those proved beside the sums.
    """
    n, d = layout.n_labels, len(basis_of(replace(layout, frequencies=rule.frequencies)))
    root_two = float(np.sqrt(2.0))
    requests = [
        SumRequest(CLASS_SUMS, (n, 1 + d), share=rule.class_sums, bound=root_two),
        SumRequest(
            CLASS_MOMENTS,
            (n, d * (d + 1) // 2),
            share=rule.class_moments,
            bound=MOMENT_NORM**2 / root_two,
            scale=SECOND_MOMENT_SCALE,
        ),
        *(
            SumRequest(
                cell_round(index), (n, rule.n_cells, 1 + d), share=rule.cells, bound=root_two
            )
            for index in range(CELL_ROUNDS)
        ),
        SumRequest(NORMS, (n, NORM_BINS), share=rule.norms),
        SumRequest(INTENSITY, (INTENSITY_BINS,), share=rule.intensity),
        *(
            SumRequest(
                residual_round(index),
                (rule.directions, n),
                share=rule.residuals,
                bound=rule.residual_norm,
                scale=RESIDUAL_SUM_SCALE,
            )
            for index in range(rule.rounds)
        ),
    ]
    return plan_measurement(requests, mu=mu)


def _blocks(rows: EncodedRows, layout: ImageLayout) -> Iterator[tuple[slice, Floats]]:
    rows.require_inside((), layout.n_labels)
    for part in row_slices(len(rows), _ROWS_AT_ONCE):
        yield part, layout.pixels(rows.codes[part])


def _counted(vectors: Floats, weight: Floats) -> Floats:
    """One before each vector, times the weight of the row, truncated to the grid."""
    both = np.concatenate([np.ones((len(vectors), 1)), vectors], axis=1)
    return np.asarray(np.trunc(both * (weight[:, None] * SUM_SCALE)))


def class_sums(rows: EncodedRows, *, layout: ImageLayout) -> Integers:
    """Weighted sums (C, 1 + d) of (1, u) of each label, u an image's coefficients, of norm one.

    Privacy
    -------
    Adjacency: add or remove one patient. A row adds ``w (1, u)``, of norm at most ``w sqrt(2)``, to
    its label; the weights of a patient sum to at most one: sensitivity ``sqrt(2)``. Event: one
    discrete Gaussian.
    """
    basis = basis_of(layout)
    total = np.zeros((layout.n_labels, 1 + len(basis)))
    for part, images in _blocks(rows, layout):
        amount = _counted(basis.vectors(images), rows.weight[part])
        for label in range(layout.n_labels):
            total[label] += amount[rows.label[part] == label].sum(axis=0)
    return total.astype(np.int64)


def class_moments(rows: EncodedRows, *, layout: ImageLayout, means: Floats) -> Integers:
    """Weighted second moments of each label about its released mean, as upper triangles.

    With ``z = u - mean`` of the label, shortened to `MOMENT_NORM`, the entries are ``z_i z_j`` for
    i < j and ``z_i**2 / sqrt(2)``. The means are (C, d); the result (C, d (d + 1) / 2) is in units
    of ``1 / SECOND_MOMENT_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. With ``psi = trunc(sqrt(w) z ROOT_SCALE)`` a row adds
    ``psi_i psi_j`` and ``trunc(psi_i**2 / sqrt(2))``. The squares of these sum to at most
    ``|psi|**4 / 2``, as ``|psi|**4 = sum psi_i**4 + 2 sum_{i<j} psi_i**2 psi_j**2``; the norm is at
    most ``w MOMENT_NORM**2 / sqrt(2)`` times the scale, and the weights of a patient sum to at most
    one. Event: one discrete Gaussian.
    """
    basis = basis_of(layout)
    d = len(basis)
    upper = np.triu_indices(d)
    diagonal = np.flatnonzero(upper[0] == upper[1])
    total = np.zeros((layout.n_labels, len(upper[0])), dtype=np.int64)
    for part, images in _blocks(rows, layout):
        label = rows.label[part]
        apart = basis.vectors(images) - means[label]
        norms = np.sqrt((apart * apart).sum(axis=1))
        shortened = np.sqrt(rows.weight[part]) * MOMENT_NORM / np.maximum(norms, MOMENT_NORM)
        psi = np.trunc(apart * (ROOT_SCALE * shortened)[:, None])
        squares = np.trunc(psi * psi / np.sqrt(2.0))
        for index in np.unique(label):
            own = label == index
            moment = (psi[own].T @ psi[own])[upper]
            moment[diagonal] = squares[own].sum(axis=0)
            total[index] += moment.astype(np.int64)
    return total


def cell_sums(
    rows: EncodedRows, *, layout: ImageLayout, directions: Floats, centres: Floats
) -> Integers:
    """Weighted sums of (1, u) of each label and cell: that of the nearest released centre.

    Distances are in released directions (d, r), to centres (C, K, r). The result is (C, K, 1 + d).

    Privacy
    -------
    Adjacency: add or remove one patient. The cell of a row is a function of that row and of
    released values; the row adds ``w (1, u)`` to it: sensitivity ``sqrt(2)`` as in `class_sums`,
    in whichever cells the rows of a patient fall. Event: one discrete Gaussian.
    """
    basis = basis_of(layout)
    n_cells = centres.shape[1]
    total = np.zeros((layout.n_labels, n_cells, 1 + len(basis)))
    for part, images in _blocks(rows, layout):
        label, vectors = rows.label[part], basis.vectors(images)
        amount = _counted(vectors, rows.weight[part])
        # Line by line: a matrix product would round a record by those beside it.
        coordinates = np.stack([(vectors * line).sum(axis=1) for line in directions.T], axis=1)
        apart = coordinates[:, None] - centres[label]
        cell = (apart * apart).sum(axis=2).argmin(axis=1)
        place = label.astype(np.int64) * n_cells + cell
        for index in np.unique(place):
            total.reshape(-1, 1 + len(basis))[index] += amount[place == index].sum(axis=0)
    return total.astype(np.int64)


def norms(rows: EncodedRows, *, layout: ImageLayout) -> Integers:
    """Weighted counts (C, bins) of images by label and root mean square of their pixels.

    Privacy
    -------
    Adjacency: add or remove one patient. A row adds its weight to one entry, and the weights of a
    patient sum to at most one: sensitivity 1. Event: one discrete Gaussian.
    """
    total = np.zeros((layout.n_labels, NORM_BINS))
    for part, images in _blocks(rows, layout):
        amount = np.trunc(rows.weight[part] * SUM_SCALE)
        place = rows.label[part].astype(np.int64) * NORM_BINS + norm_bins(images)
        total += np.bincount(place, weights=amount, minlength=total.size).reshape(total.shape)
    return total.astype(np.int64)


def norm_bins(images: NDArray[Any]) -> Integers:
    """Bins (n,) of the root mean square of the `values` of images (n, channels, height, width)."""
    flat = values(images).reshape(len(images), -1).astype(np.float64)
    brightness = np.sqrt((flat * flat).sum(axis=1) / flat.shape[1]) / BRIGHTEST
    return np.asarray(np.minimum((brightness * NORM_BINS).astype(np.int64), NORM_BINS - 1))


def intensity(rows: EncodedRows, *, layout: ImageLayout) -> Integers:
    """Weighted sum (bins,) of the shares of pixels in each bin of brightness.

    Privacy
    -------
    Adjacency: add or remove one patient. The shares of an image sum to one, so that a row adds a
    vector of norm at most its weight: sensitivity 1. Event: one discrete Gaussian.
    """
    total = np.zeros(INTENSITY_BINS)
    for part, images in _blocks(rows, layout):
        amount = shares_of_pixels(images) * (rows.weight[part][:, None] * SUM_SCALE)
        total += np.trunc(amount).sum(axis=0)
    return total.astype(np.int64)


def shares_of_pixels(images: NDArray[Any]) -> Floats:
    """Shares (n, bins) of the pixels of each image in equal bins of their `values`."""
    flat = values(images).reshape(len(images), -1)
    bins = np.floor(flat * (INTENSITY_BINS / (BRIGHTEST + 1))).astype(np.int64)
    place = np.arange(len(flat))[:, None] * INTENSITY_BINS + bins
    counts = np.bincount(place.ravel(), minlength=len(flat) * INTENSITY_BINS)
    return np.asarray(counts.reshape(len(flat), -1) / flat.shape[1])


def with_features(rows: EncodedRows, *, layout: ImageLayout, whitening: Whitening) -> EncodedRows:
    """Rows with whitened features, whole numbers of norm at most ``FEATURE_NORM``, as their codes.

    Privacy
    -------
    A map of each record by itself, which depends on released values; the result is private.
    """
    found = np.empty((len(rows), len(whitening.scales)), dtype=np.uint16)
    # Products are exact with any number of threads; small ones are fastest with one.
    with threadpool_limits(1, user_api="blas"):
        for part, images in _blocks(rows, layout):
            found[part] = whitening.features(scatter(images)) + FEATURE_ZERO
    return replace(rows, codes=found)


def residuals(rows: EncodedRows, *, weights: Floats, residual_norm: float) -> Integers:
    """Weighted sums of features times the residual of a released teacher.

    A row of `with_features` has features ``phi`` of norm at most one and the residual ``p - e_y``,
    ``p`` the probabilities of the teacher with weights (k, C), shortened to `residual_norm`. The
    result (k, C) is in units of ``1 / RESIDUAL_SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. With the whole numbers ``u`` of norm at most
    ``FEATURE_NORM`` and ``v = trunc(2^18 w r)`` of norm at most ``2^18 w residual_norm`` a row adds
    ``u v'``, of norm ``|u| |v|``. The weights of a patient sum to at most one: sensitivity
    `residual_norm` given the released teacher. Event: one discrete Gaussian, composed adaptively.
    """
    total = np.zeros(weights.shape, dtype=np.int64)
    # Whole numbers, so that the product with features is exact: its partial sums are below 2**53.
    whole = np.rint(np.clip(weights * _WEIGHT_SCALE, -(2.0**36), 2.0**36))
    for part in map(rows.only, row_slices(len(rows), _ROWS_AT_ONCE)):
        features = part.codes.astype(np.float64) - FEATURE_ZERO
        residual = softmax(features @ whole / (FEATURE_NORM * _WEIGHT_SCALE), axis=1)
        residual[np.arange(len(residual)), part.label] -= 1.0
        size = np.sqrt((residual * residual).sum(axis=1))
        scale = part.weight * _RESIDUAL_SCALE * residual_norm / np.maximum(size, residual_norm)
        total += (features.T @ np.trunc(residual * scale[:, None])).astype(np.int64)
    return total
