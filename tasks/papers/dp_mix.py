r"""DPMix as printed: averages of records drawn without replacement from the whole table.

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
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.sparse import csr_array

from privacy.arrays import Codes, Floats, Records
from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyParameters
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.vectors import VectorMap
from tasks.methods.dp_mix.config import DPMixConfig
from tasks.papers.printed_noise import claimed_epsilon, least_noise, sampled_bound

ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 512, 1024)
"""Orders alpha over which epsilon is minimised; a missing one costs a little accuracy."""

_MIXTURES_AT_ONCE = 1_000


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


@dataclass(frozen=True, slots=True)
class PaperDPMix:
    """DPMix as printed, bound to a public domain and a claimed (epsilon, delta)."""

    domain: EncodingDomain
    config: DPMixConfig
    parameters: PrivacyParameters

    def noise_stddevs(self, n_records: int) -> tuple[float, float]:
        """Return the standard deviations of the noise of a feature and of a label.

        It is a ConfigurationError if the order of mixture is above the number of records N
        (``ORDER_OF_MIXTURE_INVALID``), or no noise meets epsilon (``CALIBRATION_UNREACHABLE``).
        """
        order = self.config.order_of_mixture
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
            n_mixtures=self.config.n_mixtures,
        )
        ratio = self.config.published.label_noise_ratio
        dimension = VectorMap(self.domain).width + self.domain.n_labels / ratio**2
        feature_stddev = noise_multiplier / order * math.sqrt(dimension)
        return feature_stddev, ratio * feature_stddev

    def mixtures(
        self, codes: Codes, labels: Codes, rng: np.random.Generator
    ) -> Iterator[tuple[Floats, Floats]]:
        """Yield noisy mixtures (m, D) and shares of labels (m, C), some at a time."""
        order, n_records = self.config.order_of_mixture, len(labels)
        feature_stddev, label_stddev = self.noise_stddevs(n_records)
        vectors = VectorMap(self.domain).vectors(codes).astype(np.float32)
        one_hot = np.eye(self.domain.n_labels)[labels]
        for start in range(0, self.config.n_mixtures, _MIXTURES_AT_ONCE):
            count = min(_MIXTURES_AT_ONCE, self.config.n_mixtures - start)
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

    def synthesize(
        self, codes: Codes, labels: Codes, rng: np.random.Generator, executor: Executor = IN_PROCESS
    ) -> Records:
        """Make ``n_mixtures`` records in one pass over the table; see `PaperForm.synthesize`.

        A mixture becomes the nearest valid record, with the label of the largest noisy share.

        Privacy
        -------
        Claimed: (epsilon, delta) under replacement of one record. See the module docstring.
        """
        vector_map, parts = VectorMap(self.domain), []
        for vectors, shares in self.mixtures(codes, labels, rng):
            parts.append((vector_map.codes(vectors)[0], shares.argmax(axis=1).astype(np.uint16)))
        return np.concatenate([c for c, _ in parts]), np.concatenate([y for _, y in parts])
