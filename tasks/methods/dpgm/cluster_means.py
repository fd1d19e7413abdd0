"""Sizes and means of released clusters, and of all records: one draw, then post-processing.

The means start the networks and are what their marginals are fitted to. A mean of all records is
known far better than the sum of the means of many small clusters, so it is a line of the draw of
its own, and the means of the clusters are shrunk toward it.
"""

import math
from typing import Any

import numpy as np

from privacy.arrays import Floats
from tasks.measurement.encoded import EncodedRows, row_slices
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.kernel_kmeans import (
    POINT_SCALE,
    Clustering,
    count_share,
    lines_of,
    sums_by_cluster,
)

TOTAL_SHARE = 0.5
"""Part of the squared sensitivity of the draw that the line of all records has."""

_ROUNDS = 3


def cluster_means(rows: EncodedRows, *, clustering: Clustering, vector_map: VectorMap) -> Any:
    """Weighted counts and sums of centred vectors, in each cluster and in all together.

    A vector enters as its distance from the middle of the domain: a black and white image is then
    at most half as long, and the noise on its mean half as large.

    Returns
    -------
    int64 array of shape (k + 1, 1 + D), in units of ``1 / SUM_SCALE``
        A line per cluster, times ``sqrt(1 - t)``, and a line of all records, times ``sqrt(t)``,
        with t of `TOTAL_SHARE`. A line has the count times ``sqrt(s)``, then the sum of the
        centred vectors, divided by their largest norm, times ``sqrt(1 - s)``, with s of
        `tasks.methods.dpgm.kernel_kmeans.count_share`.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds a vector of norm at most
    ``weight * sqrt(1 - t)`` to the line of one cluster, and one of norm at most
    ``weight * sqrt(t)`` to the last line: together at most its weight. The weights of a patient
    sum to at most one, so the Euclidean sensitivity is 1 (``SUM_SCALE`` grid points), also when
    the patient's records fall into different clusters. Event: one discrete Gaussian.
    """
    share, middle = count_share(vector_map.width), vector_map.middle
    radius = vector_map.radius(middle)
    total = np.zeros((clustering.n_clusters + 1, 1 + vector_map.width))
    for block in row_slices(len(rows)):
        codes, label, weight = rows.codes[block], rows.label[block], rows.weight[block]
        vectors = vector_map.vectors(codes, label if vector_map.with_label else None) - middle
        vectors *= POINT_SCALE / (radius * (1.0 + 2.0**-44))
        own = lines_of(vectors, weight * math.sqrt(1.0 - TOTAL_SHARE), count_share=share)
        every = lines_of(vectors, weight * math.sqrt(TOTAL_SHARE), count_share=share)
        total[:-1] += sums_by_cluster(own, clustering.assign(codes, label), clustering.n_clusters)
        total[-1] += every.sum(axis=0)
    return total.astype(np.int64)


def size_noise(vector_map: VectorMap, *, noise_stddev: float) -> float:
    """Return the standard deviation of the noise of a cluster's size, in patients."""
    return noise_stddev / math.sqrt(count_share(vector_map.width) * (1.0 - TOTAL_SHARE))


def sizes_and_means(
    noisy: Floats, *, vector_map: VectorMap, noise_stddev: float
) -> tuple[Floats, Floats]:
    """Noisy sizes (k,) and mean vectors (k, D) of clusters; post-processing.

    The lines of the clusters and of all records are made to agree by least squares. A mean keeps
    the share of its distance from the mean of all records that the noise does not explain
    (positive-part James-Stein), for each column by itself, numbers and yes-or-no columns together;
    then the means are moved so that they average to the mean of all records.

    `noisy`, of shape (k + 1, 1 + D), is what `cluster_means` released, in units of patients. Sizes
    may be negative; means are in [0, 1], and those of a one-hot block sum to one.
    """
    share, middle = count_share(vector_map.width), vector_map.middle
    radius = vector_map.radius(middle)
    own, every = noisy[:-1] / math.sqrt(1.0 - TOTAL_SHARE), noisy[-1] / math.sqrt(TOTAL_SHARE)
    own_variance, every_variance = 1.0 / (1.0 - TOTAL_SHARE), 1.0 / TOTAL_SHARE
    gap = (every - own.sum(axis=0)) / (every_variance + len(own) * own_variance)
    own = own + own_variance * gap
    every = every - every_variance * gap
    every_variance = 1.0 / (1.0 / every_variance + 1.0 / (len(own) * own_variance))

    sizes, n = own[:, 0] / math.sqrt(share), max(float(every[0]) / math.sqrt(share), 1.0)
    unit = radius / math.sqrt(1.0 - share)
    # Without the threshold, clipping negative noise at zero would give every rare level a share.
    overall = _valid(
        middle + every[1:] * (unit / n),
        vector_map,
        threshold=noise_stddev * math.sqrt(every_variance) * unit / n,
    )
    size = np.maximum(sizes, 1.0)[:, None]
    difference = middle + own[:, 1:] * (unit / size) - overall
    noise = noise_stddev * math.sqrt(own_variance) * unit / size
    means = overall + _kept(difference, noise, vector_map) * difference
    weights = np.maximum(sizes, 0.0) / max(float(np.maximum(sizes, 0.0).sum()), 1.0)
    for _ in range(_ROUNDS):
        means = _valid(means, vector_map)
        means = means + (overall - weights @ means)
    return sizes, _valid(means, vector_map)


def _kept(difference: Floats, noise: Floats, vector_map: VectorMap) -> Floats:
    """Share in [0, 1) of each coordinate's difference (k, D) that noise (k, 1) leaves."""
    kept = np.empty_like(difference)
    one_hot = [b for b in vector_map.blocks if b.kind == "one_hot"]
    groups = [np.arange(block.start, block.stop) for block in one_hot]
    groups.append(np.setdiff1d(np.arange(vector_map.width), np.concatenate([[], *groups])))
    for group in groups:
        distance = np.square(difference[:, group]).sum(axis=1, keepdims=True)
        explained = len(group) * np.square(noise)
        kept[:, group] = 1.0 - np.minimum(explained / np.maximum(distance, 1e-300), 1.0)
    return kept


def _valid(mean: Floats, vector_map: VectorMap, *, threshold: float = 0.0) -> Floats:
    """Nearest means that there can be: entries below the threshold are 0, blocks sum to one."""
    valid = np.where(mean < threshold, 0.0, np.minimum(mean, 1.0))
    for block in vector_map.blocks:
        if block.kind == "one_hot":
            part = valid[..., block.start : block.stop]
            total = part.sum(axis=-1, keepdims=True)
            uniform = 1.0 / (block.stop - block.start)
            part[:] = np.where(total > 0.0, part / np.where(total > 0.0, total, 1.0), uniform)
    return valid
