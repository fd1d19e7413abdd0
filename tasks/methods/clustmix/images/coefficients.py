"""Low frequencies of an image: the public vectors that its density is measured in.

Source: the discrete cosine transform of the second kind, orthonormal.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.fft import idct

from privacy.arrays import AnyFloats, Floats, Floats32, Integers
from tasks.methods.clustmix.images.image_layout import ImageLayout

_LINES, _DIAGONAL, _COLOUR_DIAGONAL = 12, 14, 6
"""Frequencies along a side, and the largest sum of both of a coefficient."""

_UNITS = 2.0**20
"""Grid points of a basis vector of norm one: sums of pixels times them are exact in float64."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Orthonormal images (d, height * width), and the channel of each."""

    images: Floats
    channel: Integers

    def __len__(self) -> int:
        return len(self.images)

    def vectors(self, images: Floats) -> Floats:
        """Coefficients (n, d) of images (n, channels, height, width), of norm one or zero.

        Products are of whole numbers, hence exact: a vector depends on its image alone.
        """
        n, channels = images.shape[:2]
        flat = images.reshape(n, channels, -1)
        whole = np.rint(self.images * _UNITS)
        found = np.empty((n, len(self)))
        for channel in range(channels):
            own = self.channel == channel
            found[:, own] = flat[:, channel] @ whole[own].T
        norms = np.sqrt((found * found).sum(axis=1, keepdims=True))
        return np.asarray(found / np.maximum(norms, 1.0))

    def to_images(self, vectors: AnyFloats, *, shape: tuple[int, int, int]) -> Floats32:
        """Images (n, *shape) of coefficients (n, d)."""
        found = np.empty((len(vectors), shape[0], shape[1] * shape[2]), dtype=np.float32)
        for channel in range(shape[0]):
            own = self.channel == channel
            found[:, channel] = vectors[:, own] @ self.images[own]
        return found.reshape(len(vectors), *shape)


@lru_cache(maxsize=4)
def basis_of(layout: ImageLayout) -> Basis:
    """Return the basis of a layout."""
    down, across = (
        idct(np.eye(k)[:_LINES], axis=1, norm="ortho") for k in (layout.height, layout.width)
    )
    images, owner = [], []
    for channel in range(layout.channels):
        most = _COLOUR_DIAGONAL if channel else _DIAGONAL
        for i in range(len(down)):
            for j in range(len(across)):
                if i + j <= most:
                    images.append(np.outer(down[i], across[j]).ravel())
                    owner.append(channel)
    return Basis(np.array(images), np.array(owner))
