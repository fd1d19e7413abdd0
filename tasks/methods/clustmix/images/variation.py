"""Public variation: small random warps that leave an image what it is. No data are read."""

import numpy as np

from privacy.arrays import Floats, Floats32

_TURN, _STRETCH, _SHEAR, _SHIFT = 0.12, 0.07, 0.12, 0.025
"""Standard deviations at strength one: radians, logarithm, tangent, parts of a side."""

_WAVES = np.array([0.5, 0.5, 0.5, 0.35, 0.25])
_ELASTIC = np.outer(np.where(np.arange(5) > 0, _WAVES, 0.0), _WAVES) / 28.0
"""Standard deviations of the smooth shifts by their frequency along both sides, in parts of one."""


def warped(images: Floats32, strength: Floats, rng: np.random.Generator) -> Floats32:
    """Warp images (n, channels, height, width) by strength (n,).

    The outside of a gray image is black; that of a colour image, which may lie on any ground, is
    its nearest pixel.
    """
    n, channels, height, width = images.shape
    rows, columns = _places(n, height, width, strength=strength, rng=rng)
    row = np.clip(rows, 0.0, max(height - 1.001, 0.0))
    column = np.clip(columns, 0.0, max(width - 1.001, 0.0))
    top, left = row.astype(np.int32), column.astype(np.int32)
    down, right = (row - top).astype(np.float32), (column - left).astype(np.float32)
    inside = (rows > -0.5) & (rows < height - 0.5) & (columns > -0.5) & (columns < width - 0.5)
    inside = inside.astype(np.float32) if channels == 1 else np.float32(1.0)
    index = top * width + left
    index += (np.arange(n, dtype=np.int32) * (channels * height * width))[:, None, None]
    beside, below = int(width > 1), width * int(height > 1)
    flat = images.reshape(-1)
    found = np.empty_like(images)
    for channel in range(channels):
        first = index + channel * height * width
        upper = flat[first] * (1 - right) + flat[first + beside] * right
        lower = flat[first + below] * (1 - right) + flat[first + below + beside] * right
        found[:, channel] = (upper * (1 - down) + lower * down) * inside
    return found


def _places(
    n: int, height: int, width: int, *, strength: Floats, rng: np.random.Generator
) -> Floats32:
    """Rows and columns (2, n, height, width) from where the pixels of each image come."""
    turn, shear = rng.standard_normal((2, n)) * np.array([[_TURN], [_SHEAR]]) * strength
    stretch = np.exp(rng.standard_normal((2, n)) * _STRETCH * strength)
    shift = rng.standard_normal((2, n)) * _SHIFT * strength
    waves = rng.standard_normal((2, n, 5, 5)) * _ELASTIC * strength[:, None, None]
    y, x = ((np.arange(side) + 0.5) / side - 0.5 for side in (height, width))
    cosine, sine = np.cos(turn), np.sin(turn)
    one = np.array([cosine * stretch[0], shear - sine])
    other = np.array([sine, cosine * stretch[1]])
    down, across = (
        np.cos(np.pi * np.outer(np.arange(5), np.arange(side) + 0.5) / side)
        for side in (height, width)
    )
    smooth = np.einsum("pnab,ay,bx->pnyx", waves, down, across, optimize=True)
    found = np.stack([one, other])
    places = (
        found[:, 0, :, None, None] * y[:, None]
        + found[:, 1, :, None, None] * x
        + shift[:, :, None, None]
        + smooth
    )
    sides = np.array([height, width])[:, None, None, None]
    return np.asarray((places + 0.5) * sides - 0.5, dtype=np.float32)
