"""Sums of the records in Poisson samples: the one statistic of the proven DPMix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from tasks.measurement.encoded import EncodedRows
from tasks.measurement.labelled_vectors import LabelledVectors
from tasks.measurement.sampling import PoissonCoins

_ROWS_AT_ONCE = 4_096
"""Rows expanded to vectors at a time: bounds the memory, does not change the sums."""


def mixture_sums(
    rows: EncodedRows, *, coins: PoissonCoins, vectors: LabelledVectors
) -> NDArray[np.int64]:
    """Weighted sums of the vectors of the records in each sample.

    Returns
    -------
    int64 array of shape (n_draws, vectors.width), in units of ``1 / SUM_SCALE``

    Privacy
    -------
    Adjacency: add or remove one patient. Given that the patient is in the sample, one draw changes
    by at most ``vectors.l2_bound`` (``* SUM_SCALE`` grid points), because the weights of a
    patient's rows sum to at most one. Event: one Poisson-sampled discrete Gaussian per draw.
    """
    samples = list(coins.rows(rows))
    total = np.zeros((len(samples), vectors.width), dtype=np.int64)
    for part, grid in _parts(rows, np.unique(np.concatenate(samples)), vectors):
        total += _membership(samples, part) @ grid
    return total


def _parts(
    rows: EncodedRows, used: NDArray[np.intp], vectors: LabelledVectors
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.int64]]]:
    """Rows that are in some sample, a few at a time, with their grid vectors."""
    for start in range(0, len(used), _ROWS_AT_ONCE):
        part = used[start : start + _ROWS_AT_ONCE]
        yield part, vectors.grid(rows, part)


def _membership(samples: list[NDArray[np.intp]], part: NDArray[np.intp]) -> csc_array:
    """0/1 matrix of shape (n_draws, len(part)): integers, so that its product is exact."""
    draws = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
    rows = np.concatenate(samples)
    inside = (rows >= part[0]) & (rows <= part[-1])
    columns = np.searchsorted(part, rows[inside])
    ones = np.ones(len(columns), dtype=np.int64)
    return csc_array((ones, (draws[inside], columns)), shape=(len(samples), len(part)))
