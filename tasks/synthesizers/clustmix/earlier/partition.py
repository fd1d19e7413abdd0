"""Stage 1, partition: public random slices of the encoded domain.

The paper cuts each table at uniformly sampled data points (section "Approximation through
Gaussian Mixture Models"). A cut-off that is a data point releases that point, and moves every
slice when the point changes. Here the cut-offs come from a public distribution, so that the slice
of a record depends on that record alone and the stage costs no privacy.
"""

from __future__ import annotations

import numpy as np

from tasks.measurement.cells import Cells
from tasks.measurement.encoded import EncodingDomain

_START_SPREAD = 0.05
"""Standard deviation of the public starting centres around a uniform record, per code."""


def partition(domain: EncodingDomain, *, n_slices: int, n_clusters: int, public_seed: int) -> Cells:
    """Draw slices and starting centres from public distributions.

    Each label has so many clusters in each slice. The ``n_slices - 1`` cut-offs are drawn from the
    standard normal distribution, which is about how the projection of a record on standard normal
    code scores is spread.

    Privacy
    -------
    Reads no data.
    """
    generator = np.random.default_rng(public_seed)
    width = domain.one_hot_width
    uniform = np.concatenate([np.full(n_codes, 1.0 / n_codes) for n_codes in domain.n_codes])
    shape = (domain.n_labels, n_slices, n_clusters)
    jitter = generator.standard_normal((*shape, width)) * _START_SPREAD
    return Cells(
        offsets=domain.one_hot_offsets,
        code_scores=generator.standard_normal(width),
        cut_offs=np.sort(generator.standard_normal(n_slices - 1)),
        centres=np.clip(uniform + jitter, 0.0, 1.0),
        alive=np.ones(shape, dtype=np.bool_),
    )
