"""Public points of records: plain vectors, or random Fourier features of a kernel.

Rounding: a product of integers whose sum stays below 2**53 is exact in float64, in any order. Both
factors of every product over many records are put on a public grid for that reason: BLAS may then
be used, and how a record is rounded does not depend on the records beside it.

Source: Rahimi and Recht 2007, with paired features; DPGM paper (Acs, Melis, Castelluccia and De
Cristofaro 2019), Eq. 3.
"""

import math
from dataclasses import dataclass

import numpy as np

from privacy.arrays import Codes, Floats
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Public map from records to points of norm at most 1.

    With frequencies (D, n_pairs) Fourier features ``sqrt(1 / n_pairs) [cos(x w), sin(x w)]`` of the
    vector of a record, of norm exactly one. Without: plain vectors, which are clipped to
    `max_l2_norm` and divided by it.
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
        return self.points_of_vectors(vectors)

    def points_of_vectors(self, vectors: Floats) -> Floats:
        """Points of vectors of shape (n, D) with coordinates in [0, 1]; see `points`."""
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
