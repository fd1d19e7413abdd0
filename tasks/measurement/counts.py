"""Exact numbers of patients, in all or by label, and their sensitivity.

Written like `tasks.measurement.statistics`: rows of one shard to int64, truncated on the grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.encoded import EncodedRows
from tasks.measurement.statistics import SUM_SCALE


def patient_count(rows: EncodedRows) -> NDArray[np.int64]:
    """Sum of the weights, which is the number of patients.

    Returns
    -------
    int64 array of shape (1,), in units of ``1 / SUM_SCALE``

    Privacy
    -------
    Adjacency: add or remove one patient. Sensitivity 1 (``SUM_SCALE`` grid points). Event: one
    discrete Gaussian.
    """
    return np.array([np.trunc(rows.weight * SUM_SCALE).astype(np.int64).sum()], dtype=np.int64)


def class_counts(rows: EncodedRows, *, n_labels: int) -> NDArray[np.int64]:
    """Weighted number of patients of each label.

    Returns
    -------
    int64 array of shape (n_labels,), in units of ``1 / SUM_SCALE``

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
