"""DP-CDA as printed: Algorithm 1 with the noise of Theorem 1. For public benchmark data alone.

The paper claims (epsilon, delta)-differential privacy under replacement of one record; for the
algorithm as written the claim does not hold. It is followed with its flaws:

A1  the z-score divides by means and deviations of the private records, which the proof leaves out:
    one record moves every other (`tests/counterexamples/test_dp_cda_rare_class.py`,
    ``test_one_record_moves_the_z_score_of_every_other``)
A2  the proof samples at ``l / N``; step 10 takes ``l`` of the ``N_k`` records of one class (same
    file, ``test_paper_algorithm_exceeds_its_claim`` and the three tests after it)
A3  a replaced record may change its class, and with it two class sizes; the bound that is used is
    for one table of fixed size (same file: its pair of neighbours differs in this)
A4  Theorem 1 prints ``B(ceil(j/2))`` where its source has ``B(2 ceil(j/2))``: as printed, a root of
    a negative number from alpha = 5 (same file, ``test_theorem_as_printed_has_no_value``). The
    form of the source is used here, from dp-accounting
A5  the bound is loose: orders from 3, and the conversion of Mironov 2017 (here as printed)
A6  the sensitivities ``2c/l`` and ``sqrt(2)/l`` are right for replacement with a fixed ``l``
A7  the mean of one-hot labels of one class is the same for all tables: its noise protects nothing
    and turns labels over, while the classes that exist and whether one has ``l`` records are shown
    exactly
A8  l, c and the noise ratio are chosen by accuracy on private data and not paid for

Open in the paper and chosen here: the ratio of the two noises (`DpCdaSettings.label_share`), c,
a z-score of zero variance (divided by one), and mapping mixtures back to records (by the private
means and deviations of the z-score, which is flaw A1 once more).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.noise import claimed_epsilon, clip_rows, least_noise, sampled_bound
from benchmarks.rivals.registry import Rival
from privacy.arrays import AnyFloats, Codes, Floats, Integers, Records
from privacy.errors import InputError
from privacy.parameters import PrivacyParameters
from tasks.measurement.vectors import VectorMap

ORDERS = (*range(3, 33), 40, 48, 64, 96, 128)
"""Orders alpha of the theorem that are tried; leaving some out can only raise its epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingNoise:
    """Standard deviations of the noise of one mixture: sigma_x per feature, sigma_y per label."""

    record_stddev: float
    label_stddev: float


def theorem_1_epsilon(
    noise_multiplier: float, *, order: int, n_records: int, n_outputs: int, delta: float
) -> float:
    """Epsilon of Theorem 1 for l, N and T (A2, A4).

    The noise multiplier is ``(2 c**2 / sigma_x**2 + 1 / sigma_y**2) ** -0.5 * l / sqrt(2)``.
    """
    draw = sampled_bound(
        noise_multiplier, sample_size=order, population_size=n_records, orders=ORDERS
    )
    return claimed_epsilon(n_outputs * draw, orders=ORDERS, delta=delta)


@lru_cache(maxsize=64)
def _noise_multiplier(
    parameters: PrivacyParameters, order: int, n_records: int, n_outputs: int
) -> float:
    """Least noise multiplier for which the theorem claims the parameters."""
    claimed = partial(
        theorem_1_epsilon,
        order=order,
        n_records=n_records,
        n_outputs=n_outputs,
        delta=parameters.delta,
    )
    return least_noise(
        lambda noise_multiplier: claimed(noise_multiplier) <= parameters.epsilon,
        otherwise=f"expected an epsilon that Theorem 1 can claim for {n_outputs} mixtures, found "
        f"{parameters.epsilon:g}; choose a larger epsilon or fewer mixtures_per_class",
    )


