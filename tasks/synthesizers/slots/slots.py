"""Sums of the records of each slot: the one statistic of the proven per-record perturbations.

A slot is a public hash of the record: no patient's slot depends on another patient, and the number
of slots, which is the number of released rows, says nothing about the number of patients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from tasks.measurement.encoded import EncodedRows
from tasks.measurement.labelled_vectors import LabelledVectors
from tasks.measurement.synthesizer import PUBLIC_SEED

_ROWS_AT_ONCE = 4_096
"""Rows expanded to vectors at a time: bounds the memory, does not change the sums."""

# Finaliser of SplitMix64 (Steele, Lea and Flood 2014).
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def slots_of(
    codes: NDArray[np.uint16], label: NDArray[np.uint16], *, n_slots: int
) -> NDArray[np.int64]:
    """Slot of each record, int64 of shape (n,) in [0, n_slots): a function of the record alone."""
    state = np.full(len(label), PUBLIC_SEED, dtype=np.uint64)
    for column in (*codes.T, label):
        state = _mixed(state + _INCREMENT + column.astype(np.uint64))
    return (state % np.uint64(n_slots)).astype(np.int64)


def slot_sums(rows: EncodedRows, *, vectors: LabelledVectors, n_slots: int) -> NDArray[np.int64]:
    """Weighted sums of the vectors of the records in each slot.

    Returns
    -------
    int64 array of shape (n_slots, vectors.width), in units of ``1 / SUM_SCALE``

    Privacy
    -------
    Adjacency: add or remove one patient. Every row of the patient adds a vector of norm at most
    its weight times ``vectors.l2_bound`` to one slot, and the weights sum to at most one; so the
    whole array changes by at most ``vectors.l2_bound`` (``* SUM_SCALE`` grid points). Event: one
    discrete Gaussian.
    """
    total = np.zeros((n_slots, vectors.width), dtype=np.int64)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        grid = vectors.grid(rows, part)
        slots = slots_of(rows.codes[part], rows.label[part], n_slots=n_slots)
        used, position = np.unique(slots, return_inverse=True)
        ones = np.ones(len(slots), dtype=np.int64)
        member = csr_array((ones, (position, np.arange(len(slots)))), shape=(len(used), len(slots)))
        total[used] += member @ grid
    return total


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MULTIPLIERS[0]
    state = (state ^ (state >> np.uint64(27))) * _MULTIPLIERS[1]
    return state ^ (state >> np.uint64(31))
