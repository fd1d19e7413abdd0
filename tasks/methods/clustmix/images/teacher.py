"""The released teacher: labels of any image by softmax regression on whitened features.

Scattering features are whitened on released images: a linear map onto the leading directions of
those images' features, each divided by the root of its variance. It is the Nystroem map of the
scattering kernel, with the released images as inducing points. Post-processing of released values.

Source: Williams and Seeger, "Using the Nystroem method to speed up kernel machines", 2000.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats, Floats32, Integers
from tasks.measurement.encoded import row_slices
from tasks.measurement.method import Released
from tasks.methods.clustmix.images.image_layout import ImageLayout
from tasks.methods.clustmix.images.scattering import EXACT, scatter

_IMAGES_AT_ONCE = 500
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


def whitening_of(released: Released) -> Whitening:
    """Return the whitening map of a measurement."""
    return Whitening(
        released["whitening_matrix"].astype(np.float32),
        released["whitening_scales"],
        released["whitening_shift"],
    )


@dataclass(frozen=True, slots=True)
class ReleasedTeacher:
    """The released classifier of images, a function of released values alone.

    `matrix` (m, C) and `shift` (C,) combine the map of features with the weights (k, C), for
    results that do not depend on the norm of the features.
    """

    layout: ImageLayout
    whitening: Whitening
    matrix: Floats
    shift: Floats

    @classmethod
    def of(cls, released: Released, layout: ImageLayout) -> Self:
        """Return the teacher of a finished measurement."""
        whitening, weights = whitening_of(released), released["teacher_weights"]
        return cls(
            layout,
            whitening,
            whitening.matrix.astype(np.float64) @ (whitening.scales[:, None] * weights),
            (whitening.shift * whitening.scales) @ weights,
        )

    def labels(self, codes: Codes) -> Codes:
        """Most likely labels (n,) of images as codes (n, columns)."""
        found = np.empty(len(codes), dtype=np.uint16)
        for part, scattered in self._scattered(codes):
            with threadpool_limits(1, user_api="blas"):
                found[part] = self._scores(scattered).argmax(axis=1)
        return found

    def probabilities(self, codes: Codes) -> Floats:
        """Probabilities (n, C) of the labels of images as codes (n, columns)."""
        found = np.empty((len(codes), len(self.shift)))
        for part, scattered in self._scattered(codes):
            with threadpool_limits(1, user_api="blas"):
                norms = np.linalg.norm(self.whitening.directions(scattered), axis=1, keepdims=True)
                found[part] = softmax(self._scores(scattered) / np.maximum(norms, _LEAST), axis=1)
        return found

    def _scattered(self, codes: Codes) -> Iterator[tuple[slice, Floats32]]:
        for part in row_slices(len(codes), _IMAGES_AT_ONCE):
            yield part, scatter(self.layout.pixels(codes[part]))

    def _scores(self, scattered: Floats32) -> Floats:
        """Logits (n, C) times the norm of the features, which does not change their order."""
        return np.asarray(scattered @ self.matrix - self.shift)
