"""Steps of the printed algorithm: clusters, inducing points, noisy means of a class of a slice."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rivals.clustmix.claimed_noise import noise_sigma
from benchmarks.rivals.clustmix.constrained_gmm import cluster_means, constrained_gmm
from benchmarks.rivals.clustmix.kip import Loss, centred_one_hot, optimise, raw_loss
from privacy.arrays import Floats, Indices
from privacy.parameters import PrivacyParameters
from tasks.distillation.tangent_kernels import tangent_kernel

if TYPE_CHECKING:
    from benchmarks.rivals.clustmix.algorithm import ClustMixSettings

# Weight and bias scale of the network behind the kernel, as in the KIP reference implementation.
_WEIGHT_STD = math.sqrt(2.0)
_BIAS_STD = 0.1


def approximate(
    rows: Floats, *, min_size: int, settings: ClustMixSettings, rng: np.random.Generator
) -> tuple[Floats, Indices, bool]:
    """Cluster rows (lines 4 to 8) in floor(rows / l_min) clusters of at least l_min rows.

    Returns the centroids (k, D) and sizes (k,), and whether the clock ended the clustering.
    """
    n_clusters = len(rows) // min_size
    labels, late = constrained_gmm(
        rows,
        n_clusters=n_clusters,
        min_size=min_size,
        max_iterations=settings.gmm_iterations,
        n_starts=settings.gmm_starts,
        seconds=settings.gmm_seconds,
        rng=rng,
    )
    return cluster_means(rows, labels, n_clusters), np.bincount(labels, minlength=n_clusters), late


def adapt(
    centroids: Floats,
    centroid_codes: Indices,
    targets: Floats,
    target_codes: Indices,
    *,
    n_classes: int,
    moments: tuple[Floats, Floats],
    settings: ClustMixSettings,
    image: tuple[int, int, int] | None,
) -> Floats:
    """Adapt the centroids of a slice (line 11) to all of its raw rows (flaw C5), inside [0, 1]."""
    # Padding to a few sizes keeps the number of compiled programs small.
    n_support, n_targets = _padded(len(centroids), 8), _padded(len(targets), 512)
    start = _pad_rows(centroids, n_support)
    points = optimise(
        _slice_loss(settings.hidden_layers, image),
        start,
        (
            _pad_rows(centred_one_hot(centroid_codes, n_classes), n_support),
            start,
            _pad_rows(targets, n_targets),
            _pad_rows(centred_one_hot(target_codes, n_classes), n_targets),
            _pad_rows(np.ones(len(centroids)), n_support),
            _pad_rows(np.ones(len(targets)), n_targets),
            *moments,
            settings.alpha,
            settings.ridge,
        ),
        steps=settings.kip_steps,
        learning_rate=settings.learning_rate,
        tolerance=1e-6,
    )
    return points[: len(centroids)]


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


def anonymize(
    rows: Floats,
    centroids: Floats,
    sizes: Indices,
    *,
    n_classes: int,
    parameters: PrivacyParameters,
    rng: np.random.Generator,
) -> Floats:
    """Recompute memberships and make noisy means (lines 13 to 19, Eq. 7), of one class of a slice.

    Each adapted centroid takes as many of its nearest rows as its cluster had; those sets may
    overlap (flaw C5). Points without a noise solution are left out. The result is of shape
    (at most k, D), in scaled units, not clipped.
    """
    points = []
    for centroid, size in zip(centroids, sizes, strict=True):
        sigma = noise_sigma(
            epsilon=parameters.epsilon,
            delta=parameters.delta,
            cluster_size=int(size),
            n_classes=n_classes,
            n_features=rows.shape[1],
        )
        if sigma is None:
            continue
        distance = np.sum((rows - centroid) ** 2, axis=1)
        nearest = np.argsort(distance, kind="stable")[:size]
        points.append(np.mean(rows[nearest], axis=0) + rng.normal(0.0, sigma, rows.shape[1]))
    return np.array(points).reshape(len(points), rows.shape[1])
