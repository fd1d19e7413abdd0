"""Where noise comes from: the operating system in production, a seeded generator in tests."""

import threading
from typing import Any, Protocol

import numpy as np
import opendp.domains
import opendp.measurements
import opendp.metrics
import opendp.mod
from numpy.typing import NDArray

_VALUES_AT_ONCE = 65_536
"""Values drawn per call of the sampler: bounds the memory of its lists of Python integers."""

_features_lock = threading.Lock()


class NoiseSource(Protocol):
    """A source of discrete Gaussian noise.

    Attributes
    ----------
    tainted : bool
        Whether the noise can be drawn again; nothing made with it may be published.
    """

    tainted: bool

    def discrete_gaussian(
        self, shape: tuple[int, ...], *, noise_stddev: float
    ) -> NDArray[np.int64]:
        """Draw independent values with weights ``exp(-z**2 / (2 noise_stddev**2))``."""


class OperatingSystemNoise:
    """Exact discrete Gaussian noise from the entropy of the operating system.

    OpenDP's sampler works on integers and exact rationals (Canonne, Kamath and Steinke 2020,
    Algorithm 3): no floating point enters, so the low bits of a result tell nothing. There is no
    seed and no state that could be read or repeated. About 80,000 values per second.
    """

    tainted = False

    def discrete_gaussian(
        self, shape: tuple[int, ...], *, noise_stddev: float
    ) -> NDArray[np.int64]:
        """Draw an int64 array of independent values.

        Parameters
        ----------
        shape : tuple of int
            Shape of the result.
        noise_stddev : float
            Parameter sigma of the discrete Gaussian, in grid units; taken as the exact rational
            that the float is.

        Returns
        -------
        int64 array of the given shape
        """
        mechanism = _exact_gaussian(noise_stddev)
        noise = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
        for start in range(0, noise.size, _VALUES_AT_ONCE):
            count = min(_VALUES_AT_ONCE, noise.size - start)
            noise[start : start + count] = mechanism([0] * count)
        return noise.reshape(shape)


def _exact_gaussian(noise_stddev: float) -> Any:
    """OpenDP's Gaussian mechanism for vectors of 64-bit integers."""
    # "contrib" marks parts of OpenDP without a completed review of their proof. The switch is for
    # the whole process, so it is on for this one constructor only and then as it was.
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


class SeededNoise:
    """Reproducible noise for tests: a rounded normal. Whatever it touches is tainted.

    Parameters
    ----------
    seed : int
        Seed of a numpy generator. Anybody who knows or guesses it can subtract the noise.
    """

    tainted = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def discrete_gaussian(
        self, shape: tuple[int, ...], *, noise_stddev: float
    ) -> NDArray[np.int64]:
        """Draw an int64 array of independent rounded normal values."""
        normal = self._generator.normal(0.0, noise_stddev, shape)
        return np.asarray(np.rint(normal), dtype=np.int64)
