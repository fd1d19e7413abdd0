"""The exact sum of features of private rows that DP-MERF releases, and its sensitivity.

As in `tasks.measurement.statistics`: a record's vector is truncated toward zero on an integer
grid before it is added, records are rounded by themselves, and shards add up exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.encoded import EncodedRows
from tasks.measurement.statistics import SUM_SCALE
from tasks.synthesizers.dp_merf.features import EmbeddingFeatures

_ROWS_AT_ONCE = 1_024
"""Rows expanded to features at a time: bounds the memory, does not change the sum."""


def embedding_sums(
    rows: EncodedRows, *, features: EmbeddingFeatures, n_labels: int
) -> NDArray[np.int64]:
    """Weighted sums of the features of the records of each label.

    Returns
    -------
    int64 array of shape (C, n_features), in units of ``1 / SUM_SCALE``

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * phi``, of norm at most its
    weight, to the row of its label; the weights of a patient sum to at most one; so the Euclidean
    sensitivity is 1 (``SUM_SCALE`` grid points), whatever the labels of the patient's records.
    Event: one discrete Gaussian.
    """
    total = np.zeros((n_labels, features.n_features), dtype=np.int64)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        amount = features.phi(rows.codes[block])
        amount *= rows.weight[block][:, None] * SUM_SCALE
        np.trunc(amount, out=amount)
        # Sums of integers below 2**53: exact in float64, in any order.
        total += (np.eye(n_labels)[rows.label[block]].T @ amount).astype(np.int64)
    return total
