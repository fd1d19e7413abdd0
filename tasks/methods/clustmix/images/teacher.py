"""The released teacher: labels of any image by softmax regression on whitened features.

Post-processing of released values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats, Floats32
from tasks.measurement.encoded import row_slices
from tasks.measurement.method import Released
from tasks.measurement.statistics import softmax
from tasks.methods.clustmix.images.image_layout import ImageLayout
from tasks.methods.clustmix.images.scattering import scatter
from tasks.methods.clustmix.images.whitening import Whitening

_IMAGES_AT_ONCE = 500
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class ReleasedTeacher:
    """A taught teacher: the labels of any image, by what was released alone.

    Of a map of scattering features and weights (k, C); `matrix` (m, C) and `shift` (C,) are both in
    one, for what does not ask for the norm of the features.
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
                found[part] = softmax(self._scores(scattered) / np.maximum(norms, _LEAST))
        return found

    def _scattered(self, codes: Codes) -> Iterator[tuple[slice, Floats32]]:
        for part in row_slices(len(codes), _IMAGES_AT_ONCE):
            yield part, scatter(self.layout.pixels(codes[part]))

    def _scores(self, scattered: Floats32) -> Floats:
        """Logits (n, C) times the norm of the features, which does not change their order."""
        return np.asarray(scattered @ self.matrix - self.shift)


def whitening_of(released: Released) -> Whitening:
    """Return the whitening map of a measurement."""
    return Whitening(
        released["whitening_matrix"].astype(np.float32),
        released["whitening_scales"],
        released["whitening_shift"],
    )
