"""Layout of images, and low frequencies (orthonormal DCT-II) as public vectors of a density."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.fft import idct

from privacy.arrays import AnyFloats, Codes, Floats, Floats32, Integers
from tasks.measurement.encoded import EncodingDomain

BRIGHTEST = 255
"""Value of a white pixel; that of a black one is 0."""

_LUMA = np.array([77.0, 150.0, 29.0])
"""Parts in 256 of red, green and blue in the brightness of a pixel (ITU-R BT.601)."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Public shape: pixels from the top left, in red, green and blue, with even gray levels.

    The density has coefficients whose frequencies along both sides sum to at most `frequencies`.
    """

    height: int
    width: int
    channels: int
    levels: int
    n_labels: int
    frequencies: int = 14

    @classmethod
    def of(cls, domain: EncodingDomain) -> Self:
        """Return the layout of a domain of images."""
        if domain.image is None:
            raise ValueError("expected a domain of images, found one of a table")
        return cls(*domain.image, levels=domain.n_codes[0], n_labels=domain.n_labels)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.height * self.width * self.channels

    def pixels(self, codes: NDArray[Any]) -> Floats:
        """Whole pixels (n, channels, height, width), 0 to 255, of codes (n, columns) (ValueError).

        The channels of a colour image are its brightness and two differences, from -255 to 255.
        """
        if (codes >= self.levels).any():
            raise ValueError("expected codes inside the public domain, found one outside")
        scaled = codes.astype(np.float64)
        if self.levels != BRIGHTEST + 1:
            scaled = np.rint(scaled * (BRIGHTEST / (self.levels - 1)))
        images = scaled.reshape(len(codes), self.height, self.width, self.channels)
        if self.channels == 1:
            return images.reshape(len(codes), 1, self.height, self.width)
        red, green, blue = (images[..., channel] for channel in range(3))
        bright = np.rint((_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue) / 256.0)
        return np.stack([bright, red - bright, blue - bright], axis=1)

    def codes(self, images: AnyFloats) -> Codes:
        """Nearest codes (n, columns) of images (n, channels, height, width) as from `pixels`."""
        if self.channels == 1:
            values = images[:, 0, :, :, None]
        else:
            bright = images[:, 0]
            red, blue = bright + images[:, 1], bright + images[:, 2]
            green = (256.0 * bright - _LUMA[0] * red - _LUMA[2] * blue) / _LUMA[1]
            values = np.stack([red, green, blue], axis=-1)
        scaled = np.rint(np.clip(values, 0.0, BRIGHTEST) * ((self.levels - 1) / BRIGHTEST))
        return np.asarray(scaled, dtype=np.uint16).reshape(len(images), self.n_columns)


def values(images: AnyFloats) -> AnyFloats:
    """Largest of red, green and blue (n, height, width) of images as from `ImageLayout.pixels`."""
    bright = images[:, 0]
    if images.shape[1] == 1:
        return bright
    red, blue = images[:, 1], images[:, 2]
    green = (_LUMA[0] * red + _LUMA[2] * blue) / -_LUMA[1]
    # Brightness is rounded, so that green is not exact.
    return np.asarray(np.minimum(bright + np.maximum(np.maximum(red, blue), green), BRIGHTEST))


_OF_COLOUR = 6
"""Frequencies of a difference of colour."""

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
    lines = -(-4 * layout.frequencies // 5)
    down, across = (
        idct(np.eye(k)[:lines], axis=1, norm="ortho") for k in (layout.height, layout.width)
    )
    images, owner = [], []
    for channel in range(layout.channels):
        most = _OF_COLOUR if channel else layout.frequencies
        for i in range(len(down)):
            for j in range(len(across)):
                if i + j <= most:
                    images.append(np.outer(down[i], across[j]).ravel())
                    owner.append(channel)
    return Basis(np.array(images), np.array(owner))
