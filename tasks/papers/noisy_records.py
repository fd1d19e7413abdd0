r"""Local perturbation and random projection as baselines: Gaussian noise on every record and label.

DP-CDA's Table 3 quotes Lee et al. (ISIT 2019) for both; neither gives a formula. Local perturbation
is here their DPMix with l = 1, without samples: every record is released once, so replacing one
changes one row of the output. With features in [0, 1] and the sensitivities that they use for
DPMix, the noise has

.. math:: \mu^2 = \frac{d_x}{\sigma_x^2} + \frac{d_y}{\sigma_y^2}

for the exact Gaussian mechanism (Dong, Roth and Su 2019) with the mu of the claimed epsilon.

For random projection Lee et al. name Kenthapadi, Korolova, Mironov and Mishra ("Privacy via the
Johnson-Lindenstrauss transform", 2012) and Xu et al. ("DPPro", 2017): a record becomes ``P x +
noise`` with a projection P of independent normal entries of variance 1/k. Kenthapadi et al. protect
one *bit* of a record; for a whole record a difference of features in [0, 1] has norm at most
:math:`\|P\|_2 \sqrt{d_x}` after the projection, which stands in the formula for
:math:`\sqrt{d_x}`. The papers leave the records in the k new dimensions. Here they go back by the
pseudo-inverse, from the middle of the domain, to the nearest valid record.

What is claimed holds per *record* under replacement, also for an untrusted curator. It is not the
guarantee of a release: a patient may have several records, and one row is released per record, so
that the number of records shows.
"""

import math
from dataclasses import dataclass

import numpy as np

from privacy.accountants.calibration import gdp_mu
from privacy.arrays import Codes, Records
from privacy.parameters import PrivacyParameters
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodingDomain, row_slices
from tasks.measurement.projection import Projection, random_projection
from tasks.measurement.vectors import VectorMap
from tasks.methods.slots.config import LocalPerturbationConfig, RandomProjectionConfig


@dataclass(frozen=True, slots=True)
class PaperNoisyRecords:
    """Local perturbation or random projection, by its settings, bound to a claimed epsilon."""

    domain: EncodingDomain
    config: LocalPerturbationConfig | RandomProjectionConfig
    parameters: PrivacyParameters

    def __post_init__(self) -> None:
        self.projection()

    def projection(self) -> Projection | None:
        """Return the public projection, if there is one."""
        if not isinstance(self.config, RandomProjectionConfig):
            return None
        return random_projection(self.domain, n_projected=self.config.n_projected)

    def noise_stddevs(self) -> tuple[float, float]:
        """Return the standard deviations of the noise of a (projected) feature and of a label."""
        projection, ratio = self.projection(), self.config.published.label_noise_ratio
        growth = 1.0 if projection is None else projection.spectral_norm
        squared = growth**2 * VectorMap(self.domain).width + self.domain.n_labels / ratio**2
        mu = gdp_mu(epsilon=self.parameters.epsilon, delta=self.parameters.delta)
        feature_stddev = math.sqrt(squared) / mu
        return feature_stddev, ratio * feature_stddev

    def synthesize(
        self, codes: Codes, labels: Codes, rng: np.random.Generator, executor: Executor = IN_PROCESS
    ) -> Records:
        """Make one synthetic record of every record, in one pass; see `PaperForm.synthesize`.

        Privacy
        -------
        Claimed: (epsilon, delta) per record under replacement. See the module docstring.
        """
        vector_map, projection = VectorMap(self.domain), self.projection()
        feature_stddev, label_stddev = self.noise_stddevs()
        parts = []
        for block in row_slices(len(labels)):
            vectors = vector_map.vectors(codes[block])
            if projection is not None:
                vectors = vectors @ projection.matrix.T
            vectors += feature_stddev * rng.standard_normal(vectors.shape)
            if projection is not None:
                vectors = projection.back(vectors)
            parts.append(vector_map.codes(vectors)[0])
        one_hot = np.eye(self.domain.n_labels)[labels]
        noisy = one_hot + label_stddev * rng.standard_normal(one_hot.shape)
        return np.concatenate(parts), noisy.argmax(axis=1).astype(np.uint16)
