"""Arrays that hold a canary; Dask workers import this module by name."""

import resource

import numpy as np

CANARY = b"ZEBRA-PATIENT-4711"
N_BYTES = 4_000_000


def private_array(number):
    """Return the canary, then noise that nothing compresses."""
    noise = np.random.default_rng(number).bytes(N_BYTES)
    return np.frombuffer(CANARY + noise, dtype=np.uint8)


def core_limits():
    return resource.getrlimit(resource.RLIMIT_CORE)
