r"""DPMix: noisy averages of records of the whole table, as printed or on Poisson samples.

Source: Lee, Kim, Lee, Suh and Ramchandran, "Synthesizing differentially private datasets using
random mixing", ISIT 2019, as Saha, Tonoy and Imtiaz (DP-CDA, Remark 1 and Table 3) state it. A
mixture averages l records and their one-hot labels and adds Gaussian noise to both. Features are in
[0, 1], so replacing one record moves an average by at most :math:`\sqrt{d_x} / l`, and
:math:`\sqrt{d_y} / l` is taken for the label, which gives

.. math:: \varepsilon(\alpha) = \frac{\alpha}{2 l^2}
          \left(\frac{d_x}{\sigma_x^2} + \frac{d_y}{\sigma_y^2}\right).

T draws are composed by Wang, Balle and Kasiviswanathan's bound for samples without replacement
(AISTATS 2019, Theorem 27) and converted with :math:`\log(1/\delta) / (\alpha - 1)`.

What is claimed holds for neighbours that replace one *record* of a table of *public* size, and is
loose: a difference of two one-hot labels is sqrt(2) long, not sqrt(d_y). It is not the guarantee of
a release: a patient may have several records, the number of records is private, and the noise here
comes from a seedable generator in floating point.

The accounted form draws a Poisson sample for each mixture, at a public rate, as Li, Cao and Yao
(arXiv 2202.06467) analyse it. What all mixtures say together of single records,
`tasks.measurement.unmixing` gets out of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.sparse import csr_array

from benchmarks.rivals.labelled_vectors import LabelledVectors, matched_labels
from benchmarks.rivals.noise import (
    claimed_epsilon,
    least_noise,
    poisson_noise_multiplier,
    sampled_bound,
)
from benchmarks.rivals.registry import Rival
from privacy.arrays import Codes, Floats, Records
from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyParameters
from tasks.measurement.unmixing import Mixtures, draw_records, drawn_coordinates, spread
from tasks.measurement.vectors import VectorMap, one_hot_numbers

ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 512, 1024)
"""Orders alpha over which epsilon is minimised; a missing one costs a little accuracy."""

_MIXTURES_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DPMixSettings:
    """Settings of both forms; the noise ratio is of the printed one, the last four of the other."""

    order_of_mixture: int = 8
    """Records in a mixture (l), on average."""
    n_mixtures: int = 1000
    label_noise_ratio: float = 0.3
    """Noise of a label over noise of a feature."""
    declared_patients: int = 10_000
    """Expected number of records, known without the table."""
    one_hot_levels: int = 64
    """Numeric columns of at most this many codes have a coordinate for each code."""
    l2_clip_norm: float | None = None
    label_share: float = 0.2
    """Part of the squared norm that the label has."""


def printed_epsilon(
    *, noise_multiplier: float, order_of_mixture: int, n_records: int, n_mixtures: int, delta: float
) -> float:
    """Return the paper's epsilon of T mixtures of l of N records, ``alpha / (2 z**2)`` each."""
    unsampled = np.asarray(ORDERS, dtype=np.float64) / (2.0 * noise_multiplier**2)
    sampled = sampled_bound(
        noise_multiplier, sample_size=order_of_mixture, population_size=n_records, orders=ORDERS
    )
    return claimed_epsilon(n_mixtures * np.minimum(unsampled, sampled), orders=ORDERS, delta=delta)


@lru_cache(maxsize=64)
def printed_noise_multiplier(
    *, parameters: PrivacyParameters, order_of_mixture: int, n_records: int, n_mixtures: int
) -> float:
    """Return the least noise that `printed_epsilon` accepts (ConfigurationError if none)."""
    claimed = partial(
        printed_epsilon,
        order_of_mixture=order_of_mixture,
        n_records=n_records,
        n_mixtures=n_mixtures,
        delta=parameters.delta,
    )
    return least_noise(
        lambda noise: claimed(noise_multiplier=noise) <= parameters.epsilon,
        otherwise="expected an epsilon that some noise meets in the accounting of the paper, found "
        f"{parameters.epsilon} for {n_mixtures} mixtures; choose a larger epsilon or fewer "
        "mixtures",
    )


