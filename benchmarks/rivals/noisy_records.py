r"""Local perturbation and random projection: Gaussian noise on every record and label; two forms.

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

The accounted form releases a public number of slots instead: a record adds to the slot that its
hash names, every slot gets noise for one whole record, and an empty slot is pure noise.
"""

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.rivals.labelled_vectors import LabelledVectors
from benchmarks.rivals.projection import Projection, random_projection
from benchmarks.rivals.registry import Rival
from privacy.arrays import Codes, Integers, Records
from tasks.measurement.encoded import mixed_bits, row_slices
from tasks.measurement.method import PUBLIC_SEED
from tasks.measurement.vectors import VectorMap


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPerturbationSettings:
    """Settings of local perturbation; the noise ratio is of the printed form, what follows not."""

    label_noise_ratio: float = 0.3
    """Noise of a label over noise of a feature."""
    n_slots: int = 10_000
    """Slots, about one per expected record."""
    l2_clip_norm: float | None = None
    label_share: float = 0.2
    """Part of the squared norm that the label has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomProjectionSettings(LocalPerturbationSettings):
    """Settings of random projection."""

    n_projected: int = 8
    """Dimensions after the projection (k)."""


class _NoisyRecords(Rival[LocalPerturbationSettings]):
    """Local perturbation or random projection, by its settings, bound to an epsilon and delta."""

    @property
    def projection(self) -> Projection | None:
        """The public projection, if there is one."""
        if not isinstance(self.settings, RandomProjectionSettings):
            return None
        return random_projection(self.domain, n_projected=self.settings.n_projected)


class PrintedNoisyRecords(_NoisyRecords):
    """Noise on every record, one synthetic record for each."""

    def noise_stddevs(self) -> tuple[float, float]:
        """Return the standard deviations of the noise of a (projected) feature and of a label."""
        projection, ratio = self.projection, self.settings.label_noise_ratio
        growth = 1.0 if projection is None else projection.spectral_norm
        squared = growth**2 * VectorMap(self.domain).width + self.domain.n_labels / ratio**2
        feature_stddev = math.sqrt(squared) / self.mu
        return feature_stddev, ratio * feature_stddev

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make one synthetic record of every record, in one pass.

        Privacy
        -------
        Claimed: (epsilon, delta) per record under replacement. See the module docstring.
        """
        vector_map, projection = VectorMap(self.domain), self.projection
        feature_stddev, label_stddev = self.noise_stddevs()
        parts = []
        for block in row_slices(len(labels)):
            vectors = vector_map.vectors(codes[block])
            if projection is not None:
                vectors = projection.project(vectors)
            vectors += feature_stddev * rng.standard_normal(vectors.shape)
            if projection is not None:
                vectors = projection.back(vectors)
            parts.append(vector_map.codes(vectors)[0])
        one_hot = np.eye(self.domain.n_labels)[labels]
        noisy = one_hot + label_stddev * rng.standard_normal(one_hot.shape)
        return np.concatenate(parts), noisy.argmax(axis=1).astype(np.uint16)


class AccountedNoisyRecords(_NoisyRecords):
    """Noise on every slot, calibrated to add or remove of one record."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Draw as many records as there are real ones from the slots, which may repeat."""
        vectors = LabelledVectors(
            domain=self.domain,
            l2_clip_norm=self.settings.l2_clip_norm,
            label_share=self.settings.label_share,
            projection=self.projection,
        )
        n_slots = self.settings.n_slots
        sums = rng.standard_normal((n_slots, vectors.width)) * (vectors.l2_bound / self.mu)
        for part in row_slices(len(labels)):
            slots = slots_of(codes[part], labels[part], n_slots=n_slots)
            np.add.at(sums, slots, vectors.vectors(codes[part], labels[part]))
        made, made_labels = vectors.decode(sums)
        chosen = rng.permutation(len(labels)) % n_slots
        return made[chosen], made_labels[chosen]


_INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


def slots_of(codes: Codes, label: Codes, *, n_slots: int) -> Integers:
    """Slot of each record, int64 of shape (n,) in [0, n_slots): a function of the record alone."""
    state = np.full(len(label), PUBLIC_SEED, dtype=np.uint64)
    for column in (*codes.T, label):
        state = mixed_bits(state + _INCREMENT + column.astype(np.uint64))
    return (state % np.uint64(n_slots)).astype(np.int64)
