"""Public random projections of records' vectors, and the way back."""

import math
from dataclasses import dataclass

import numpy as np

from privacy.arrays import Floats
from privacy.errors import ConfigurationError
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.method import PUBLIC_SEED
from tasks.measurement.vectors import VectorMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Public Johnson-Lindenstrauss projection (k, D) of normal entries, variance ``1 / k``.

    It keeps squared lengths on average; the way back starts from the middle (D,) of the domain.
    """

    matrix: Floats
    centre: Floats

    @property
    def n_projected(self) -> int:
        """Number k of dimensions after the projection."""
        return len(self.matrix)

    @property
    def spectral_norm(self) -> float:
        """Largest factor by which a difference of two vectors can grow."""
        return float(np.linalg.norm(self.matrix, 2))

    def project(self, vectors: Floats) -> Floats:
        """Project vectors of shape (n, D) to (n, k)."""
        projected: Floats = vectors @ self.matrix.T
        return projected

    def back(self, projected: Floats, origin: Floats | float = 0.0) -> Floats:
        """Vectors (n, D) nearest to the centre whose differences from a point are projected so."""
        missing = projected - self.matrix @ (self.centre - origin)
        back: Floats = self.centre + missing @ np.linalg.pinv(self.matrix).T
        return back


def random_projection(domain: EncodingDomain, *, n_projected: int) -> Projection:
    """Draw the public projection; ConfigurationError if it is wider than a vector."""
    vectors = VectorMap(domain)
    width = vectors.width
    if n_projected > width:
        raise ConfigurationError(
            "PROJECTION_INVALID",
            f"expected n_projected of at most {width}, the width of a record's vector, found "
            f"{n_projected}; lower n_projected",
        )
    rng = np.random.default_rng(PUBLIC_SEED)
    matrix = rng.standard_normal((n_projected, width)) / math.sqrt(n_projected)
    return Projection(matrix=matrix, centre=vectors.middle)
