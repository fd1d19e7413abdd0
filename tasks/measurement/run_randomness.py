"""The randomness of a run: fresh from the operating system. No setting and no file changes it."""

import os
from dataclasses import dataclass, field

import numpy as np

from privacy.randomness import NoiseSource, OperatingSystemNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomness:
    """Noise of mechanisms, and randomness of post-processing. Never the same generator."""

    noise_source: NoiseSource = field(default_factory=OperatingSystemNoise)
    sampling: np.random.Generator = field(
        default_factory=lambda: np.random.default_rng(list(os.urandom(32)))
    )


def randomness_of_run() -> Randomness:
    """Return the randomness of one measurement or of one sample."""
    return Randomness()
