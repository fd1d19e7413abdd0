r"""Local perturbation as a baseline of its paper: Gaussian noise on every record and its label.

DP-CDA's Table 3 quotes Lee et al. (ISIT 2019) for it; neither gives a formula. Here it is their
DPMix with l = 1, without samples: every record is released once, so replacing one changes one row
of the output. With features in [0, 1] and the sensitivities that they use for DPMix, the noise has

.. math:: \mu^2 = \frac{d_x}{\sigma_x^2} + \frac{d_y}{\sigma_y^2}

for the exact Gaussian mechanism (Dong, Roth and Su 2019) with the mu of the claimed epsilon.

What is claimed holds per *record* under replacement, also for an untrusted curator. It is not the
guarantee of a release: a patient may have several records, and one row is released per record, so
that the number of records shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.synthesizer import Mapper
from tasks.measurement.vectors import VectorMap
from tasks.synthesizers.slots.local_perturbation_config import LocalPerturbationConfig

_ROWS_AT_ONCE = 4_096


def noise_stddevs(
    parameters: PrivacyParameters,
    *,
    squared_feature_sensitivity: float,
    n_labels: int,
    ratio: float,
) -> tuple[float, float]:
    """Return the standard deviations of the noise of a feature and of a label coordinate.

    Parameters
    ----------
    parameters
        Claimed epsilon and delta of one record under replacement.
    squared_feature_sensitivity
        Square of the largest change of a record's vector.
    n_labels
        Number of labels: the square of the sensitivity that is taken for the label.
    ratio
        Noise of a label over noise of a feature.
    """
    mu = gdp_mu(epsilon=parameters.epsilon, delta=parameters.delta)
    feature_stddev = math.sqrt(squared_feature_sensitivity + n_labels / ratio**2) / mu
    return feature_stddev, ratio * feature_stddev


def perturbed_labels(
    labels: NDArray[np.uint16], *, n_labels: int, noise_stddev: float, rng: np.random.Generator
) -> NDArray[np.uint16]:
    """Largest coordinate of each one-hot label under Gaussian noise."""
    one_hot = np.eye(n_labels)[labels]
    noisy = one_hot + noise_stddev * rng.standard_normal(one_hot.shape)
    largest: NDArray[np.uint16] = noisy.argmax(axis=1).astype(np.uint16)
    return largest


@dataclass(frozen=True, slots=True)
class PaperLocalPerturbation:
    """Local perturbation, bound to a public domain and a claimed (epsilon, delta)."""

    domain: EncodingDomain
    config: LocalPerturbationConfig
    parameters: PrivacyParameters

    def noise_stddevs(self) -> tuple[float, float]:
        """Return the standard deviations of the noise of a feature and of a label."""
        return noise_stddevs(
            self.parameters,
            squared_feature_sensitivity=VectorMap(self.domain).width,
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
            Nearest valid record of each noisy vector.
        labels : uint16 array of shape (n,)
            Largest coordinate of each noisy label.

        Privacy
        -------
        Claimed: (epsilon, delta) per record under replacement. See the module docstring.
        """
        vector_map = VectorMap(self.domain)
        feature_stddev, label_stddev = self.noise_stddevs()
        parts = []
        for start in range(0, len(labels), _ROWS_AT_ONCE):
            vectors = vector_map.vectors(codes[start : start + _ROWS_AT_ONCE])
            vectors += feature_stddev * rng.standard_normal(vectors.shape)
            parts.append(vector_map.codes(vectors)[0])
        noisy = perturbed_labels(
            labels, n_labels=self.domain.n_labels, noise_stddev=label_stddev, rng=rng
        )
        return np.concatenate(parts), noisy
