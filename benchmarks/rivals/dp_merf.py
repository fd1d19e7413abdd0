r"""DP-MERF: a generator trained on one noisy mean embedding per label; two forms.

The printed form is the one that the authors' code runs; its epsilon is claimed, not proven.

Source: Harder, Adamczewski and Park, "DP-MERF: differentially private mean embeddings with random
features for practical privacy-preserving data generation", AISTATS 2021, and the code beside it.
Numbers have Fourier features of a Gaussian kernel, 0/1 and one-hot coordinates the linear kernel,
each part of norm at most 1. With n the number of records and :math:`\sigma` the noise multiplier of
two composed Gaussian mechanisms,

.. math:: \tilde w = w + \mathcal N\bigl(0, \sigma^2 (\sqrt 2 / n)^2\bigr), \qquad
          \tilde m = m + \mathcal N\bigl(0, \sigma^2 (2 / n)^2\bigr)

are the shares of the labels and the mean embeddings of each label times its share (with
:math:`2 \sqrt 2 / n` where a record has both parts). What the claim leaves out:

- The length scale is the median distance of private records that are held aside, and is used
  without noise: one record can change the kernel, and with it all that follows.
- Neighbours replace one *record*, and the number of records is public and exact: it sets the noise,
  the divisor and the size of the output. A patient may have several records.
- Sums are added in floating point and the noise comes from a seedable generator.
- The settings that differ between data sets (length scale, features, steps) were chosen by scores
  on the private records.

The authors' other features, ``sqrt(2 / m) cos(w v + b)``, have norm up to sqrt(2) and the same
noise. They are left out, as is the authors' network with batch normalisation: the generator and its
training are those of the accounted form. The noise multiplier is exact, where the authors bisect a
bound.

The accounted form has features by public values alone and two Gaussian releases of sensitivity 1
under add or remove of one record: the class counts, and the sums of the features of each label.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.rivals.embedding_features import (
    EmbeddingFeatures,
    private_features,
    public_features,
)
from benchmarks.rivals.generator import Generator
from benchmarks.rivals.generator_training import train
from benchmarks.rivals.registry import Rival
from privacy.arrays import AnyFloats, Codes, Floats, Records
from privacy.errors import InputError
from tasks.measurement.marginals import draw_codes

PUBLIC_SEED = 20_210_413
"""Seed of every public random choice (frequencies, first weights, latent codes): printable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DpMerfSettings:
    """Settings of both forms; `held_aside` is of the printed one, the next three of the other.

    The defaults were chosen on public data alone, on one split of Adult and on MNIST at epsilon 1.
    """

    held_aside: int = 100
    """Private rows that set the length scale."""
    length_scale: float = 0.8
    """Kernel length scale; 1 is the distance of two uniform records of the domain."""
    linear_share: float = 0.5
    """Share of the linear kernel in the squared norm."""
    count_share: float = 0.02
    """Share of the budget for the class counts."""
    fourier_features: int = 1000
    hidden_units: tuple[int, ...] = (256, 256)
    code_dimensions: int = 10
    """Dimensions of the random input of the generator."""
    training_stages: int = 5
    """Times that the step size falls."""
    steps_per_stage: int = 200
    batch_size: int = 200
    learning_rate: float = 5e-3


class _DpMerf(Rival[DpMerfSettings]):
    """The part that both forms share: records of a generator that is trained on an embedding."""

    def _records(
        self,
        features: EmbeddingFeatures,
        targets: Floats,
        label_weights: Floats,
        rates: AnyFloats,
        *,
        labels: Codes,
        rng: np.random.Generator,
    ) -> Records:
        """Train a generator, a learning rate after the other, and make a record of each label."""
        settings = self.settings
        widths = (len(targets) + settings.code_dimensions, *settings.hidden_units)
        generator = Generator.start((*widths, features.vector_map.width), seed=PUBLIC_SEED)
        for number, rate in enumerate(rates, start=1):
            generator = train(
                generator,
                features,
                targets,
                label_weights=label_weights,
                steps=settings.steps_per_stage,
                batch_size=settings.batch_size,
                learning_rate=float(rate),
                seed=PUBLIC_SEED + number,
            )
        codes = generator.sample(
            features.vector_map, labels, code_dimensions=settings.code_dimensions, rng=rng
        )
        return codes, labels


