"""Kernel features of a record: joint effects of its columns, by inducing points and products.

Records are embedded (numbers as standardised ordinals, levels as indicators, each column scaled by
its association with the label) and compared with inducing points by a Gaussian kernel. The features
are the Nystroem map of that kernel, less what is linear in the embedding, in the directions that
vary the most over the released mixture; beside them stand `interactions` of two columns.

A record's features are the same to the last bit in any batch: the embedding and both matrices are
whole numbers, with products and sums that float64 holds exactly, and the kernel is read from a
table. Fitting is post-processing of released values.

Source: Williams and Seeger, "Using the Nystroem method to speed up kernel machines", 2000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.encoded import row_slices
from tasks.methods.clustmix.records import interactions
from tasks.methods.clustmix.records.table_layout import Layout

FEATURE_NORM = 2**12
"""Grid points of a feature vector of norm one."""

N_FEATURES = 60

_EMBEDDED = 2**10
_KERNEL = 2**14
_EXACT = 2.0**50
_FARTHEST, _TABLE_STEPS = 12.0, 2**17
_LEVEL, _WIDEST = 0.8, 8.0
_LEAST_PART = 0.03
_LEAST_SPREAD, _LEAST = 0.05, 1e-9
_FLAT, _FLATTEST = 30, 1e-3
_ROWS_AT_ONCE = 512  # their kernel stays in the cache of a processor
_NONE = np.empty((0, 2), dtype=np.int64)
_TABLE = np.rint(_KERNEL * np.exp(-_FARTHEST * np.arange(_TABLE_STEPS + 1) / _TABLE_STEPS))


@dataclass(frozen=True, kw_only=True)
class KernelMap:
    """Features (n, q) of records; all arrays are float64.

    The embedding (W, E) of each code of a declared column, the inducing points (M, E), the matrix
    (M, q) on the kernel and the linear part (E, q) are whole numbers. The reach is the squared
    distance at which the kernel has fallen to 1 / e; shift and factors (q,) are applied last. From
    `interactions` come the coordinates (W, E') of each code, whole numbers, the pairs (Q, 2) to
    multiply, and the spread (Q,) of each product.
    """

    embedding: Floats
    points: Floats
    reach: float
    matrix: Floats
    linear: Floats
    shift: Floats
    factors: Floats
    coordinates: Floats
    products: Integers
    spreads: Floats

    @classmethod
    def fitted(
        cls,
        layout: Layout,
        shares: Floats,
        association: Floats,
        codes: Codes,
        *,
        n_points: int,
        n_products: int,
    ) -> Self:
        """Fit the map to released values alone.

        Inputs: shares (W,) of codes, associations (d,) with the label, codes (N, d) of the mixture.
        """
        coordinates = interactions.coordinates(layout, shares)
        products = interactions.chosen_products(layout, association, n_products)
        made = interactions.products_of(layout, coordinates, products, codes)
        embedding = _embedding(layout, shares, association)
        embedded = _embed(layout, embedding, codes)
        centres = inducing_points(embedded, n_points)
        reach = typical_distance(embedded)
        gram = _kernel(centres, centres, reach) / _KERNEL
        values, vectors = np.linalg.eigh(gram)
        root = (vectors * np.maximum(values, 1e-4 * values[-1]) ** -0.5) / _KERNEL
        found = _kernel(embedded, centres, reach) @ root
        line = np.column_stack([np.ones(len(embedded)), embedded / _EMBEDDED])
        moments = line.T @ line + 1e-6 * len(line) * np.eye(line.shape[1])
        known = np.linalg.solve(moments, line.T @ found)
        left = found - line @ known
        values, vectors = np.linalg.eigh(left.T @ left / len(left))
        kept = np.argsort(-values)[: min(N_FEATURES, len(values))]
        # Directions that hardly vary are rounding alone, and would drown the others.
        variances = np.maximum(values[kept], _FLATTEST * values.max() + _LEAST)
        axes = vectors[:, kept] * (variances + variances[min(_FLAT, len(kept)) - 1]) ** -0.5
        matrix, linear = root @ axes, known[1:] @ axes / _EMBEDDED
        # No partial sum of the products leaves the numbers that float64 holds exactly.
        largest = _KERNEL * np.abs(matrix).sum(axis=0)
        largest += float(np.abs(embedding).sum(axis=1).max()) * np.abs(linear).sum(axis=0)
        units = _EXACT / np.maximum(largest, _LEAST)
        return cls(
            embedding=embedding,
            points=centres,
            reach=reach,
            matrix=np.rint(matrix * units),
            linear=np.rint(linear * units),
            shift=np.rint(known[0] @ axes * units),
            factors=1.0 / units,
            coordinates=coordinates,
            products=products,
            spreads=interactions.spreads_of(made),
        )

    @classmethod
    def of(cls, released: Mapping[str, NDArray[Any]]) -> Self:
        """Return the map of a measurement, without products if it has none."""
        arrays: dict[str, Any] = {"coordinates": _NONE, "products": _NONE, "spreads": _NONE}
        for name in cls.__dataclass_fields__:
            arrays[name] = released.get(f"kernel_{name}", arrays.get(name))
        arrays["reach"] = float(arrays["reach"])
        return cls(**arrays)

    @property
    def released(self) -> dict[str, NDArray[Any]]:
        """Everything that `of` reads."""
        return {f"kernel_{name}": np.asarray(value) for name, value in vars(self).items()}

    @property
    def n_features(self) -> int:
        """Number of features, products among them."""
        return len(self.factors) + len(self.products)

    def features(self, layout: Layout, codes: NDArray[Any]) -> Floats:
        """Whole numbers (n, q + Q), of norm ``FEATURE_NORM`` at most, of records (n, d)."""
        embedded = _embed(layout, self.embedding, codes)
        found = np.empty((len(codes), len(self.factors)))
        for part in row_slices(len(codes), _ROWS_AT_ONCE):
            found[part] = _kernel(embedded[part], self.points, self.reach) @ self.matrix
        found -= embedded @ self.linear
        found = _of_norm_one((found - self.shift) * self.factors)
        if len(self.products):
            made = interactions.products_of(layout, self.coordinates, self.products, codes)
            both = (found, _of_norm_one(made / self.spreads))
            found = np.column_stack(both) * np.sqrt(0.5)
        return np.asarray(np.trunc(FEATURE_NORM * found))


def _of_norm_one(features: Floats) -> Floats:
    # Row after row in memory: otherwise a sum along a row is rounded by how many rows there are.
    features = np.ascontiguousarray(features)
    norms = np.sqrt((features * features).sum(axis=1, keepdims=True))
    return np.asarray(features / np.maximum(norms, _LEAST))


def _embedding(layout: Layout, shares: Floats, association: Floats) -> Floats:
    """Embed every code of a declared column: whole numbers (W', E) with blocks on the diagonal."""
    blocks = []
    for column in range(layout.n_declared):
        block = layout.block(column)
        share, size = shares[block], layout.n_codes[column]
        if layout.numeric[column]:
            missing = layout.has_missing[column]
            n_bins = size - int(missing)
            place, weight = np.arange(n_bins), share[:n_bins] / share[:n_bins].sum()
            mean = float(weight @ place)
            spread = np.sqrt(max(float(weight @ (place - mean) ** 2), _LEAST_SPREAD))
            found = np.zeros((size, 1 + int(missing)))
            # Bounded, so that squared distances are whole numbers that float64 holds exactly.
            found[:n_bins, 0] = np.clip((place - mean) / spread, -_WIDEST, _WIDEST)
            found[n_bins:, 1:] = 1.0
        else:
            found = _LEVEL * np.eye(size)
        blocks.append(found - share @ found)
    sizes = np.sqrt(
        (association + _LEAST_PART * association.mean() + _LEAST) / (association.max() + _LEAST)
    )
    whole = [np.rint(_EMBEDDED * size * block) for block, size in zip(blocks, sizes, strict=True)]
    return np.asarray(block_diag(*whole))


def association_with_label(
    layout: Layout, by_label: Floats, labels: Floats, *, stddev: float
) -> Floats:
    """Association of each declared column (d,) with the label: Pearson's mean square contingency.

    The expected square of the noise of counts (C, W) is subtracted; the result is at least zero.
    """
    total = by_label.sum(axis=0)
    patients = total[layout.block(0)].sum()
    expected = np.maximum(labels[:, None] * total, stddev)
    squares = ((by_label - labels[:, None] * total) ** 2 - stddev**2) / expected
    found = np.add.reduceat(squares.sum(axis=0), layout.offsets[:-1])[: layout.n_declared]
    return np.asarray(np.maximum(found, 0.0) / max(float(patients), 1.0))


def _embed(layout: Layout, embedding: Floats, codes: NDArray[Any]) -> Floats:
    """Return the embedding (n, E) of records, as whole numbers."""
    result = np.zeros((len(codes), embedding.shape[1]))
    start = 0
    for column in range(layout.n_declared):
        block = layout.block(column)
        n_numbers = 1 + int(layout.has_missing[column])
        end = start + (n_numbers if layout.numeric[column] else layout.n_codes[column])
        result[:, start:end] = embedding[block, start:end][codes[:, column]]
        start = end
    return result


def _kernel(embedded: Floats, points: Floats, reach: float) -> Floats:
    """Whole numbers (n, M) up to ``_KERNEL``: ``exp(-distance / reach)`` by a table."""
    # Squared distances of whole numbers: exact.
    distances = embedded @ (-2.0 * points.T)
    distances += (points * points).sum(axis=1)
    distances += (embedded * embedded).sum(axis=1, keepdims=True)
    place = distances * (_TABLE_STEPS / (_FARTHEST * reach))
    index = np.rint(np.minimum(place, _TABLE_STEPS)).astype(np.int64)
    return np.asarray(_TABLE[index])


def inducing_points(embedded: Floats, n_points: int) -> Floats:
    """Return the inducing points: the first records; docs/results.md has optimised ones."""
    return embedded[:n_points]


def typical_distance(embedded: Floats) -> float:
    """Median squared distance of two records, 1 at least."""
    half = min(len(embedded) // 2, 2_000)
    apart = ((embedded[:half] - embedded[half : 2 * half]) ** 2).sum(axis=1)
    return max(float(np.median(apart)), 1.0)
