"""Public features of an image: a scattering transform of Gabor filters in two layers.

Every matrix product is one of whole numbers whose partial sums stay below 2**24, so that it is
exact in float32: the features of an image are the same in any batch, by any number of threads and
on any machine. Everything else is done number by number.

Source: Bruna and Mallat, "Invariant scattering convolution networks", 2013; pooled by Gaussians.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from privacy.arrays import AnyFloats, Floats, Floats32
from tasks.measurement.encoded import row_slices

SIDE = 28
"""Rows and columns of the canvas that images of other sizes are brought to."""

EXACT = 2**24
"""Whole numbers up to here, and so sums that stay within, are exact in float32."""

IMAGES_AT_ONCE = 64
"""Images whose features are computed together: few enough for the cache; changes no feature."""

NORM = 2048
"""Grid points of a feature vector of norm one."""

_HALF, _POOLED, _ANGLES = SIDE // 2, SIDE // 4, 8
_BRIGHTEST = 255
_MOST = (2**11 - 1, 2**12 - 1)
"""Largest modulus of the first and of the second layer; larger ones are cut off."""

_WEIGHTS = (0.4, 0.7, 0.6)
"""Norms of the groups of features: pooled pixels, first and second layer."""

_UNITS = (2.0**12, 2.0**10)
"""Grid points per unit of a filter of the first and of the second layer."""

_LEAST = 1e-3


def n_features(channels: int) -> int:
    """Return the number of features of an image of so many channels."""
    return _POOLED**2 * (channels + 2 * _ANGLES + _ANGLES**2)


def scatter(images: Floats) -> Floats32:
    """Features (n, m) of images (n, channels, height, width), each of its image alone."""
    found = np.empty((len(images), n_features(images.shape[1])), dtype=np.float32)
    for part in row_slices(len(images), IMAGES_AT_ONCE):
        found[part] = _scattered(images[part])
    return found


def feature_bound(channels: int) -> float:
    """Largest norm of a feature vector: that of the groups, and of rounding every number."""
    return NORM * float(np.linalg.norm(_WEIGHTS)) + 0.5 * float(np.sqrt(n_features(channels)))


def _scattered(images: Floats) -> Floats32:
    n = len(images)
    canvas = _canvas(images)
    first_layer, second_layer, pools = _filters()
    bright = np.zeros((n, SIDE + 12, SIDE), dtype=np.float32)
    bright[:, 6:-6] = canvas[:, 0]
    flat = bright.reshape(n, -1)
    maps = np.empty((2, _HALF, n, _ANGLES, _HALF), dtype=np.float32)
    for row in range(_HALF):
        for scale, (matrix, reach) in enumerate(first_layer):
            first = 2 * row + 6 - reach
            block = flat[:, first * SIDE : (first + 2 * reach + 1) * SIDE]
            maps[scale, row] = _modulus(block @ matrix, _UNITS[0], _MOST[0]).reshape(
                n, _ANGLES, _HALF
            )
    fine = np.zeros((n, _ANGLES, _HALF + 6, _HALF), dtype=np.float32)
    fine[:, :, 3:-3] = maps[0].transpose(1, 2, 0, 3)
    flat = fine.reshape(n * _ANGLES, -1)
    second = np.empty((_HALF, n * _ANGLES, _ANGLES * _HALF), dtype=np.float32)
    for row in range(_HALF):
        block = flat[:, row * _HALF : (row + 7) * _HALF]
        second[row] = _modulus(block @ second_layer, _UNITS[1], _MOST[1])
    groups = (
        _pooled(canvas.transpose(2, 0, 1, 3), pools[0]),
        _pooled(maps.transpose(1, 2, 0, 3, 4), pools[1]),
        _pooled(second.reshape(_HALF, n, _ANGLES**2, _HALF), pools[2]),
    )
    scaled = []
    for group, weight in zip(groups, _WEIGHTS, strict=True):
        norms = np.sqrt((group * group).sum(axis=1, keepdims=True))
        scaled.append(np.rint(group * (weight * NORM / (norms + _LEAST))))
    return np.concatenate(scaled, axis=1)


def _modulus(products: Floats32, units: float, most: float) -> Floats32:
    """Modulus of even and odd responses side by side, as whole numbers up to the largest one."""
    products *= products
    half = products.shape[1] // 2
    found = products[:, :half] + products[:, half:]
    np.sqrt(found, out=found)
    found *= np.float32(1.0 / units)
    np.rint(found, out=found)
    np.minimum(found, np.float32(most), out=found)
    return found


@dataclass(frozen=True, slots=True)
class _Pool:
    """Whole Gaussian weights (side, 7) of rows and columns; `units` are divided by between."""

    rows: Floats32
    units: float
    columns: Floats32

    @classmethod
    def of(cls, side: int, spread: float, units: tuple[float, float, float], most: float) -> Self:
        """Return the weights of maps of values up to `most`, in the first and last of `units`."""
        centres = (np.arange(_POOLED) + 0.5) * side / _POOLED - 0.5
        weights = np.exp(-((np.arange(side)[:, None] - centres) ** 2) / (2.0 * spread**2))
        weights /= weights.sum(axis=0)
        rows, columns = (np.rint(weights * unit).astype(np.float32) for unit in units[::2])
        between = most * rows.sum(axis=0).max() / units[1]
        if max(between * units[1], between * columns.sum(axis=0).max()) >= EXACT:
            raise ValueError("expected sums that are exact in float32, found larger ones")
        return cls(rows, units[1], columns)


def _pooled(maps: AnyFloats, pool: _Pool) -> Floats32:
    """Gaussian means (n, m) of maps (side, n, ..., side)."""
    side, n = maps.shape[:2]
    rows = pool.rows.T @ np.ascontiguousarray(maps, dtype=np.float32).reshape(side, -1)
    if pool.units > 1.0:
        rows *= np.float32(1.0 / pool.units)
        np.rint(rows, out=rows)
    found = (rows.reshape(-1, side) @ pool.columns).reshape(_POOLED, n, -1)
    return np.ascontiguousarray(found.transpose(1, 0, 2), dtype=np.float32).reshape(n, -1)


@lru_cache(maxsize=1)
def _filters() -> tuple[list[tuple[Floats32, int]], Floats32, tuple[_Pool, ...]]:
    """Return filters as matrices of a row of outputs, the first with their reach, and pools."""
    first = []
    for spread, reach, wave in ((1.0, 3, 3.5), (2.0, 6, 7.0)):
        filters = _gabor(spread, reach, wave)
        matrix = _row_matrix(filters, _UNITS[0], side=SIDE, stride=2, most=_BRIGHTEST)
        first.append((matrix, reach))
    second = _row_matrix(_gabor(1.1, 3, 4.0), _UNITS[1], side=_HALF, stride=1, most=_MOST[0])
    pools = (
        _Pool.of(SIDE, 2.0, (2.0**8, 1.0, 250.0), _BRIGHTEST),
        _Pool.of(_HALF, 1.0, (2.0**12, 2.0**8, 2.0**8), _MOST[0]),
        _Pool.of(_HALF, 1.0, (2.0**11, 2.0**7, 2.0**7), _MOST[1]),
    )
    return first, second, pools


def _gabor(spread: float, reach: int, wave: float) -> Floats:
    """Even and odd filters (2, 8, side, side) of norm one together, without a mean."""
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.float64)
    found = np.empty((2, _ANGLES, 2 * reach + 1, 2 * reach + 1))
    for index in range(_ANGLES):
        angle = np.pi * index / _ANGLES
        along = columns * np.cos(angle) + rows * np.sin(angle)
        across = rows * np.cos(angle) - columns * np.sin(angle)
        envelope = np.exp(-(along**2 + 0.5 * across**2) / (2.0 * spread**2))
        even = envelope * np.cos(2.0 * np.pi / wave * along)
        even -= envelope * even.sum() / envelope.sum()
        odd = envelope * np.sin(2.0 * np.pi / wave * along)
        found[:, index] = np.stack([even, odd]) / np.sqrt((even**2).sum() + (odd**2).sum())
    return found


def _row_matrix(filters: Floats, units: float, *, side: int, stride: int, most: float) -> Floats32:
    """Whole-number matrix (k * side, 2 * 8 * outputs) that filters a row of values up to `most`."""
    whole = np.rint(filters * units)
    if np.abs(whole).sum(axis=(2, 3)).max() * most >= EXACT:
        raise ValueError("expected sums that are exact in float32, found larger ones")
    size = filters.shape[-1]
    reach, outputs = size // 2, side // stride
    matrix = np.zeros((size, side, 2, _ANGLES, outputs), dtype=np.float32)
    for place in range(outputs):
        for shift in range(-reach, reach + 1):
            column = place * stride + shift
            if 0 <= column < side:
                matrix[:, column, :, :, place] = whole[..., shift + reach].transpose(2, 0, 1)
    return matrix.reshape(size * side, -1)


def _canvas(images: Floats) -> Floats:
    """Images (n, c, 28, 28) of whole numbers; of another size by linear interpolation."""
    height, width = images.shape[2:]
    if (height, width) == (SIDE, SIDE):
        return images
    down, across = (_resized(side) for side in (height, width))
    return np.rint(down @ images @ across.T / 2.0**24)


@lru_cache(maxsize=8)
def _resized(side: int) -> Floats:
    """Whole-number weights (28, side), in units of 2**-12, of a resized line of pixels."""
    place = (np.arange(SIDE) + 0.5) * side / SIDE - 0.5
    reach = max(1.0, side / SIDE)
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(side) - place[:, None]) / reach)
    return np.asarray(np.rint(weights / weights.sum(axis=1, keepdims=True) * 2.0**12))
