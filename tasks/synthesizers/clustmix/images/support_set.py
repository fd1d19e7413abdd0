"""Support sets of kernel inducing points, and the moments that they are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SupportSet(NamedTuple):
    """Inducing points and their label vectors.

    Attributes
    ----------
    points : array of shape (s, d)
    labels : array of shape (s, C)
    """

    points: Any
    labels: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisedSupport:
    """Outcome of a descent.

    Attributes
    ----------
    support
        Support set with the lowest loss seen, as float64 numpy arrays.
    start_loss, loss
        Loss at the start and at `support`. They are private where the loss reads raw rows.
    steps_taken
        Number of Adam steps.
    """

    support: SupportSet
    start_loss: float
    loss: float
    steps_taken: int


def psd_projection(noisy_second_moment: NDArray[Any], ridge: float) -> NDArray[np.float64]:
    """Nearest positive semi-definite matrix (Frobenius norm), plus ``ridge`` times the identity.

    The spectral norm of the mirrored noise of standard deviation sigma on an (m, m) matrix is
    about ``2 sigma sqrt(m)``, hence the usual choice of `ridge`.

    Parameters
    ----------
    noisy_second_moment : (m, m)
        Symmetrised before the projection.
    ridge
        At least 0.

    Raises
    ------
    ValueError
        If the matrix is not square or the ridge is negative.
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
