"""A method measured in this process: its draws and rows, with no release around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Integers
from privacy.calibration import gdp_mu
from privacy.randomness import NoiseSource, OperatingSystemNoise
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import N_FOLDS, EncodedRows
from tasks.measurement.method import Released, Synthesizer, measure


def shards_of(
    codes: NDArray[Any], labels: NDArray[Any], size: int | None = None
) -> list[EncodedRows]:
    size = size or len(labels)
    return [
        EncodedRows(
            codes=codes[start : start + size].astype(np.uint16),
            label=(label := labels[start : start + size].astype(np.uint16)),
            weight=np.ones(len(label)),
            fold=np.arange(len(label), dtype=np.uint8) % N_FOLDS,
        )
        for start in range(0, len(labels), size)
    ]


def measured(
    method: Synthesizer, shards: Sequence[Any], *, mu: float, noise: NoiseSource | None = None
) -> Released:
    """Draw the statistics of a method, with the noise of the operating system or another."""
    plan, source = method.plan(mu=mu), noise or OperatingSystemNoise()
    return measure(method, Curator(plan=plan, shards=shards, noise_source=source))


def released_rows(
    method: Synthesizer, codes: NDArray[Any], labels: NDArray[Any], *, epsilon: float,
    delta: float, n_rows: int,
) -> tuple[NDArray[Any], NDArray[Any]]:  # fmt: skip
    released = measured(method, shards_of(codes, labels), mu=gdp_mu(epsilon=epsilon, delta=delta))
    return method.sample(released, n_rows=n_rows, rng=np.random.default_rng())


class SeededNoise:
    """Reproducible draws, a rounded normal, with which no release is made: they taint.

    Anybody who knows or guesses the seed, of a numpy generator, can subtract the noise.
    """

    tainted = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def discrete_gaussian(self, shape: tuple[int, ...], *, noise_stddev: float) -> Integers:
        """Draw an int64 array of independent rounded normal values."""
        normal = self._generator.normal(0.0, noise_stddev, shape)
        return np.asarray(np.rint(normal), dtype=np.int64)
