"""Runs whose randomness a test chooses; what they draw is tainted and cannot be published."""

from typing import NamedTuple
from unittest import mock

import numpy as np

from privacy import randomness as of_runs
from privacy.randomness import NoiseSource


class Randomness(NamedTuple):
    """Noise of mechanisms, and randomness of post-processing."""

    noise_source: NoiseSource
    sampling: np.random.Generator


def fixed_randomness(randomness):
    """Use this randomness in the block, in all threads of this process."""
    return mock.patch.multiple(
        of_runs,
        OperatingSystemNoise=lambda: randomness.noise_source,
        system_generator=lambda: randomness.sampling,
    )
