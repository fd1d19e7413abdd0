r"""Features of DP-MERF: random Fourier features of a record's vector, beside the vector itself.

The embedding of a record with vector v in [0, 1]^D is

.. math:: \varphi(v) = \Bigl(\sqrt{2(1-a)/m}\,[\cos(w_i \cdot v), \sin(w_i \cdot v)]_i,
          \ \sqrt{a}\, (v - v_0) / B\Bigr),

with m Fourier features, share a of the linear kernel, :math:`v_0` the middle of the domain and B
the largest distance from it: the sum of a Gaussian kernel and a linear one. The Fourier part has
norm exactly :math:`\sqrt{1-a}`, as the squares of a pair add up to one, so
:math:`\|\varphi\| \le 1`, with equality where a is 0.

References
----------
Rahimi and Recht (2007), "Random features for large-scale kernel machines". Harder, Adamczewski and
Park (AISTATS 2021), "DP-MERF", Section 4: Gaussian kernel for numbers, linear one for categories.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from privacy.arrays import Codes, Floats, Integers
from privacy.errors import ConfigurationError
from tasks.measurement.encoded import EncodedRows, EncodingDomain, row_slices
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap
from tasks.methods.dp_merf.config import PUBLIC_SEED, DpMerfConfig

VECTOR_SCALE = 2**16
"""Grid points per unit of a coordinate of a vector, before it meets the frequencies."""

FREQUENCY_SCALE = 2**20
"""Grid points per unit of a frequency."""

_ONE_HOT_WIDTH_LIMIT = 400
"""Widest one-hot row for which a bin of a number is a coordinate."""


def vector_map_of(domain: EncodingDomain, config: DpMerfConfig) -> VectorMap:
    """Public map from codes to vectors: a narrow table keeps a coordinate for every bin."""
    narrow = domain.one_hot_width <= _ONE_HOT_WIDTH_LIMIT
    if config.features == "one_hot" or (config.features == "auto" and narrow):
        domain = replace(domain, numeric=(False,) * domain.n_columns)
    return VectorMap(domain)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingFeatures:
    """Map codes to features ``phi``; those of `draw` have norm at most 1 for every record.

    Frequencies (m / 2, D) are in whole multiples of ``1 / FREQUENCY_SCALE``; too large ones, whose
    phases would be rounded, are a ConfigurationError (``LENGTH_SCALE_TOO_SMALL``). The linear
    scales (D,) are factors of the coordinates of the vector less the origin; None for features
    without a linear part.

    Privacy
    -------
    A function of one record and public constants, to the last bit. A matrix product of floats
    would round the phases of a record by where it lies among others; here vectors and frequencies
    are integers on a grid and every partial sum is below 2**53, so the product is exact.
    """

    vector_map: VectorMap
    frequencies: Floats
    fourier_scale: float
    linear_scales: Floats | None
    origin: Floats | float = 0.0

    def __post_init__(self) -> None:
        largest = np.abs(self.frequencies).sum(axis=1).max() * FREQUENCY_SCALE * VECTOR_SCALE
        if not largest < 2.0**53:
            raise ConfigurationError(
                "LENGTH_SCALE_TOO_SMALL",
                f"expected phases below 2**53 grid points, found up to {largest:.3g}; raise "
                "length_scale",
            )

    @classmethod
    def draw(cls, domain: EncodingDomain, config: DpMerfConfig) -> Self:
        """Draw the features of the proven form from the public seed."""
        vector_map = vector_map_of(domain, config)
        half, share = config.fourier_features // 2, config.linear_share
        middle = vector_map.middle
        linear = np.full(vector_map.width, np.sqrt(share) / vector_map.radius(middle))
        return cls(
            vector_map=vector_map,
            frequencies=draw_frequencies(
                half,
                vector_map.width,
                length_scale=config.length_scale * vector_map.typical_distance,
            ),
            fourier_scale=float(np.sqrt((1.0 - share) / half)),
            linear_scales=linear if share > 0 else None,
            origin=middle,
        )

    @property
    def n_features(self) -> int:
        """Number of features of ``phi``."""
        linear = 0 if self.linear_scales is None else len(self.linear_scales)
        return 2 * len(self.frequencies) + linear

    def phi(self, codes: Codes) -> Floats:
        """Features (n, n_features) of records (n, d): cosines, sines, linear part if any."""
        vectors = self.vector_map.vectors(codes)
        whole = np.rint(vectors * VECTOR_SCALE)
        phases = whole @ (self.frequencies * FREQUENCY_SCALE).T
        phases /= float(VECTOR_SCALE * FREQUENCY_SCALE)
        half = len(self.frequencies)
        features = np.empty((len(codes), self.n_features))
        np.cos(phases, out=features[:, :half])
        np.sin(phases, out=features[:, half : 2 * half])
        features[:, : 2 * half] *= self.fourier_scale
        if self.linear_scales is not None:
            np.multiply(vectors - self.origin, self.linear_scales, out=features[:, 2 * half :])
        return features

    def uncentred(self, means: Floats) -> Floats:
        """Return means (C, n_features) with the origin put back, as a generator has them."""
        if self.linear_scales is not None:
            means[:, 2 * len(self.frequencies) :] += self.origin * self.linear_scales
        return means


def draw_frequencies(n: int, width: int, *, length_scale: float) -> Floats:
    """Draw frequencies (n, width) of ``exp(-|x - y|^2 / (2 length_scale^2))`` on their grid."""
    normal = np.random.default_rng(PUBLIC_SEED).standard_normal((n, width))
    return np.rint(normal / length_scale * FREQUENCY_SCALE) / FREQUENCY_SCALE


def embedding_sums(rows: EncodedRows, *, features: EmbeddingFeatures, n_labels: int) -> Integers:
    """Weighted sums (C, n_features) of the features of each label, in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * phi``, of norm at most its
    weight, to the row of its label; the weights of a patient sum to at most one; so the Euclidean
    sensitivity is 1 (``SUM_SCALE`` grid points), whatever the labels of the patient's records.
    Event: one discrete Gaussian.
    """
    total = np.zeros((n_labels, features.n_features), dtype=np.int64)
    for block in row_slices(len(rows), 1_024):
        amount = features.phi(rows.codes[block])
        amount *= rows.weight[block][:, None] * SUM_SCALE
        np.trunc(amount, out=amount)
        # Sums of integers below 2**53: exact in float64, in any order.
        total += (np.eye(n_labels)[rows.label[block]].T @ amount).astype(np.int64)
    return total
