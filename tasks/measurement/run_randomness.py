"""The randomness of a run: fresh from the operating system, but for tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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


_fixed_randomness: ContextVar[Randomness | None] = ContextVar("fixed_randomness", default=None)


@contextmanager
def fixed_randomness(randomness: Randomness) -> Iterator[None]:
    """Use this randomness in the block: for tests alone, no setting or file does the same."""
    token = _fixed_randomness.set(randomness)
    try:
        yield
    finally:
        _fixed_randomness.reset(token)


def randomness_of_run() -> Randomness:
    """Return fresh operating-system randomness, or that of `fixed_randomness`."""
    return _fixed_randomness.get() or Randomness()
