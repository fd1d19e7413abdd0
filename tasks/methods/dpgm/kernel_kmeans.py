"""Private k-means on public features: plain vectors, or random Fourier features of a kernel.

The centres are released, so the cluster of a record is a public function of that record. A round
assigns every record once, to the centres of the round before, and releases the counts and the sums
of all clusters as one Gaussian draw. Everything else is post-processing.

Rounding: a product of integers whose sum stays below 2**53 is exact in float64, in any order.
Points, their factors, and centres are therefore put on a public grid: BLAS may then be used, and
the cluster of a record does not depend on other records.

Source: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), section 4.1, Algorithm 2 and
Eq. 3, with one assignment per round; Rahimi and Recht 2007, with paired features of norm one.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.encoded import EncodedRows, row_slices
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.dpgm_settings import FeatureKind

POINT_SCALE = 2.0**20
"""Grid points per unit of a point and of a centre, both of norm at most 1."""

_VECTOR_SCALE = 2.0**16
"""Grid points per unit of a coordinate of a vector, before it is projected."""

_EXACT_BITS = 52
"""Sums of products stay below this power of two."""

_LANES = 8
"""Rows are padded to a multiple: no element is left to the slower code at the end of an array."""

_START_RADIUS = 0.3
"""Distance of the first centres from the middle of the points, which have norm at most 1."""

_LEAST_SHARE = 0.01
"""Clusters with a smaller share of the patients are placed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Public map from records to points of norm at most 1.

    With frequencies (D, n_pairs) Fourier features ``sqrt(1 / n_pairs) [cos(x w), sin(x w)]`` of a
    record's vector, of norm one. Without: vectors clipped to `max_l2_norm` and divided by it.
    """

    vector_map: VectorMap
    frequencies: Floats | None
    max_l2_norm: float

    @property
    def width(self) -> int:
        """Number m of coordinates of a point."""
        if self.frequencies is None:
            return self.vector_map.width
        return 2 * int(self.frequencies.shape[1])

    def points(self, codes: Codes, label: Codes) -> Floats:
        """Points (n, m) of records (n, d), whole, of norm at most ``POINT_SCALE``."""
        vectors = self.vector_map.vectors(codes, label if self.vector_map.with_label else None)
        if self.frequencies is None:
            norms = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
            clipped = vectors / np.maximum(norms, self.max_l2_norm)
            return np.asarray(np.trunc(clipped * POINT_SCALE))
        n, n_pairs = len(vectors), self.frequencies.shape[1]
        scale = _frequency_scale(self.frequencies)
        angles = np.zeros((n + -n % _LANES, n_pairs))
        # Integers times integers: exact.
        angles[:n] = np.rint(vectors * _VECTOR_SCALE) @ np.rint(self.frequencies * scale)
        angles /= _VECTOR_SCALE * scale
        # Just below one: truncation and rounding may not take the norm above it.
        height = POINT_SCALE / math.sqrt(n_pairs) * (1.0 - 2.0**-44)
        return np.trunc(np.concatenate([np.cos(angles), np.sin(angles)], axis=1)[:n] * height)


def build_embedding(
    vector_map: VectorMap,
    *,
    features: FeatureKind,
    n_features: int,
    length_scale: float | None,
    l2_clip_norm: float | None,
    public_seed: int,
) -> Embedding:
    """Build the map from public settings.

    Features are "plain" vectors, or an even number m of "fourier" features of the kernel
    ``exp(-|x - y|**2 / (2 l**2))`` with a length scale l above 0; None: `public_length_scale`.
    Plain vectors are clipped to a norm above 0; None: the largest norm of a vector.
    """
    norm = vector_map.radius() if l2_clip_norm is None else l2_clip_norm
    if features == "plain":
        return Embedding(vector_map=vector_map, frequencies=None, max_l2_norm=norm)
    length = public_length_scale(vector_map) if length_scale is None else length_scale
    normal = np.random.default_rng(public_seed).standard_normal((vector_map.width, n_features // 2))
    return Embedding(vector_map=vector_map, frequencies=normal / length, max_l2_norm=1.0)


def public_length_scale(vector_map: VectorMap) -> float:
    """Half the root mean squared distance of two records drawn uniformly from the domain."""
    return 0.5 * max(vector_map.typical_distance, 0.1)


def _frequency_scale(frequencies: Floats) -> float:
    """Grid of the frequencies on which every sum of products is exact; a power of two."""
    largest = float(np.abs(frequencies).sum(axis=0).max()) * _VECTOR_SCALE
    # At most 2**-1 per coordinate is added by rounding to the grid.
    return 2.0 ** (_EXACT_BITS - 1 - math.ceil(math.log2(max(largest, 1.0))))


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
    sum of points times ``sqrt(1 - s)``, with s of `count_share`.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * (sqrt(s), sqrt(1 - s) point)``,
    of norm at most its weight, to the line of one cluster; the weights of a patient sum to at most
    one; so the Euclidean sensitivity of counts and sums together is 1 (``SUM_SCALE`` grid points),
    also when the patient's records fall into different clusters. Event: one discrete Gaussian.
    """
    width = clustering.embedding.width
    total = np.zeros((clustering.n_clusters, 1 + width))
    for block in row_slices(len(rows)):
        points = clustering.embedding.points(rows.codes[block], rows.label[block])
        lines = lines_of(points, rows.weight[block], count_share=count_share(width))
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

    `noisy` (k, 1 + m), in patients, was released with these centres; the seed gives the directions.
    """
    width = clustering.embedding.width
    share = count_share(width)
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
    return replace(clustering, centres=to_centres(centres))


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
