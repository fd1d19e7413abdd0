r"""Features of DP-MERF: random Fourier features of a record's vector, beside the vector itself.

The embedding of a record with vector v in [0, 1]^D is

.. math:: \varphi(v) = \Bigl(\sqrt{2(1-a)/m}\,[\cos(w_i \cdot v), \sin(w_i \cdot v)]_i,
          \ \sqrt{a}\, (v - v_0) / B\Bigr),

with m Fourier features, share a of the linear kernel, :math:`v_0` the middle of the domain and B
the largest distance from it: the sum of a Gaussian kernel and a linear one. The Fourier part has
norm :math:`\sqrt{1-a}`, as the squares of a pair add up to one, so :math:`\|\varphi\| \le 1`.

References
----------
Rahimi and Recht (2007), "Random features for large-scale kernel machines". Harder, Adamczewski and
Park (AISTATS 2021), "DP-MERF", Section 4: Gaussian kernel for numbers, linear one for categories.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.distance import pdist

from privacy.arrays import Codes, Floats
from tasks.measurement.encoded import EncodingDomain, row_slices
from tasks.measurement.vectors import VectorMap

_ONE_HOT_WIDTH_LIMIT = 400
"""Widest one-hot row for which a bin of a number is a coordinate."""


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingFeatures:
    """Map of codes to features ``phi``.

    Frequencies have shape (m / 2, D). The linear scales (D,) are factors of the coordinates of the
    vector less the origin; None for features without a linear part.
    """

    vector_map: VectorMap
    frequencies: Floats
    fourier_scale: float
    linear_scales: Floats | None
    origin: Floats | float = 0.0

    @property
    def n_features(self) -> int:
        """Number of features of ``phi``."""
        linear = 0 if self.linear_scales is None else len(self.linear_scales)
        return 2 * len(self.frequencies) + linear

    def sums(self, codes: Codes, labels: Codes, *, n_labels: int) -> Floats:
        """Return sums (C, n_features) of the features of each label, of records (n, d)."""
        total = np.zeros((n_labels, self.n_features))
        for block in row_slices(len(labels), 1_024):
            total += np.eye(n_labels)[labels[block]].T @ self.phi(codes[block])
        return total

    def phi(self, codes: Codes) -> Floats:
        """Features (n, n_features) of records (n, d): cosines, sines, linear part if any."""
        vectors = self.vector_map.vectors(codes)
        phases = vectors @ self.frequencies.T
        parts = [self.fourier_scale * np.cos(phases), self.fourier_scale * np.sin(phases)]
        if self.linear_scales is not None:
            parts.append((vectors - self.origin) * self.linear_scales)
        return np.concatenate(parts, axis=1)

    def uncentred(self, means: Floats) -> Floats:
        """Return means (C, n_features) with the origin put back, as a generator has them."""
        if self.linear_scales is not None:
            means[:, 2 * len(self.frequencies) :] += self.origin * self.linear_scales
        return means


def public_features(
    domain: EncodingDomain, *, n_fourier: int, length_scale: float, linear_share: float, seed: int
) -> EmbeddingFeatures:
    """Features of norm at most 1, from the public domain and a public seed.

    A length scale of 1 is the distance of two uniform records. A narrow table has a coordinate for
    every bin of a number.
    """
    if domain.one_hot_width <= _ONE_HOT_WIDTH_LIMIT:
        domain = replace(domain, numeric=(False,) * domain.n_columns)
    vector_map, half = VectorMap(domain), n_fourier // 2
    scale = np.sqrt(linear_share) / vector_map.radius(vector_map.middle)
    return EmbeddingFeatures(
        vector_map=vector_map,
        frequencies=_frequencies(
            half, vector_map.width, length_scale * vector_map.typical_distance, seed
        ),
        fourier_scale=float(np.sqrt((1.0 - linear_share) / half)),
        linear_scales=np.full(vector_map.width, scale) if linear_share > 0 else None,
        origin=vector_map.middle,
    )


def private_features(
    domain: EncodingDomain, aside: Codes, *, n_fourier: int, seed: int
) -> EmbeddingFeatures:
    """Features of the authors, whose length scale is the median distance of private records."""
    vector_map, half = VectorMap(domain), n_fourier // 2
    is_number = np.concatenate(
        [np.full(block.stop - block.start, block.kind == "unit") for block in vector_map.blocks]
    )
    linear, in_kernel = None, np.ones_like(is_number)
    if is_number.any() and not is_number.all():
        # The linear part of a record has as many ones as there are other blocks, at most.
        n_others = sum(block.kind != "unit" for block in vector_map.blocks)
        in_kernel, linear = is_number, ~is_number / np.sqrt(n_others)
    length_scale = median_distance(vector_map.vectors(aside)[:, in_kernel])
    return EmbeddingFeatures(
        vector_map=vector_map,
        frequencies=_frequencies(half, vector_map.width, length_scale, seed) * in_kernel,
        fourier_scale=float(np.sqrt(1.0 / half)),
        linear_scales=linear,
    )


def median_distance(vectors: Floats) -> float:
    """Median distance of the rows (k, D), k >= 2; their mean distance where it is 0, else 1."""
    distances = pdist(vectors)
    return float(np.median(distances) or distances.mean() or 1.0)


def _frequencies(n: int, width: int, length_scale: float, seed: int) -> Floats:
    """Draw frequencies (n, width) of ``exp(-|x - y|^2 / (2 length_scale^2))``."""
    drawn: Floats = np.random.default_rng(seed).standard_normal((n, width)) / length_scale
    return drawn
