"""Isotropic Gaussian mixture in which every cluster holds at least a minimum number of rows.

Eq. 2 to 4: the log likelihood of a hard assignment plus a prior on cluster sizes that is zero below
the minimum and uniform above. Expectation-maximisation alternates

* assignment: the sizes at or above the minimum that maximise the log likelihood, an exact min-cost
  flow from rows to clusters;
* estimation: mean and one variance per cluster.

When time runs out the paper falls back to constrained k-means: here one assignment by distances.

Flaw C4: memberships are an optimum over all rows. Replacing a single record can move whole blocks
between clusters and shift their means by a constant, not by one over the cluster size.
"""

import math
import time

import numpy as np
from ortools.graph.python.min_cost_flow import SimpleMinCostFlow
from sklearn.cluster import kmeans_plusplus

from privacy.arrays import Floats, Indices

# Smallest variance of a cluster, for features in [0, 1]; sklearn's default regularisation.
_MIN_VARIANCE = 1e-6

# Whole units of the largest cost: relative rounding stays far below that of the likelihoods' sum.
_COST_UNITS = 2.0**44


def assign_with_minimum_size(cost: Floats, min_size: int) -> Indices:
    """Cheapest assignment (n,) by costs (n, k), at least `min_size` rows each (else ValueError).

    A min-cost flow: a unit from each row through one cluster, of which `min_size` units stay in
    every cluster and the rest meet behind them.
    """
    n_rows, n_clusters = cost.shape
    if n_rows < n_clusters * min_size or not np.all(np.isfinite(cost)):
        raise ValueError("expected finite costs, and enough rows for every cluster")
    above = cost - cost.min(axis=1, keepdims=True)
    # The solver takes whole numbers, whose sum over all rows has to fit into 63 bits.
    units = np.rint(above * (_COST_UNITS / max(float(above.max()), 1.0))).astype(np.int64)
    rows, clusters = np.arange(n_rows), n_rows + np.arange(n_clusters)
    flow, behind = SimpleMinCostFlow(), n_rows + n_clusters
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        np.repeat(rows, n_clusters), np.tile(clusters, n_rows), 1, units.ravel()
    )
    flow.add_arcs_with_capacity_and_unit_cost(clusters, behind, n_rows, 0)
    flow.set_nodes_supplies(rows, 1)
    flow.set_nodes_supplies(clusters, -min_size)
    flow.set_nodes_supplies(behind, n_clusters * min_size - n_rows)
    if flow.solve() != flow.OPTIMAL:
        raise ValueError("expected an optimal assignment, found none")
    return np.asarray(flow.flows(arcs).reshape(cost.shape).argmax(axis=1))


def constrained_gmm(
    rows: Floats,
    *,
    n_clusters: int,
    min_size: int,
    max_iterations: int,
    n_starts: int,
    rng: np.random.Generator,
    seconds: float = math.inf,
) -> tuple[Indices, bool]:
    """Cluster rows (n, D): GMMConstrained(X, n, l_min) of the paper.

    The most likely of `n_starts` k-means++ starts is kept, each cluster (n,) at least `min_size`
    large (ValueError if they do not fit); and whether time ran out before it settled.
    """
    if n_clusters < 1 or min_size < 1 or n_clusters * min_size > len(rows):
        raise ValueError("expected enough rows to fill every cluster to its minimum size")
    if n_clusters == 1:
        return np.zeros(len(rows), dtype=np.intp), False
    sizes, limits = (n_clusters, min_size), (max_iterations, time.monotonic() + seconds)
    fitted = [_fit(rows, sizes, limits, rng) for _ in range(n_starts)]
    return max(fitted, key=lambda found: found[0])[1:]


def _fit(
    rows: Floats, sizes: tuple[int, int], limits: tuple[int, float], rng: np.random.Generator
) -> tuple[float, Indices, bool]:
    """Log likelihood and clusters from one start, and whether the clock ended it."""
    (n_clusters, min_size), (max_iterations, end) = sizes, limits
    means, _ = kmeans_plusplus(rows, n_clusters, random_state=int(rng.integers(2**31)))
    variances = np.full(n_clusters, max(float(np.mean(np.var(rows, axis=0))), _MIN_VARIANCE))
    labels, late = np.full(len(rows), -1), False
    for _ in range(max_iterations):
        late = time.monotonic() > end
        if late:
            variances = np.ones(n_clusters)  # of one spread, likelihoods are distances
        updated = assign_with_minimum_size(-log_likelihoods(rows, means, variances), min_size)
        settled, labels = np.array_equal(updated, labels), updated
        means, variances = estimate_components(rows, labels, n_clusters)
        if settled or late:
            break
    likelihood = log_likelihoods(rows, means, variances)[np.arange(len(rows)), labels]
    return float(np.sum(likelihood)), labels, late


def log_likelihoods(rows: Floats, means: Floats, variances: Floats) -> Floats:
    """Log density of each row (n, D) under each isotropic Gaussian; shape (n, k)."""
    squares = (
        np.sum(rows**2, axis=1)[:, None] - 2.0 * rows @ means.T + np.sum(means**2, axis=1)[None, :]
    )
    n_features = rows.shape[1]
    exponents = np.maximum(squares, 0.0) / variances
    normalisers = n_features * np.log(2.0 * np.pi * variances)
    return np.asarray(-0.5 * (exponents + normalisers), dtype=np.float64)


def estimate_components(rows: Floats, labels: Indices, n_clusters: int) -> tuple[Floats, Floats]:
    """Mean (k, D) and isotropic variance (k,) of each cluster, none of them empty."""
    sizes = np.bincount(labels, minlength=n_clusters)
    means = cluster_means(rows, labels, n_clusters)
    squares = np.mean((rows - means[labels]) ** 2, axis=1)
    variances = np.bincount(labels, weights=squares, minlength=n_clusters) / sizes
    return means, np.maximum(variances, _MIN_VARIANCE)


def cluster_means(rows: Floats, labels: Indices, n_clusters: int) -> Floats:
    """Mean of the rows of each cluster; shape (k, D)."""
    sums = np.zeros((n_clusters, rows.shape[1]))
    np.add.at(sums, labels, rows)
    means: Floats = sums / np.bincount(labels, minlength=n_clusters)[:, None]
    return means
