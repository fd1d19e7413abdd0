"""Sources of noise: the operating system in production, a seeded generator in tests."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import opendp.domains
import opendp.measurements
import opendp.metrics
import opendp.mod

from privacy.arrays import Integers
from privacy.errors import ClustMixError

PARALLEL_ABOVE = 200_000
"""Number of values from which a draw is divided among processes; a process costs some 0.3 s."""

_MAX_PROCESSES = 16

_VALUES_AT_ONCE = 65_536
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
    seed and no state that could be read or repeated. About 80,000 values per second and core;
    large arrays are drawn by child processes, one per core (`privacy.noise_process`), and come
    back through pipes, in memory only.
    """

    tainted = False

    def discrete_gaussian(self, shape: tuple[int, ...], *, noise_stddev: float) -> Integers:
        """Draw an int64 array of independent values.

        ``noise_stddev`` is the parameter sigma of the discrete Gaussian, in grid units; taken as
        the exact rational that the float is. It is a ClustMixError if a child process fails or
        writes another number of values (``NOISE_PROCESS_FAILED``). Nothing is tried again: what was
        drawn is thrown away.
        """
        noise = np.empty(int(np.prod(shape, dtype=np.int64)), dtype="<i8")
        processes = _available_cores()
        if noise.size > PARALLEL_ABOVE and processes > 1:
            _draw_in_processes(np.array_split(noise, processes), noise_stddev=noise_stddev)
        else:
            start = 0
            for values in exact_discrete_gaussian(noise.size, noise_stddev=noise_stddev):
                noise[start : start + values.size] = values
                start += values.size
        return noise.astype(np.int64, copy=False).reshape(shape)


def exact_discrete_gaussian(count: int, *, noise_stddev: float) -> Iterator[Integers]:
    """Draw as `OperatingSystemNoise.discrete_gaussian` in this process, 65,536 values at a time."""
    mechanism = _exact_gaussian(noise_stddev)
    for start in range(0, count, _VALUES_AT_ONCE):
        piece = min(_VALUES_AT_ONCE, count - start)
        yield np.asarray(mechanism([0] * piece), dtype=np.int64)


def _available_cores() -> int:
    """Return the number of cores that this process may use, at most `_MAX_PROCESSES`."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    return min(os.cpu_count() or 1, _MAX_PROCESSES)


def _noise_command(count: int, *, noise_stddev: float) -> list[str]:
    # -P: the current directory is not searched, so nobody's file stands in for the package.
    arguments = [float(noise_stddev).hex(), str(count)]
    return [sys.executable, "-P", "-m", "privacy.noise_process", *arguments]


def _noise_environment() -> dict[str, str]:
    """Environment in which a child finds this package first, whatever its current directory."""
    package_root = str(Path(__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    paths = [package_root, inherited] if inherited else [package_root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _draw_in_processes(parts: Sequence[Integers], *, noise_stddev: float) -> None:
    """Fill contiguous parts of a little-endian array, each from a process of its own."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        for part in parts:
            children.append(
                subprocess.Popen(  # noqa: S603, this interpreter with a module of this package
                    _noise_command(part.size, noise_stddev=noise_stddev),
                    env=_noise_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
        # All pipes are read at once: a child whose pipe is full waits.
        with ThreadPoolExecutor(len(children)) as readers:
            complete = list(readers.map(_filled, children, parts))
        codes = [child.wait() for child in children]
    except OSError as error:
        raise _failed("a process that could not be started or read") from error
    finally:
        for child in children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
    if any(codes) or not all(complete):
        raise _failed("a process that ended early or wrote another number of values")


def _filled(child: subprocess.Popen[bytes], part: Integers) -> bool:
    """Read a part from the pipe of a child; whether exactly its bytes came."""
    pipe: IO[bytes] | None = child.stdout
    if pipe is None:
        return False
    wanted = part.data.cast("B")
    position = 0
    while position < len(wanted) and (got := pipe.readinto(wanted[position:])):  # type: ignore[attr-defined]
        position += got
    complete = position == len(wanted) and not pipe.read(1)
    if not complete:
        # A child that writes too much would wait for a reader for ever.
        child.kill()
    return complete


def _failed(found: str) -> ClustMixError:
    return ClustMixError(
        "NOISE_PROCESS_FAILED",
        f"expected every noise process to write all its values, found {found}; what was drawn is "
        "thrown away",
    )


def _exact_gaussian(noise_stddev: float) -> Any:
    """OpenDP's Gaussian mechanism for vectors of 64-bit integers."""
    with _unreviewed_parts():
        return opendp.measurements.make_gaussian(
            opendp.domains.vector_domain(opendp.domains.atom_domain(T="i64")),
            opendp.metrics.l2_distance(T="f64"),
            scale=noise_stddev,
        )


@contextmanager
def _unreviewed_parts() -> Iterator[None]:
    # "contrib" marks parts of OpenDP without a completed review of their proof. The switch is for
    # the whole process, so it is on for one constructor only and then as it was.
    with _features_lock:
        was_enabled = "contrib" in opendp.mod.GLOBAL_FEATURES
        opendp.mod.enable_features("contrib")
        try:
            yield
        finally:
            if not was_enabled:
                opendp.mod.disable_features("contrib")


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
