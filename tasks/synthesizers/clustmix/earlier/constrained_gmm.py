"""Stage 2, constrained Gaussian mixture per label and slice, from noisy histograms.

An isotropic mixture with equal variances, fitted by hard expectation-maximisation: assign each
record to the nearest centre, then move each centre to the mean of its records (Eq. 1). Sizes
follow the step-function prior of Eq. 2-4: probability zero below the minimum, uniform above.

In the proven analysis the sizes and means are noisy, because the assignment reads private rows.
The prior then acts on the noisy size: a cluster whose noisy size is below the minimum has
probability zero and takes no records in the next assignment.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.cells import Cells
from tasks.measurement.marginals import sizes_of, to_marginals


def fit_round(
    cells: Cells, histograms: NDArray[np.float64], *, min_cluster_size: float, noise_stddev: float
) -> Cells:
    """Move the centres to the noisy means and apply the size prior to the noisy sizes.

    The histograms (n_labels, n_cells, one_hot_width) are noisy weighted one-hot sums, in patients
    (``1 / sqrt(d)`` undone), of the given cells; `noise_stddev` is of one entry, and the smallest
    size of a cluster is l_min. A slice in which no cluster reaches it keeps its largest one.

    Privacy
    -------
    Post-processing of released histograms.
    """
    shape = cells.centres.shape[:-1]
    grouped = histograms.reshape(*shape, -1)
    # A cluster that took no records has nothing but noise in it and does not come back.
    sizes = np.where(cells.alive, sizes_of(grouped, cells.offsets), -np.inf)
    alive = sizes >= min_cluster_size
    largest = sizes.argmax(axis=-1)[..., None] == np.arange(shape[-1])
    alive |= ~alive.any(axis=-1, keepdims=True) & largest
    means = to_marginals(grouped, cells.offsets, noise_stddev=noise_stddev)
    return replace(cells, centres=np.where(alive[..., None], means, cells.centres), alive=alive)
