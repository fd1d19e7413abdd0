"""Work items of the printed algorithm: one per (slice, class), or one per slice.

Each item carries its rows and its own stream of random numbers, shares no state with another, and
can be pickled, so that any worker may take it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from privacy.arrays import Floats, Indices
from tasks.papers.clustmix.config import AlgorithmConfig
from tasks.papers.clustmix.constrained_gmm import cluster_means, constrained_gmm
from tasks.papers.clustmix.kip import Loss, centred_one_hot, optimise, raw_loss
from tasks.papers.clustmix.noise import noise_sigma
from tasks.papers.clustmix.tangent_kernels import tangent_kernel

# Weight and bias scale of the network behind the kernel, as in the KIP reference implementation.
_WEIGHT_STD = math.sqrt(2.0)
_BIAS_STD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Scaled rows of one class in one slice."""

    config: AlgorithmConfig
    rows: Floats
    slice: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateItem:
    """Work item of `approximate`."""

    region: Region
    min_size: int
    rng: np.random.Generator
    clock: Callable[[], float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Centroids (k, D) and sizes (k,) of the clusters of a region."""

    centroids: Floats
    sizes: Indices


def approximate(item: ApproximateItem) -> Clusters:
    """Cluster a region (lines 4 to 8): floor(rows / l_min) clusters of at least l_min rows."""
    rows, config, clock = item.region.rows, item.region.config, item.clock
    started = 0.0 if clock is None else clock()
    n_clusters = len(rows) // item.min_size
    labels = constrained_gmm(
        rows,
        n_clusters=n_clusters,
        min_size=item.min_size,
        max_iterations=config.gmm_iterations,
        n_starts=config.gmm_starts,
        rng=item.rng,
        out_of_time=lambda: clock is not None and clock() - started > config.timeout_seconds,
    )
    return Clusters(
        centroids=cluster_means(rows, labels, n_clusters),
        sizes=np.bincount(labels, minlength=n_clusters),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptItem:
    """Work item of `adapt`: the centroids of all classes of a slice, and its raw rows."""

    config: AlgorithmConfig
    centroids: Floats
    centroid_codes: Indices
    targets: Floats
    target_codes: Indices
    n_classes: int
    z_centre: Floats
    z_spread: Floats


def adapt(item: AdaptItem) -> Floats:
    """Adapt the centroids of a slice (line 11) to all of its raw rows (flaw C5), inside [0, 1]."""
    config = item.config
    # Padding to a few sizes keeps the number of compiled programs small.
    n_support, n_targets = _padded(len(item.centroids), 8), _padded(len(item.targets), 512)
    start = _pad_rows(item.centroids, n_support)
    points = optimise(
        _slice_loss(config.hidden_layers, config.convolved_image),
        start,
        (
            _pad_rows(centred_one_hot(item.centroid_codes, item.n_classes), n_support),
            start,
            _pad_rows(item.targets, n_targets),
            _pad_rows(centred_one_hot(item.target_codes, item.n_classes), n_targets),
            _pad_rows(np.ones(len(item.centroids)), n_support),
            _pad_rows(np.ones(len(item.targets)), n_targets),
            item.z_centre,
            item.z_spread,
            config.alpha,
            config.ridge,
        ),
        steps=config.kip_steps,
        learning_rate=config.learning_rate,
        tolerance=1e-6,
    )
    return points[: len(item.centroids)]


@cache
def _slice_loss(hidden_layers: int, image: tuple[int, int, int] | None) -> Loss:
    """One loss object per network, so that jax compiles once per padded shape."""
    ntk = tangent_kernel(
        depth=hidden_layers, weight_std=_WEIGHT_STD, bias_std=_BIAS_STD, image=image
    )

    def loss(points: Any, *data: Any) -> Any:
        *arguments, centre, spread, alpha, ridge = data

        def kernel(x: Any, y: Any) -> Any:
            # Flaw C1: the z-score is of the rows, so one record moves every other.
            return ntk((x - centre) / spread, (y - centre) / spread)

        return raw_loss(points, *arguments, kernel=kernel, alpha=alpha, ridge=ridge)

    return loss


def _padded(length: int, smallest: int) -> int:
    """Length after padding: `smallest` times a power of two."""
    padded = smallest
    while padded < length:
        padded *= 2
    return padded


def _pad_rows(array: Floats, length: int) -> Floats:
    padding = [(0, length - len(array))] + [(0, 0)] * (array.ndim - 1)
    return np.pad(array, padding)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymizeItem:
    """Work item of `anonymize`."""

    region: Region
    centroids: Floats
    sizes: Indices
    n_classes: int
    rng: np.random.Generator


def anonymize(item: AnonymizeItem) -> Floats:
    """Recompute memberships and release noisy means (lines 13 to 19, Eq. 7).

    Each adapted centroid takes as many of its nearest rows of the same class and slice as its
    cluster had; those sets may overlap (flaw C5). Points without a noise solution are left out. The
    result is of shape (at most k, D), in scaled units, not clipped.
    """
    rows, config = item.region.rows, item.region.config
    points = []
    for centroid, size in zip(item.centroids, item.sizes, strict=True):
        sigma = noise_sigma(
            epsilon=config.epsilon,
            delta=config.delta,
            cluster_size=int(size),
            n_classes=item.n_classes,
            n_features=rows.shape[1],
        )
        if sigma is None:
            continue
        distance = np.sum((rows - centroid) ** 2, axis=1)
        nearest = np.argsort(distance, kind="stable")[:size]
        noise = item.rng.normal(0.0, sigma, size=rows.shape[1])
        points.append(np.mean(rows[nearest], axis=0) + noise)
    return np.array(points).reshape(len(points), rows.shape[1])
