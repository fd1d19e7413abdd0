"""Private k-means on public features: plain vectors, or random Fourier features of a kernel.

The centres are released, so the cluster of a record is a public function of that record. A round
assigns every record once, to the centres of the round before, and releases the counts and the sums
of all clusters as one Gaussian draw. Everything else is post-processing.

Points and centres are whole numbers on a public grid, so that their products are exact in any order
(`tasks.methods.dpgm.embedding`): a record is assigned without regard to those beside it.

Source: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), section 4.1 and Algorithm 2,
with one assignment per round and paired features, whose norm is exactly one.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.encoded import EncodedRows, row_slices
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.dpgm.embedding import POINT_SCALE, Embedding

_START_RADIUS = 0.3
"""Distance of the first centres from the middle of the points, which have norm at most 1."""

_LEAST_SHARE = 0.01
"""Clusters with a smaller share of the patients are placed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """Released centres (k, m), whole, in the ball of ``POINT_SCALE``; at least one is alive."""

    embedding: Embedding
    centres: Floats
    alive: NDArray[np.bool_]

    @property
    def n_clusters(self) -> int:
        """Number k of clusters."""
        return len(self.centres)

    @property
    def count_share(self) -> float:
        """Part of the squared sensitivity of a round that the count has; the sum has the rest."""
        return count_share(self.embedding.width)

    def assign_points(self, points: Floats) -> Integers:
        """Cluster of each point of shape (n, m): the nearest centre, the first where several."""
        penalty = np.where(self.alive, np.square(self.centres).sum(axis=1), np.inf)
        # -2 <x, c> + |c|^2 orders the centres like the squared distance; all integers.
        return np.asarray((penalty - 2.0 * (points @ self.centres.T)).argmin(axis=1))

    def assign(self, codes: Codes, label: Codes) -> Integers:
        """Cluster of each record, int64 of shape (n,); a function of the record alone."""
        cluster = np.empty(len(codes), dtype=np.int64)
        for block in row_slices(len(codes)):
            points = self.embedding.points(codes[block], label[block])
            cluster[block] = self.assign_points(points)
        return cluster


def start_clustering(embedding: Embedding, *, n_clusters: int, public_seed: int) -> Clustering:
    """First centres, from a public distribution and a public seed: no record is read."""
    rng = np.random.default_rng(public_seed)
    middle = np.zeros(embedding.width)
    if embedding.frequencies is None:
        middle += 0.5 / max(embedding.max_l2_norm, embedding.vector_map.radius())
    centres = middle + _START_RADIUS * _directions(rng, n_clusters, embedding.width)
    return Clustering(
        embedding=embedding, centres=to_centres(centres), alive=np.ones(n_clusters, dtype=np.bool_)
    )


def cluster_sums(rows: EncodedRows, *, clustering: Clustering) -> Any:
    """Weighted counts and sums of the points of each cluster, one assignment of all records.

    Of shape (k, 1 + m), in units of ``1 / SUM_SCALE``: first the count times ``sqrt(s)``, then the
    sum of points times ``sqrt(1 - s)``, with s the clustering's ``count_share``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * (sqrt(s), sqrt(1 - s) point)``,
    of norm at most its weight, to the line of one cluster; the weights of a patient sum to at most
    one; so the Euclidean sensitivity of counts and sums together is 1 (``SUM_SCALE`` grid points),
    also when the patient's records fall into different clusters. Event: one discrete Gaussian.
    """
    total = np.zeros((clustering.n_clusters, 1 + clustering.embedding.width))
    for block in row_slices(len(rows)):
        points = clustering.embedding.points(rows.codes[block], rows.label[block])
        lines = lines_of(points, rows.weight[block], count_share=clustering.count_share)
        total += sums_by_cluster(lines, clustering.assign_points(points), clustering.n_clusters)
    return total.astype(np.int64)


def lines_of(points: Floats, weight: Floats, *, count_share: float) -> Floats:
    """Line that each record adds to its cluster in `cluster_sums`: integers of shape (n, 1 + m)."""
    lines = np.empty((len(points), 1 + points.shape[1]))
    lines[:, 0] = math.sqrt(count_share)
    lines[:, 1:] = points * (math.sqrt(1.0 - count_share) / POINT_SCALE)
    lines *= weight[:, None] * SUM_SCALE
    return np.trunc(lines, out=lines)


def sums_by_cluster(lines: Floats, cluster: Integers, n_clusters: int) -> Floats:
    """Sum the lines of each cluster, shape (k, 1 + m); exact while the sums stay below 2**53."""
    sums: Floats = np.eye(n_clusters)[cluster].T @ lines
    return sums


def count_share(width: int) -> float:
    """Return the count's share of the squared sensitivity beside `width` sums: least error."""
    return 1.0 / (1.0 + math.sqrt(width))


def move_centres(
    clustering: Clustering, noisy: Floats, *, noise_stddev: float, public_seed: int
) -> Clustering:
    """Move the centres to the noisy means; post-processing.

    A mean keeps the share of its distance from the mean of all records that the noise does not
    explain (positive-part James-Stein). A cluster that is too small to have a mean is placed
    anew, in a public direction from the mean of all records.

    `noisy`, of shape (k, 1 + m) and in units of patients, is what was released with these centres.
    All clusters are alive afterwards; the seed is that of the directions.
    """
    share, width = clustering.count_share, clustering.embedding.width
    counts, sums = noisy[:, 0] / math.sqrt(share), noisy[:, 1:] / math.sqrt(1.0 - share)
    count_noise = noise_stddev / math.sqrt(share)
    sum_noise = noise_stddev / math.sqrt(1.0 - share)
    total = max(float(counts.sum()), count_noise)
    overall = _into_ball(sums.sum(axis=0) / total)
    kept = counts > max(2.0 * count_noise, _LEAST_SHARE * total)
    size = np.where(kept, counts, 1.0)[:, None]
    difference = sums / size - overall
    distance = np.square(difference).sum(axis=1, keepdims=True)
    explained = width * (sum_noise / size) ** 2
    left = np.maximum(1.0 - explained / np.maximum(distance, 1e-300), 0.0)
    rng = np.random.default_rng(public_seed)
    radius = max(_START_RADIUS * float(np.linalg.norm(overall)), 1e-3)
    fresh = overall + radius * _directions(rng, clustering.n_clusters, width)
    centres = np.where(kept[:, None], overall + left * difference, fresh)
    return replace(
        clustering,
        centres=to_centres(centres),
        alive=np.ones(clustering.n_clusters, dtype=np.bool_),
    )


def to_centres(centres: Floats) -> Floats:
    """Project centres of shape (k, m) to the unit ball and put them on the grid."""
    projected = np.stack([_into_ball(centre) for centre in centres])
    return np.trunc(projected * (POINT_SCALE * (1.0 - 2.0**-44)))


def _into_ball(point: Floats) -> Floats:
    return point / max(1.0, float(np.linalg.norm(point)))


def _directions(rng: np.random.Generator, n: int, width: int) -> Floats:
    normal = rng.standard_normal((n, width))
    unit: Floats = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return unit
