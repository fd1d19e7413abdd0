"""Counts of codes by label, measured as one count and centred codes for a smaller sensitivity.

The one-hot vector of a column with k codes has the squared norm one, of which a constant part takes
1 / k. Over d columns the constant measures the number of rows d times. Here it is measured once: a
row adds one count, and for every column ``onehot - 1 / k``, of squared norm ``1 - 1 / k``.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.statistics import SUM_SCALE

_COUNT_PART = 0.1


def count_factor(n_codes: Sequence[int]) -> float:
    """Return the factor of a row's count: its square is a tenth of the codes', at least 1."""
    return math.sqrt(max(1.0, _COUNT_PART * sum(1.0 - 1.0 / k for k in n_codes)))


def centred_norm(n_codes: Sequence[int]) -> float:
    """Return the norm of the count and the centred codes: ``sqrt(c^2 + sum (1 - 1 / k))``."""
    return math.sqrt(count_factor(n_codes) ** 2 + sum(1.0 - 1.0 / k for k in n_codes))


def measured_codes(rows: EncodedRows, n_visits: int) -> Integers:
    """Return the codes of private rows, with the number of the patient's rows where asked for.

    A row of a patient with m rows weighs 1 / m. A hidden last column for m has `n_visits` levels,
    the last level for as many or more; 0 for none. The codes are (n, d) or (n, d + 1).

    Privacy
    -------
    A function of a row and its weight alone.
    """
    codes = rows.codes.astype(np.int64)
    if n_visits == 0:
        return codes
    n_rows = np.rint(1.0 / rows.weight).astype(np.int64)
    return np.column_stack([codes, np.clip(n_rows, 1, n_visits) - 1])


def label_counts(
    rows: EncodedRows,
    *,
    n_codes: tuple[int, ...],
    n_labels: int,
    n_visits: int = 0,
    n_clusters: int = 1,
    assign: Callable[[Codes, Codes], Integers] | None = None,
) -> Integers:
    """Weighted number of rows and centred codes of each label, divided by `centred_norm`.

    Of shape (C, 1 + W), in units of ``1 / SUM_SCALE``; with k clusters of shape (C k, 1 + W), where
    the clusters of a label stand one after the other. `assign` is a public rule that sends each
    record (n, d) with its label to a cluster (n,), by that record alone.

    Privacy
    -------
    Adjacency: add or remove one patient. With the integers ``a = trunc(w c SUM_SCALE / S)`` and
    ``a_j = trunc(w SUM_SCALE / (S k_j))``, ``c`` the `count_factor` and ``S`` the `centred_norm`, a
    row adds ``a`` and ``a_j (k_j onehot_j - 1)`` to its label, or to the cluster of its label that
    it alone decides. The squared norm of ``k onehot - 1``
    is ``(k - 1)^2 + (k - 1) = k^2 (1 - 1 / k)``, so that of the row is at most
    ``(w SUM_SCALE / S)^2 (c^2 + sum (1 - 1 / k_j)) = (w SUM_SCALE)^2``. The weights of a patient
    sum to at most one: sensitivity 1 (``SUM_SCALE`` grid points). Event: one discrete Gaussian.
    """
    rows.require_inside(n_codes[: rows.codes.shape[1]], n_labels)
    norm, k = centred_norm(n_codes), np.asarray(n_codes, dtype=np.int64)
    starts, width = np.cumsum(k) - k, int(k.sum())
    n_labels *= n_clusters
    total = np.zeros((n_labels, 1 + width), dtype=np.int64)
    for weight, parts in rows.by_weight():
        sizes, counts = np.zeros(n_labels, dtype=np.int64), np.zeros(n_labels * width, np.int64)
        for part in parts:
            label = part.label.astype(np.int64)
            if assign is not None:
                label = label * n_clusters + assign(part.codes, part.label)
            sizes += np.bincount(label, minlength=n_labels)
            cells = starts + measured_codes(part, n_visits) + width * label[:, None]
            counts += np.bincount(cells.ravel(), minlength=len(counts))
        total[:, 0] += int(weight * (count_factor(n_codes) * SUM_SCALE / norm)) * sizes
        amount = np.trunc(weight * SUM_SCALE / (norm * k)).astype(np.int64)
        centred = np.repeat(k, k) * counts.reshape(n_labels, width) - sizes[:, None]
        total[:, 1:] += np.repeat(amount, k) * centred
    return total


def without_means(values: Floats, offsets: Integers) -> Floats:
    """Subtract from each block of the last axis its mean; this centres the noise as well."""
    sizes = np.diff(offsets)
    means = np.add.reduceat(values, offsets[:-1], axis=-1) / sizes
    return np.asarray(values - np.repeat(means, sizes, axis=-1))


def counts_of(noisy: Floats, n_codes: Sequence[int]) -> tuple[Floats, Floats]:
    """Undo the centring of released `label_counts` (C, 1 + W), in its own units.

    Returned are the noisy number of patients of each label (C,) and of each code and label (C, W);
    every block sums to the size of the label. The noise of an entry is that of one value of
    ``noisy`` times `centred_norm`, at most; that of a size is this divided by `count_factor`.
    """
    norm = centred_norm(n_codes)
    offsets = np.concatenate([[0], np.cumsum(n_codes)])
    sizes = noisy[:, 0] * (norm / count_factor(n_codes))
    share = np.repeat(1.0 / np.asarray(n_codes, dtype=np.float64), n_codes)
    return sizes, without_means(noisy[:, 1:] * norm, offsets) + sizes[:, None] * share


def to_simplex(values: Floats) -> Floats:
    """Nearest probabilities to noisy shares (k,); Duchi et al. 2008, Figure 1."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(values) + 1)
    kept = np.flatnonzero(ordered > excess)[-1]
    return np.asarray(np.maximum(values - excess[kept], 0.0))


def blocks_to_simplex(values: Floats, offsets: Integers) -> Floats:
    """Project every block of a vector of shape (W,) with `to_simplex`."""
    return np.concatenate([to_simplex(block) for block in np.split(values, offsets[1:-1])])