class PrintedDPMix(Rival[DPMixSettings]):
    """DPMix as printed, bound to a public domain and a claimed (epsilon, delta)."""

    def noise_stddevs(self, n_records: int) -> tuple[float, float]:
        """Return the standard deviations of the noise of a feature and of a label.

        It is a ConfigurationError if the order of mixture is above the number of records N
        (``ORDER_OF_MIXTURE_INVALID``), or no noise meets epsilon (``CALIBRATION_UNREACHABLE``).
        """
        order = self.settings.order_of_mixture
        if order > n_records:
            raise ConfigurationError(
                "ORDER_OF_MIXTURE_INVALID",
                "expected order_of_mixture of at most the number of records, found "
                f"{order}; lower order_of_mixture",
            )
        noise_multiplier = printed_noise_multiplier(
            parameters=self.parameters,
            order_of_mixture=order,
            n_records=n_records,
            n_mixtures=self.settings.n_mixtures,
        )
        ratio = self.settings.label_noise_ratio
        dimension = VectorMap(self.domain).width + self.domain.n_labels / ratio**2
        feature_stddev = noise_multiplier / order * math.sqrt(dimension)
        return feature_stddev, ratio * feature_stddev

    def mixtures(
        self, codes: Codes, labels: Codes, rng: np.random.Generator
    ) -> Iterator[tuple[Floats, Floats]]:
        """Yield noisy mixtures (m, D) and shares of labels (m, C), some at a time."""
        order, n_records = self.settings.order_of_mixture, len(labels)
        feature_stddev, label_stddev = self.noise_stddevs(n_records)
        vectors = VectorMap(self.domain).vectors(codes).astype(np.float32)
        one_hot = np.eye(self.domain.n_labels)[labels]
        for start in range(0, self.settings.n_mixtures, _MIXTURES_AT_ONCE):
            count = min(_MIXTURES_AT_ONCE, self.settings.n_mixtures - start)
            chosen = [
                rng.choice(n_records, order, replace=False, shuffle=False) for _ in range(count)
            ]
            ends = np.arange(count + 1) * order
            share = np.full(count * order, 1.0 / order, dtype=np.float32)
            mix = csr_array((share, np.concatenate(chosen), ends), shape=(count, n_records))
            features, targets = mix @ vectors, mix @ one_hot
            yield (
                features + feature_stddev * rng.standard_normal(features.shape),
                targets + label_stddev * rng.standard_normal(targets.shape),
            )

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make ``n_mixtures`` records in one pass over the table.

        A mixture becomes the nearest valid record, with the label of the largest noisy share.

        Privacy
        -------
        Claimed: (epsilon, delta) under replacement of one record. See the module docstring.
        """
        vector_map, parts = VectorMap(self.domain), []
        for vectors, shares in self.mixtures(codes, labels, rng):
            parts.append((vector_map.codes(vectors)[0], shares.argmax(axis=1).astype(np.uint16)))
        return np.concatenate([c for c, _ in parts]), np.concatenate([y for _, y in parts])


class AccountedDPMix(Rival[DPMixSettings]):
    """DPMix on Poisson samples, with noise that is calibrated to add or remove of one record."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Draw as many records as there are real ones from the mixtures, which may repeat."""
        settings, n_labels = self.settings, self.domain.n_labels
        vectors = LabelledVectors(
            domain=one_hot_numbers(self.domain, most_codes=settings.one_hot_levels),
            l2_clip_norm=settings.l2_clip_norm,
            label_share=settings.label_share,
        )
        rate = min(1.0, settings.order_of_mixture / settings.declared_patients)
        stddev = vectors.l2_bound * poisson_noise_multiplier(
            self.parameters, probability=rate, n_draws=settings.n_mixtures
        )
        exact = mixture_sums(vectors.vectors(codes, labels), rate, settings.n_mixtures, rng)
        sums = exact + stddev * rng.standard_normal(exact.shape)
        patients = vectors.patients(sums)
        origin = np.concatenate([vectors.origin, np.zeros(n_labels)])
        mixtures = Mixtures(
            means=sums / patients + origin,
            order=patients,
            noise_stddev=stddev / patients,
            centre=origin,
        )
        records = VectorMap(vectors.domain)
        drawn = drawn_coordinates(records)
        if len(drawn) > 0:
            drawn = np.concatenate([drawn, np.arange(vectors.record_width, vectors.width)])
        scores = spread(mixtures, drawn)
        of_mixtures = matched_labels(vectors.label_counts(scores * patients))
        chosen = rng.permutation(len(labels)) % len(sums)
        return draw_records(mixtures, scores, records, chosen=chosen, rng=rng), of_mixtures[chosen]


def mixture_sums(vectors: Floats, rate: float, n_mixtures: int, rng: np.random.Generator) -> Floats:
    """Return sums (n_mixtures, D) of vectors (n, D), each of a Poisson sample of its own."""
    samples = [np.flatnonzero(rng.random(len(vectors)) < rate) for _ in range(n_mixtures)]
    ends = np.concatenate([[0], np.cumsum([len(sample) for sample in samples])])
    ones = np.ones(ends[-1])
    member = csr_array((ones, np.concatenate(samples), ends), shape=(n_mixtures, len(vectors)))
    sums: Floats = member @ vectors
    return sums