def theorem_1_noise(
    parameters: PrivacyParameters,
    *,
    order: int,
    n_records: int,
    n_outputs: int,
    l2_clip_norm: float,
    label_share: float,
) -> MixingNoise:
    """Least noise for which Theorem 1 claims the parameters, for its l, N, T and c.

    `label_share` of ``1 / noise_multiplier**2`` is for labels. ConfigurationError if no noise will
    do.
    """
    noise_multiplier = _noise_multiplier(parameters, order, n_records, n_outputs)
    return MixingNoise(
        record_stddev=2 * l2_clip_norm / order * noise_multiplier / math.sqrt(1 - label_share),
        label_stddev=math.sqrt(2) / order * noise_multiplier / math.sqrt(label_share),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZScore:
    """Means and standard deviations of the features, of shape (D,): private (flaw A1)."""

    mean: Floats
    stddev: Floats

    @classmethod
    def of(cls, records: AnyFloats) -> ZScore:
        """Take steps 2 and 3; a feature without variance is divided by one."""
        stddev = records.std(axis=0, dtype=np.float64)
        return cls(
            mean=records.mean(axis=0, dtype=np.float64), stddev=np.where(stddev > 0, stddev, 1.0)
        )

    def apply(self, records: AnyFloats) -> AnyFloats:
        """Step 4, in the precision of the records."""
        dtype = records.dtype
        return (records - self.mean.astype(dtype)) / self.stddev.astype(dtype)

    def undo(self, records: AnyFloats) -> AnyFloats:
        """Features in their own units."""
        return records * self.stddev + self.mean


def noisy_mixtures(
    pool: ClassPool, n_labels: int, noise: MixingNoise | None, rng: np.random.Generator
) -> tuple[AnyFloats, Integers]:
    """Take steps 9 to 15 for one class, without noise where it is None (Table 2).

    Mixtures (T_k, D) have the precision of the records; the noise of labels (T_k,) turns some over.
    """
    mixtures = mix_class(pool, rng)
    one_hot = np.zeros((pool.n_mixtures, n_labels))
    one_hot[:, pool.label] = 1.0
    if noise is not None:
        drawn = rng.standard_normal(mixtures.shape, dtype=np.float32)
        mixtures += mixtures.dtype.type(noise.record_stddev) * drawn
        one_hot += rng.normal(0.0, noise.label_stddev, one_hot.shape)
    return mixtures, one_hot.argmax(axis=1)


def mix_classes(
    pools: list[ClassPool], *, noise: MixingNoise | None, rng: np.random.Generator
) -> tuple[AnyFloats, Integers]:
    """Take steps 8 to 17, class after class; arguments as in `noisy_mixtures`."""
    parts = [noisy_mixtures(pool, len(pools), noise, rng) for pool in pools]
    return np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class DpCdaSettings:
    """Settings of Algorithm 1; the last two are what it leaves open."""

    order_of_mixture: int = 128
    """Records of one class in a mixture (l)."""
    mixtures_per_class: int = 400
    l2_clip_norm: float = 10.0
    """Largest norm c of a record after the z-score."""
    label_share: float = 0.25
    """Share of the privacy loss that is spent on the one-hot labels (sigma_y)."""


class PrintedDpCda(Rival[DpCdaSettings]):
    """DP-CDA as printed."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make ``mixtures_per_class`` records of each class.

        It is an InputError if a class has fewer records than the order of mixture, and a
        ConfigurationError if no noise is enough for the number of mixtures.

        Privacy
        -------
        Claimed by the paper: (epsilon, delta) under replacement of one record. Not proven and not
        true (module docstring). The noise comes from `rng`, a seedable generator.
        """
        settings, n_labels = self.settings, self.domain.n_labels
        if np.bincount(labels, minlength=n_labels).min() < settings.order_of_mixture:
            raise InputError(
                "CLASS_TOO_SMALL",
                f"expected at least order_of_mixture = {settings.order_of_mixture} records of each "
                "of the declared labels, found fewer of one; lower order_of_mixture",
            )
        noise = theorem_1_noise(
            self.parameters,
            order=settings.order_of_mixture,
            n_records=len(codes),
            n_outputs=settings.mixtures_per_class * n_labels,
            l2_clip_norm=settings.l2_clip_norm,
            label_share=settings.label_share,
        )
        vector_map = VectorMap(self.domain)
        vectors = vector_map.vectors(codes)
        z_score = ZScore.of(vectors)
        pools = class_pools(
            clip_rows(z_score.apply(vectors), l2_clip_norm=settings.l2_clip_norm),
            labels,
            n_labels=n_labels,
            order=settings.order_of_mixture,
            mixtures_per_class=settings.mixtures_per_class,
        )
        mixtures, mixed = mix_classes(pools, noise=noise, rng=rng)
        nearest, _ = vector_map.codes(z_score.undo(mixtures))
        return nearest, mixed.astype(np.uint16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPool:
    """The records (n, D) of one class, and how many means of l of them are made."""

    records: AnyFloats
    label: int
    order: int
    n_mixtures: int


def distinct_indices(
    n_records: int, *, order: int, n_samples: int, rng: np.random.Generator
) -> Integers:
    """Draw samples (n_samples, order) of different records, all sets as likely.

    Floyd's algorithm (Bentley and Floyd, CACM 1987), all samples side by side. There are one to
    n_records in a sample (ValueError), in no order that means anything.
    """
    if not 1 <= order <= n_records:
        raise ValueError(f"expected from 1 to {n_records} different records, found {order}")
    chosen = np.empty((n_samples, order), dtype=np.int64)
    for place, last in enumerate(range(n_records - order, n_records)):
        drawn = rng.integers(0, last + 1, size=n_samples)
        repeated = (chosen[:, :place] == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(repeated, last, drawn)
    return chosen


def mix_class(pool: ClassPool, rng: np.random.Generator) -> AnyFloats:
    """Return means (n_mixtures, D) of independent samples, steps 8 to 11 without noise."""
    index = distinct_indices(
        len(pool.records), order=pool.order, n_samples=pool.n_mixtures, rng=rng
    )
    # One record after the other: no array of n_mixtures * order * D numbers.
    total = np.zeros((pool.n_mixtures, pool.records.shape[1]), dtype=pool.records.dtype)
    for place in range(pool.order):
        total += pool.records[index[:, place]]
    total /= pool.order
    return total


def class_pools(
    records: AnyFloats, labels: NDArray[Any], *, n_labels: int, order: int, mixtures_per_class: int
) -> list[ClassPool]:
    """Part records (n, D) by class, for T_k means of l records of each."""
    return [
        ClassPool(
            records=records[labels == label],
            label=label,
            order=order,
            n_mixtures=mixtures_per_class,
        )
        for label in range(n_labels)
    ]
