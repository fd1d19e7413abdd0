r"""DP-MERF as its authors' code runs it; its epsilon is claimed, not proven.

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
training are those of the proven form. The noise multiplier is exact, where the authors bisect a
bound.
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist

from privacy.accountants.calibration import gdp_mu
from privacy.arrays import Codes, Floats, Records
from privacy.errors import InputError
from privacy.parameters import PrivacyParameters
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodingDomain, row_slices
from tasks.measurement.marginals import draw_codes
from tasks.measurement.vectors import VectorMap
from tasks.methods.dp_merf.config import PUBLIC_SEED, DpMerfConfig
from tasks.methods.dp_merf.features import EmbeddingFeatures, draw_frequencies
from tasks.methods.dp_merf.generator import Generator


@dataclass(frozen=True, slots=True)
class PaperDpMerf:
    """DP-MERF as printed, bound to a public domain and a claimed (epsilon, delta)."""

    domain: EncodingDomain
    config: DpMerfConfig
    parameters: PrivacyParameters

    def synthesize(
        self, codes: Codes, labels: Codes, rng: np.random.Generator, executor: Executor = IN_PROCESS
    ) -> Records:
        """Make as many records as there are real ones, less those held aside; see `PaperForm`.

        If no record is left to learn from it is an InputError (``TOO_FEW_ROWS``).

        Privacy
        -------
        Claimed: (epsilon, delta) under replacement of one record. See the module docstring.
        """
        from tasks.methods.dp_merf.training import TrainingItem, train

        config, n_labels = self.config, self.domain.n_labels
        aside, kept = np.split(rng.permutation(len(labels)), [config.published.held_aside])
        if len(kept) == 0:
            raise InputError(
                "TOO_FEW_ROWS",
                "expected more rows than are held aside, found no more; lower held_aside",
            )
        features = self.features(codes[aside])
        # Two mechanisms with the same multiplier make mu-GDP with mu = sqrt(2) / multiplier.
        multiplier = np.sqrt(2.0) / gdp_mu(
            epsilon=self.parameters.epsilon, delta=self.parameters.delta
        )
        n_parts = 1 if features.linear_scales is None else 2
        unit = multiplier / len(kept)
        shares = np.bincount(labels[kept], minlength=n_labels) / len(kept)
        shares = shares + np.sqrt(2.0) * unit * rng.standard_normal(n_labels)
        shares = np.where(shares > 0.0, shares, 1e-3)
        sums = _embedding_sums(features, codes[kept], labels[kept], n_labels=n_labels)
        noise = 2.0 * np.sqrt(n_parts) * unit * rng.standard_normal(sums.shape)
        targets = (sums / len(kept) + noise) / shares[:, None]
        generator = Generator.start(config, n_labels=n_labels, width=features.vector_map.width)
        for number in range(config.training_stages):
            item = TrainingItem(
                generator=generator,
                features=features,
                targets=targets,
                label_weights=np.ones(n_labels),
                config=config,
                learning_rate=config.learning_rate * 0.9**number,
                public_seed=PUBLIC_SEED + number,
            )
            [generator] = executor.map(train, [item])
        drawn = draw_codes(shares, len(kept), rng)
        sampled = generator.sample(
            features.vector_map, drawn, code_dimensions=config.code_dimensions, rng=rng
        )
        return sampled, drawn

    def features(self, aside: Codes) -> EmbeddingFeatures:
        """Features whose length scale is the median distance of the records (k, d) held aside."""
        vector_map = VectorMap(self.domain)
        is_number = np.concatenate(
            [np.full(block.stop - block.start, block.kind == "unit") for block in vector_map.blocks]
        )
        linear = None
        in_kernel = np.ones_like(is_number)
        if is_number.any() and not is_number.all():
            # The linear part of a record has as many ones as there are other blocks, at most.
            n_others = sum(block.kind != "unit" for block in vector_map.blocks)
            in_kernel, linear = is_number, ~is_number / np.sqrt(n_others)
        half = self.config.fourier_features // 2
        frequencies = draw_frequencies(
            half,
            vector_map.width,
            length_scale=median_distance(vector_map.vectors(aside)[:, in_kernel]),
        )
        return EmbeddingFeatures(
            vector_map=vector_map,
            frequencies=frequencies * in_kernel,
            fourier_scale=float(np.sqrt(1.0 / half)),
            linear_scales=linear,
        )


def median_distance(vectors: Floats) -> float:
    """Median distance of the rows (k, D), k >= 2; their mean distance where it is 0, else 1."""
    distances = pdist(vectors)
    return float(np.median(distances) or distances.mean() or 1.0)


def _embedding_sums(
    features: EmbeddingFeatures, codes: Codes, labels: Codes, *, n_labels: int
) -> Floats:
    sums = np.zeros((n_labels, features.n_features))
    for block in row_slices(len(labels)):
        sums += np.eye(n_labels)[labels[block]].T @ features.phi(codes[block])
    return sums
