r"""Random projection as a baseline of its paper: Gaussian noise on projected records.

DP-CDA's Table 3 quotes Lee et al. (ISIT 2019) for it, who name Kenthapadi, Korolova, Mironov and
Mishra ("Privacy via the Johnson-Lindenstrauss transform", 2012) and Xu et al. ("DPPro", 2017): a
record becomes ``P x + noise`` with a projection P of independent normal entries of variance 1/k.
Neither paper says which noise was used in the table. Kenthapadi et al. protect one *bit* of a
record; for a whole record, as in the other rows of the table, a difference of features in [0, 1]
has norm at most :math:`\|P\|_2 \sqrt{d_x}` after the projection, and labels are perturbed as in
`tasks.papers.local_perturbation`:

.. math:: \mu^2 = \frac{\|P\|_2^2 d_x}{\sigma_x^2} + \frac{d_y}{\sigma_y^2}.

The papers leave the records in the k new dimensions. Here they go back by the pseudo-inverse, from
the middle of the domain, to the nearest valid record.

What is claimed, and what it is not, is as for local perturbation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.parameters import PrivacyParameters
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.projection import Projection, random_projection
from tasks.measurement.synthesizer import Mapper
from tasks.measurement.vectors import VectorMap
from tasks.papers.local_perturbation import noise_stddevs, perturbed_labels
from tasks.synthesizers.slots.random_projection_config import RandomProjectionConfig

_ROWS_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True)
class PaperRandomProjection:
    """Random projection, bound to a public domain and a claimed (epsilon, delta)."""

    domain: EncodingDomain
    config: RandomProjectionConfig
    parameters: PrivacyParameters

    def __post_init__(self) -> None:
        self._projection()

    def noise_stddevs(self) -> tuple[float, float]:
        """Return the standard deviations of the noise of a projected feature and of a label."""
        return noise_stddevs(
            self.parameters,
            squared_feature_sensitivity=self._projection().spectral_norm ** 2
            * VectorMap(self.domain).width,
            n_labels=self.domain.n_labels,
            ratio=self.config.published.label_noise_ratio,
        )

    def synthesize(
        self,
        codes: NDArray[np.uint16],
        labels: NDArray[np.uint16],
        rng: np.random.Generator,
        executor_map: Mapper = map,
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Make one synthetic record of every record.

        Parameters
        ----------
        codes : uint16 array of shape (n, d)
        labels : uint16 array of shape (n,)
        rng
            Source of the noise.
        executor_map
            Not used: the work is one pass over the table.

        Returns
        -------
        codes : uint16 array of shape (n, d)
            Nearest valid record of each back-projected vector.
        labels : uint16 array of shape (n,)
            Largest coordinate of each noisy label.

        Privacy
        -------
        Claimed: (epsilon, delta) per record under replacement. See the module docstring.
        """
        vector_map, projection = VectorMap(self.domain), self._projection()
        feature_stddev, label_stddev = self.noise_stddevs()
        parts = []
        for start in range(0, len(labels), _ROWS_AT_ONCE):
            vectors = vector_map.vectors(codes[start : start + _ROWS_AT_ONCE])
            projected = vectors @ projection.matrix.T
            projected += feature_stddev * rng.standard_normal(projected.shape)
            parts.append(vector_map.codes(projection.back(projected))[0])
        noisy = perturbed_labels(
            labels, n_labels=self.domain.n_labels, noise_stddev=label_stddev, rng=rng
        )
        return np.concatenate(parts), noisy

    def _projection(self) -> Projection:
        return random_projection(self.domain, n_projected=self.config.n_projected)
