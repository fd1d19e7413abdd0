"""Density of images by post-processing of released sums: cells of labels, with a covariance."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from privacy.arrays import Floats, Floats32, Integers

LEADING = 12
"""Pooled principal directions in which the nearest centre is sought."""

_LEAST_COUNT = 20.0
_START_SPREAD = 0.7
_LEAST_CELL = 4.0
"""Smallest noisy size of a cell, in standard deviations of its noise, above one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Released labels: sizes (C,), each at least 20, and means (C, d)."""

    sizes: Floats
    means: Floats

    @classmethod
    def of(cls, noisy: Floats) -> Self:
        """Return the labels of noisy class sums (C, 1 + d)."""
        sizes = np.maximum(noisy[:, 0], _LEAST_COUNT)
        means = noisy[:, 1:] / sizes[:, None]
        norms = np.linalg.norm(means, axis=1)[:, None]
        # A mean of vectors of norm one has norm one at most.
        return cls(sizes=sizes, means=means / np.maximum(norms, 1.0))


def spread_of(noisy: Floats, classes: Classes, *, stddev: float) -> tuple[Floats, Floats]:
    """Return covariances (C, d, d) of the labels, and the leading pooled directions (d, r).

    `noisy` are upper triangles (C, d (d + 1) / 2) of `class_moments`, with noise `stddev` per
    entry. A label's deviation from the pooled covariance shrinks by the part that noise explains
    (positive-part James-Stein); eigenvalues below the noise edge ``2 stddev sqrt(d)`` become zero.
    """
    n_labels, d = classes.means.shape
    rows, columns = np.triu_indices(d)
    sums = np.zeros((n_labels, d, d))
    sums[:, rows, columns] = noisy
    sums += np.triu(sums, 1).transpose(0, 2, 1)
    sums[:, np.arange(d), np.arange(d)] *= np.sqrt(2.0)
    edge, total = 2.0 * stddev * np.sqrt(d), classes.sizes.sum()
    pooled = sums.sum(axis=0) / total
    values, vectors = np.linalg.eigh(pooled)
    values = np.where(values > edge * np.sqrt(n_labels) / total, values, 0.0)
    pooled = (vectors * values) @ vectors.T
    found = np.empty_like(sums)
    for label, size in enumerate(classes.sizes):
        own = sums[label] / size
        noise = (stddev / size) ** 2 * d * (d + 1)
        kept = max(0.0, 1.0 - noise / max(float(((own - pooled) ** 2).sum()), 1e-12))
        values, axes = np.linalg.eigh(kept * own + (1.0 - kept) * pooled)
        values = np.where(values > kept * edge / size, values, 0.0)
        found[label] = (axes * values) @ axes.T
    return found, vectors[:, ::-1][:, :LEADING]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Cells of each label: centres (C, K, d) and noisy sizes (C, K), 0 for one that is not used."""

    centres: Floats
    sizes: Floats


def first_cells(
    classes: Classes, covariances: Floats, n_cells: int, rng: np.random.Generator
) -> Cells:
    """Start at draws of the Gaussian of each label."""
    n_labels, d = classes.means.shape
    roots = _roots(covariances)
    centres = classes.means[:, None] + _START_SPREAD * (
        rng.standard_normal((n_labels, n_cells, d)) @ roots.transpose(0, 2, 1)
    )
    sizes = np.repeat(classes.sizes[:, None] / n_cells, n_cells, axis=1)
    return Cells(centres=centres, sizes=sizes)


def moved(
    cells: Cells, noisy: Floats, classes: Classes, covariances: Floats, *, stddev: float
) -> Cells:
    """Move centres to the means of noisy cell sums (C, K, 1 + d).

    Means are filtered in the directions of their label's covariance, each by the share of its
    variance that is no noise (Wiener). A cell below the minimum size is not used: the step prior of
    Eq. 2 to 4, on noisy sizes.
    """
    counts = noisy[..., 0]
    used = counts >= _LEAST_CELL * stddev + 1.0
    centres = np.repeat(classes.means[:, None], counts.shape[1], axis=1)
    for label in range(len(counts)):
        values, axes = np.linalg.eigh(covariances[label])
        values = np.maximum(values, 0.0)
        for cell in np.flatnonzero(used[label]):
            size = counts[label, cell]
            apart = axes.T @ (noisy[label, cell, 1:] / size - classes.means[label])
            kept = values / (values + (stddev / size) ** 2 + 1e-9)
            centres[label, cell] += axes @ (kept * apart)
    return Cells(centres=centres, sizes=np.where(used, counts, 0.0))


def restarted(
    cells: Cells, classes: Classes, covariances: Floats, rng: np.random.Generator
) -> Cells:
    """Give cells that are not used another start for the next round."""
    other = first_cells(classes, covariances, cells.sizes.shape[1], rng)
    is_used = cells.sizes[..., None] > 0.0
    return replace(cells, centres=np.where(is_used, cells.centres, other.centres))


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """Shares (C, K) of cells, centres (C, K, d), and a factor (C, d, d) of their covariances."""

    shares: Floats
    centres: Floats
    factors: Floats32

    @classmethod
    def of(cls, cells: Cells, classes: Classes, covariances: Floats) -> Self:
        """Put the parts together; covariances in cells are those of labels less those between."""
        sizes = np.where(cells.sizes.any(axis=1, keepdims=True), cells.sizes, 1.0)
        within = sizes / sizes.sum(axis=1, keepdims=True)
        apart = cells.centres - classes.means[:, None]
        between = np.einsum("ckd,cke->cde", apart * within[..., None], apart)
        labels = classes.sizes / classes.sizes.sum()
        return cls(
            shares=within * labels[:, None],
            centres=cells.centres,
            factors=_roots(covariances - between).astype(np.float32),
        )

    def sample(
        self, n: int, rng: np.random.Generator, *, temperatures: Floats
    ) -> tuple[Floats32, Integers]:
        """Draw vectors (n, d) by covariances times factors in a range, and labels (n,)."""
        n_cells = self.shares.shape[1]
        place = rng.choice(self.shares.size, size=n, p=self.shares.ravel())
        label, cell = place // n_cells, place % n_cells
        heat = rng.uniform(temperatures[0], temperatures[1], size=(n, 1))
        away = (heat * rng.standard_normal((n, self.centres.shape[2]))).astype(np.float32)
        found = self.centres[label, cell].astype(np.float32)
        for index in np.unique(label):
            own = label == index
            found[own] += away[own] @ self.factors[index].T
        return found, label


def _roots(covariances: Floats) -> Floats:
    """Roots of the nearest positive semi-definite matrices (C, d, d)."""
    values, vectors = np.linalg.eigh(covariances)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])
