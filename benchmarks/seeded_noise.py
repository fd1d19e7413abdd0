"""Noise that can be drawn again, for tests and benchmarks; no release can be made with it."""

import numpy as np

from privacy.arrays import Integers


class SeededNoise:
    """Reproducible draws for tests: a rounded normal. What they touch is tainted.

    Anybody who knows or guesses the seed, of a numpy generator, can subtract the noise.
    """

    tainted = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def discrete_gaussian(self, shape: tuple[int, ...], *, noise_stddev: float) -> Integers:
        """Draw an int64 array of independent rounded normal values."""
        normal = self._generator.normal(0.0, noise_stddev, shape)
        return np.asarray(np.rint(normal), dtype=np.int64)
