"""Support sets of kernel inducing points, and the moments that they are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SupportSet(NamedTuple):
    """Inducing points (s, d) and their label vectors (s, C)."""

    points: Any
    labels: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisedSupport:
    """Outcome of a descent: the support set with the lowest loss seen, and the steps taken.

    The losses, at the start and of it, are private where the loss reads raw rows.
    """

    support: SupportSet
    start_loss: float
    loss: float
    steps_taken: int


def psd_projection(noisy_second_moment: NDArray[Any], ridge: float) -> NDArray[np.float64]:
    """Nearest positive semi-definite matrix (Frobenius norm), plus ``ridge`` times the identity.

    The spectral norm of the mirrored noise of standard deviation sigma on an (m, m) matrix is
    about ``2 sigma sqrt(m)``, hence the usual choice of `ridge`.

    The matrix is made symmetric before; one that is not square, or a ridge below 0, is a
    ValueError.
    """
    noisy = np.asarray(noisy_second_moment, dtype=np.float64)
    if noisy.ndim != 2 or noisy.shape[0] != noisy.shape[1]:
        raise ValueError(f"expected a square matrix, found shape {noisy.shape}")
    if not ridge >= 0.0:
        raise ValueError(f"expected a ridge of 0 or more, found {ridge}")
    values, vectors = np.linalg.eigh((noisy + noisy.T) / 2.0)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    projected: NDArray[np.float64] = root @ root.T + ridge * np.eye(len(noisy))
    return projected
