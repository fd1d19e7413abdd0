"""Algorithm 2 of the DPGM paper as typeset: private kernel k-means with random Fourier features.

Flaws G4 (unpaired features, whose norm is at most one in expectation), G5 (assignment and update
alternate within the loop over clusters), G7 and G11 (the partition itself is what comes out).

As typeset it does not cluster: where the first centres are records, the first centre that becomes a
mean is nearer to nearly every record than the others are, and takes them all. So the loop that the
authors will have run, one assignment per iteration, is here as well.
"""

import math

import numpy as np

from benchmarks.rivals.noise import clip_rows
from privacy.arrays import AnyFloats, Floats, Integers

_ROOT_2 = math.sqrt(2.0)

L2_CLIP_NORM = 1.0
"""C_s of the kernel form: Algorithm 3 is not called (section 6.2)."""


def fourier_features(
    vectors: Floats, *, n_features: int, gamma: float, rng: np.random.Generator
) -> Floats:
    """Features (n, d) of Eq. 3 of vectors (n, D), ``sqrt(2 / d) cos(<w_i, x> + b_i)``."""
    frequencies = rng.normal(0.0, 2.0 * gamma, (vectors.shape[1], n_features))
    offsets = rng.uniform(0.0, 2.0 * math.pi, n_features)
    features: Floats = math.sqrt(2.0 / n_features) * np.cos(vectors @ frequencies + offsets)
    return features


def private_kernel_kmeans(
    points: Floats,
    first_centres: Floats,
    *,
    n_rounds: int,
    sigma_k: float,
    rng: np.random.Generator,
    simultaneous: bool = False,
) -> Integers:
    """Lines 5 to 11: the cluster (n,) of each record after the last update.

    Points (n, d) are features of the private records; the paper takes public records as centres
    (k, d). `n_rounds` is T; with `simultaneous` all records are assigned once per iteration, and
    not as typeset.

    Privacy
    -------
    Claimed by Eq. 4; not proven (flaws G2 and G5). The output is a partition of private records.
    """
    clipped = clip_rows(points, l2_clip_norm=L2_CLIP_NORM)
    centres = first_centres.copy()
    # Distance of every record to every centre; an update changes one column of it.
    distances = np.stack([_distances(clipped, centre) for centre in centres], axis=1)
    for _ in range(n_rounds):
        assigned = distances.argmin(axis=1)
        for index in range(len(centres)):
            member = (assigned if simultaneous else distances.argmin(axis=1)) == index
            size = member.sum() + rng.normal(0.0, _ROOT_2 * sigma_k)
            noise = rng.normal(0.0, _ROOT_2 * L2_CLIP_NORM * sigma_k, clipped.shape[1])
            centres[index] = (clipped[member].sum(axis=0) + noise) / size
            distances[:, index] = _distances(clipped, centres[index])
    return np.asarray(distances.argmin(axis=1))


def _distances(points: AnyFloats, centre: Floats) -> Floats:
    """Squared distances to a centre, less the squared norms of the points."""
    return np.asarray(centre @ centre - 2.0 * (points @ centre))
