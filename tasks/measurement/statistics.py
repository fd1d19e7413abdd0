"""The form of exact statistics of private rows, and the count of classes.

A statistic maps the rows of one shard and public arrays to an int64 array. Shards are added up
exactly, in any order, and the curator adds noise once, to the total; before, they are private.

Fixed point: a record's vector is truncated toward zero on an integer grid before it is added, so a
coordinate can only shrink and the stated bound survives. Partial sums of integers below 2**53 are
exact in float64, which lets BLAS add them up. Before truncation a record is computed by itself and
without BLAS, whose rounding of a row depends on its place among others.
"""

import numpy as np

from privacy.arrays import Integers
from privacy.mechanisms import SUM_GRID_BITS
from tasks.measurement.encoded import EncodedRows

SUM_SCALE = 2**SUM_GRID_BITS
"""Grid points per unit of a weighted sum."""

ROOT_SCALE = 2**14
"""Grid points per unit of the weighted features whose products make a second moment."""

SECOND_MOMENT_SCALE = ROOT_SCALE**2
"""Grid points per unit of a second moment."""


def class_counts(rows: EncodedRows, *, n_labels: int) -> Integers:
    """Weighted number of patients of each label (n_labels,), in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds its weight to one entry; a patient's weights
    sum to at most one: sensitivity 1 (``SUM_SCALE`` grid points). Event: one discrete Gaussian.
    """
    rows.require_inside((), n_labels)
    amount = np.trunc(rows.weight * SUM_SCALE)
    return np.bincount(rows.label, weights=amount, minlength=n_labels).astype(np.int64)
