"""Noisy histograms to probabilities: thresholds and shrinkage. Post-processing throughout.

A one-hot row is d blocks side by side, one per column. Functions here work on the last axis.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Integers


def sizes_of(histograms: Floats, offsets: Integers) -> Floats:
    """Noisy number of patients of each histogram, maybe negative: the mean over its columns."""
    return np.asarray(np.add.reduceat(histograms, offsets[:-1], axis=-1).mean(axis=-1))


def to_marginals(histograms: Floats, offsets: Integers, *, noise_stddev: float) -> Floats:
    """Probabilities of each column, with entries below one noise standard deviation set to zero.

    Without the threshold, clipping negative noise at zero would give every rare code a share. A
    column with nothing left is uniform. Histograms are (..., one_hot_width), offsets (d + 1,); the
    noise is that of one entry. Every block of the result is non-negative and sums to one.
    """
    kept = np.where(histograms < noise_stddev, 0.0, histograms)
    uniform = np.repeat(1.0 / np.diff(offsets), np.diff(offsets))
    return _normalised(kept, uniform, offsets)


def shrink_toward(
    histograms: Floats, target: Floats, offsets: Integers, *, noise_stddev: float
) -> Floats:
    """Probabilities of each column, shrunk toward a better known target.

    Positive-part James-Stein per column: the noisy histogram keeps the share of its distance from
    the target that noise does not explain. A histogram that is all noise becomes the target, so a
    finer division of the table does no harm. Histograms are noisy counts, the target probabilities
    of the same columns in a larger group, broadcast to them; the rest is as in `to_marginals`.
    """
    sizes = np.maximum(sizes_of(histograms, offsets), 0.0)[..., None]
    expected = sizes * target
    difference = histograms - expected
    distance = np.add.reduceat(difference**2, offsets[:-1], axis=-1)
    # James-Stein in w dimensions subtracts (w - 2) variances; at least one where w is small.
    explained = np.maximum(np.diff(offsets) - 2.0, 1.0) * noise_stddev**2
    kept = 1.0 - np.divide(
        explained, distance, out=np.ones_like(distance), where=distance > explained
    )
    kept = np.repeat(kept, np.diff(offsets), axis=-1)
    estimate = np.maximum(expected + kept * difference, 0.0)
    # A code that the larger group does not have at all stays out.
    return _normalised(np.where(target > 0.0, estimate, 0.0), target, offsets)


def _normalised(values: Floats, empty: Floats, offsets: Integers) -> Floats:
    """Divide each block by its sum; one of zeros becomes that of `empty`."""
    sums = np.add.reduceat(values, offsets[:-1], axis=-1)
    totals = np.repeat(sums, np.diff(offsets), axis=-1)
    return np.where(totals > 0.0, values / np.where(totals > 0.0, totals, 1.0), empty)


def draw_codes(marginals: Floats, n: int, rng: np.random.Generator) -> Codes:
    """Draw ``n`` codes by inversion, from one column's probabilities (w,) or (n, w)."""
    cumulative = np.cumsum(marginals, axis=-1)
    uniform = rng.random(n) * cumulative[..., -1]
    if marginals.ndim == 1:
        codes = np.searchsorted(cumulative, uniform, side="right")
    else:
        codes = (cumulative <= uniform[:, None]).sum(axis=1)
    return np.asarray(np.minimum(codes, marginals.shape[-1] - 1), dtype=np.uint16)


def draw_columns(
    marginals: Floats, offsets: Integers, row: NDArray[np.integer[Any]], rng: np.random.Generator
) -> Codes:
    """Draw records (n, d), column by column, from the row of marginals (k, width) of each."""
    codes = np.empty((len(row), len(offsets) - 1), dtype=np.uint16)
    for index in np.unique(row):
        member = np.flatnonzero(row == index)
        for column, (start, stop) in enumerate(pairwise(offsets)):
            codes[member, column] = draw_codes(marginals[index, start:stop], len(member), rng)
    return codes


def build_mixture(
    histograms: Floats, offsets: Integers, *, noise_stddev: float, size_noise: float
) -> tuple[Floats, Floats]:
    """Return weights and marginals of the cells of noisy counts (label, cell, code).

    Cells are shrunk to labels, these to the whole. Noise is that of a count and of a cell's size.
    """
    n_labels, n_cells, _ = histograms.shape
    label_noise = noise_stddev * np.sqrt(n_cells)
    by_label = histograms.sum(axis=1)
    overall = to_marginals(
        by_label.sum(axis=0), offsets, noise_stddev=label_noise * np.sqrt(n_labels)
    )
    label_marginals = shrink_toward(by_label, overall, offsets, noise_stddev=label_noise)
    cell_marginals = shrink_toward(
        histograms, label_marginals[:, None, :], offsets, noise_stddev=noise_stddev
    )
    sizes = sizes_of(histograms, offsets)
    sizes = np.where(sizes < 2.0 * size_noise, 0.0, sizes)
    if sizes.sum() <= 0.0:
        sizes = np.ones_like(sizes)
    weights = (sizes / sizes.sum()).reshape(-1)
    return weights, cell_marginals.reshape(len(weights), -1)
