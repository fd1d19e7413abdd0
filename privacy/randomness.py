"""Randomness of the operating system: noise of mechanisms, and chance in post-processing."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import opendp.domains
import opendp.measurements
import opendp.metrics
import opendp.mod

from privacy.arrays import Integers

_VALUES_AT_ONCE = 16_384
"""Values drawn per call of the sampler: bounds the memory of its lists of Python integers."""

_features_lock = threading.Lock()


class NoiseSource(Protocol):
    """A source of discrete Gaussian noise."""

    tainted: bool
    """True if the noise can be drawn again; nothing made with it may be published."""

    def discrete_gaussian(self, shape: tuple[int, ...], *, noise_stddev: float) -> Integers:
        """Draw independent values with weights ``exp(-z**2 / (2 noise_stddev**2))``."""


class OperatingSystemNoise:
    """Exact discrete Gaussian noise from the entropy of the operating system.

    OpenDP's sampler works on integers and exact rationals (Canonne, Kamath and Steinke 2020,
    Algorithm 3): no floating point enters, so the low bits of a result leak nothing. There is no
    seed and no state that could be read or repeated. About 100,000 values per second and core: the
    sampler runs outside the interpreter lock, and several threads draw a large array.
    """

    tainted = False

    def discrete_gaussian(self, shape: tuple[int, ...], *, noise_stddev: float) -> Integers:
        """Draw an int64 array of independent values.

        ``noise_stddev`` is sigma of the discrete Gaussian in grid units, as an exact rational.
        """
        noise = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)

        def draw(start: int) -> None:
            piece = noise[start : start + _VALUES_AT_ONCE]
            values = _exact_gaussian(noise_stddev)([0] * piece.size)
            piece[:] = np.asarray(values, dtype=np.int64).reshape(piece.size)

        with ThreadPoolExecutor() as threads:
            for _ in threads.map(draw, range(0, noise.size, _VALUES_AT_ONCE)):
                pass
        return noise.reshape(shape)


def _exact_gaussian(noise_stddev: float) -> Any:
    """OpenDP's Gaussian mechanism for vectors of 64-bit integers."""
    # "contrib" marks parts of OpenDP without a completed review of their proof. The switch is for
    # the whole process, so it is on for one constructor only and then as it was.
    with _features_lock:
        was_enabled = "contrib" in opendp.mod.GLOBAL_FEATURES
        opendp.mod.enable_features("contrib")
        try:
            return opendp.measurements.make_gaussian(
                opendp.domains.vector_domain(opendp.domains.atom_domain(T="i64")),
                opendp.metrics.l2_distance(T="f64"),
                scale=noise_stddev,
            )
        finally:
            if not was_enabled:
                opendp.mod.disable_features("contrib")


def system_generator() -> np.random.Generator:
    """Return a fresh generator for post-processing; noise never comes from it."""
    return np.random.default_rng(list(os.urandom(32)))
