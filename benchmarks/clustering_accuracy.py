"""Unsupervised clustering accuracy: the best one-to-one match of clusters and labels.

Computed from true labels without noise: for benchmarks on public data.

Source: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), section 6.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment


def clustering_accuracy(
    clusters: NDArray[np.integer[Any]], labels: NDArray[np.integer[Any]]
) -> float:
    """Share of records whose cluster is matched with their label, under the best match.

    Privacy
    -------
    Not private: a function of the real labels without noise.
    """
    if clusters.shape != labels.shape or clusters.ndim != 1 or len(clusters) == 0:
        raise ValueError("expected as many clusters as labels, one or more")
    counts = np.zeros((int(clusters.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (clusters, labels), 1)
    matched = linear_sum_assignment(counts, maximize=True)
    return float(counts[matched].sum() / len(labels))
