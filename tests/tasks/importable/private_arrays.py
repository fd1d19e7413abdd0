"""Arrays that hold a canary; Dask workers import this module by name."""

import resource

import numpy as np
from numpy.typing import NDArray

CANARY = b"ZEBRA-PATIENT-4711"
N_BYTES = 4_000_000


def private_array(number: int) -> NDArray[np.uint8]:
    """Return the canary, then noise that nothing compresses."""
    noise = np.random.default_rng(number).bytes(N_BYTES)
    return np.frombuffer(CANARY + noise, dtype=np.uint8)


def core_limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_CORE)
