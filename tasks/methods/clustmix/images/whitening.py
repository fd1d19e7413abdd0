"""The features of the teacher: scattering features, whitened on released images.

A linear map onto the leading directions of the released images' features, each divided by the root
of its variance. It is the Nystroem map of the scattering kernel, and the released images are its
inducing points.

Source: Williams and Seeger, "Using the Nystroem method to speed up kernel machines", 2000.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from privacy.arrays import Floats, Floats32, Integers
from tasks.methods.clustmix.images.scattering import EXACT

FEATURE_NORM = 2**12
"""Grid points of a whitened feature vector of norm one."""

FEATURE_ZERO = 2**15
"""Offset that is added to a feature to write it as a code."""

_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Whitening:
    """Whole numbers (m, k), exact in products with features, with a shift (k,) and factors (k,)."""

    matrix: Floats32
    scales: Floats
    shift: Floats

    @classmethod
    def fitted(cls, features: Floats32, *, directions: int, flat: int, bound: float) -> Self:
        """Fit a map to the features (n, m) of released images, whose norms are at most `bound`.

        The variance of every direction is raised by that of the `flat`-th, counted from 1.
        """
        mean = features.mean(axis=0, dtype=np.float64)
        centred = features - mean
        values, vectors = np.linalg.eigh(centred @ centred.T)
        kept = min(directions, len(features))
        values = np.maximum(values[::-1][:kept], 1e-9)
        axes = (centred.T @ vectors[:, ::-1][:, :kept]) / np.sqrt(values)
        variances = values / len(features)
        factors = (variances + variances[min(flat, kept) - 1]) ** -0.5
        # Columns of this norm: by Cauchy and Schwarz no partial sum leaves the exact numbers.
        units = EXACT / bound - 0.5 * np.sqrt(len(axes))
        norms = np.maximum(np.linalg.norm(axes, axis=0), _LEAST)
        whole = np.rint(axes * (units / norms)).astype(np.float32)
        padding = directions - kept
        return cls(
            np.pad(whole, ((0, 0), (0, padding))),
            np.pad(factors * norms / units, (0, padding)),
            np.pad(mean @ whole, (0, padding)),
        )

    @property
    def n_directions(self) -> int:
        """Number k of features."""
        return len(self.scales)

    def directions(self, scattered: Floats32) -> Floats:
        """Whitened coordinates (n, k) of (n, m), row by row, of any norm."""
        found = (scattered @ self.matrix).astype(np.float64)
        return np.asarray((found - self.shift) * self.scales)

    def features(self, scattered: Floats32) -> Integers:
        """Whole numbers (n, k) of norm at most ``FEATURE_NORM``, of (n, m), row by row."""
        found = self.directions(scattered)
        norms = np.sqrt((found * found).sum(axis=1, keepdims=True))
        whole = np.trunc(found * (FEATURE_NORM / np.maximum(norms, _LEAST)))
        return np.asarray(whole, dtype=np.int64)