class PrintedDpMerf(_DpMerf):
    """DP-MERF as printed, bound to a public domain and a claimed (epsilon, delta)."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make as many records as there are real ones, less those held aside.

        If no record is left to learn from it is an InputError (``TOO_FEW_ROWS``).

        Privacy
        -------
        Claimed: (epsilon, delta) under replacement of one record. See the module docstring.
        """
        settings, n_labels = self.settings, self.domain.n_labels
        aside, kept = np.split(rng.permutation(len(labels)), [settings.held_aside])
        if len(kept) == 0:
            raise InputError(
                "TOO_FEW_ROWS",
                "expected more rows than are held aside, found no more; lower held_aside",
            )
        features = private_features(
            self.domain, codes[aside], n_fourier=settings.fourier_features, seed=PUBLIC_SEED
        )
        # Two mechanisms with the same multiplier make mu-GDP with mu = sqrt(2) / multiplier.
        unit = np.sqrt(2.0) / self.mu / len(kept)
        n_parts = 1 if features.linear_scales is None else 2
        shares = np.bincount(labels[kept], minlength=n_labels) / len(kept)
        shares = shares + np.sqrt(2.0) * unit * rng.standard_normal(n_labels)
        shares = np.where(shares > 0.0, shares, 1e-3)
        sums = features.sums(codes[kept], labels[kept], n_labels=n_labels)
        noise = 2.0 * np.sqrt(n_parts) * unit * rng.standard_normal(sums.shape)
        targets = (sums / len(kept) + noise) / shares[:, None]
        return self._records(
            features,
            targets,
            np.ones(n_labels),
            settings.learning_rate * 0.9 ** np.arange(settings.training_stages),
            labels=draw_codes(shares, len(kept), rng),
            rng=rng,
        )


class AccountedDpMerf(_DpMerf):
    """DP-MERF on public features, with noise that is calibrated to add or remove of one record."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make as many records as there are real ones."""
        settings, n_labels = self.settings, self.domain.n_labels
        features = public_features(
            self.domain,
            n_fourier=settings.fourier_features,
            length_scale=settings.length_scale,
            linear_share=settings.linear_share,
            seed=PUBLIC_SEED,
        )
        counts = np.bincount(labels, minlength=n_labels).astype(np.float64)
        counts += rng.standard_normal(n_labels) / (self.mu * np.sqrt(settings.count_share))
        stddev = 1.0 / (self.mu * np.sqrt(1.0 - settings.count_share))
        sums = features.sums(codes, labels, n_labels=n_labels)
        sums += stddev * rng.standard_normal(sums.shape)
        sizes = np.maximum(counts, 1.0)
        stages = np.arange(settings.training_stages) / settings.training_stages
        return self._records(
            features,
            features.uncentred(sums / sizes[:, None]),
            label_weights(sizes, n_features=sums.shape[1], noise_stddev=stddev),
            settings.learning_rate * (1.0 - stages),
            labels=draw_codes(sizes / sizes.sum(), len(labels), rng),
            rng=rng,
        )


def label_weights(sizes: Floats, *, n_features: int, noise_stddev: float) -> Floats:
    """Weights in (0, 1] of the labels in the loss: less where noise is stronger than any signal.

    It is ``1 / (1 + r)``, r the expected squared norm of the noise of a mean embedding, of norm 1.
    """
    weights: Floats = 1.0 / (1.0 + n_features * (noise_stddev / sizes) ** 2)
    return weights
