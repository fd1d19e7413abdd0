"""Tone curves of images from released counts of intensity, and public warps; post-processing."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import nnls

from privacy.arrays import Floats, Floats32, Integers
from tasks.methods.clustmix.images.image_draws import shares_of_pixels
from tasks.methods.clustmix.images.image_layout import BRIGHTEST, values
from tasks.methods.clustmix.images.image_rule import INTENSITY_BINS, NORM_BINS

SHARPNESS = np.array([0.0, 2.0, 4.0, 7.0, 12.0, 20.0])
"""Steepness of the tone curves that are mixed; 0 is a straight line."""

_STEPS = 12
_WHITE = 0.97
"""Quantile of an image that is taken for white before its tone."""

_FAINT, _LEAST_STEEP, _LEAST_BRIGHT = 0.02, 0.1, 0.01
_BLACK_WEIGHT = 0.3
"""Weight of the darkest bin in the fit: most of it is background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tone:
    """Shares (6,) of the curves, and of the brightness (C, bins) of each label."""

    sharpness: Floats
    norms: Floats

    @classmethod
    def fitted(
        cls,
        images: Floats32,
        label: Integers,
        *,
        norms: Floats,
        intensity: Floats,
        rng: np.random.Generator,
    ) -> Self:
        """Fit the shares of the curves to released intensities (bins,), for norms (C, bins)."""
        drawn = draw_norms(norms, label, rng)
        made = np.stack(
            [
                shares_of_pixels(_toned(images, np.full(len(images), curve), drawn)).mean(axis=0)
                for curve in SHARPNESS
            ],
            axis=1,
        )
        wanted = np.maximum(intensity, 0.0) / max(float(intensity.sum()), 1.0)
        weights = np.r_[_BLACK_WEIGHT, np.ones(INTENSITY_BINS - 1)]
        shares = nnls(made * weights[:, None], wanted * weights)[0]
        shares = shares if shares.any() else np.ones(len(SHARPNESS))
        return cls(sharpness=shares / shares.sum(), norms=norms)

    def applied(self, images: Floats32, label: Integers, rng: np.random.Generator) -> Floats32:
        """Give images (n, channels, height, width) of any scale a tone, from 0 to 255."""
        curves = rng.choice(SHARPNESS, size=len(images), p=self.sharpness)
        return _toned(images, curves, draw_norms(self.norms, label, rng))


def norm_shares(noisy: Floats, *, stddev: float) -> Floats:
    """Shares (C, bins) of noisy counts that exceed their noise; pooled for labels without one."""
    kept = np.where(noisy > 3.0 * stddev, noisy, 0.0)
    total = noisy.sum(axis=0)
    pooled = np.where(total > 2.0 * stddev * np.sqrt(len(noisy)), total, 0.0)
    kept = np.where(kept.any(axis=1, keepdims=True), kept, np.maximum(pooled, 1e-6))
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))


def draw_norms(shares: Floats, label: Integers, rng: np.random.Generator) -> Floats:
    """Draw the root mean square (n,) of the pixels of images of these labels."""
    found = np.empty(len(label))
    for index in np.unique(label):
        own = np.flatnonzero(label == index)
        found[own] = rng.choice(NORM_BINS, size=len(own), p=shares[index])
    return np.maximum((found + rng.random(len(label))) / NORM_BINS, 0.02)


def _toned(images: Floats32, curves: Floats, norms: Floats) -> Floats32:
    """Images under monotone curves with the wanted root mean square; zero stays zero."""
    n = len(images)
    bright = np.maximum(values(images), 0.0).reshape(n, -1)
    pixels = bright.shape[1]
    rank = min(round(_WHITE * pixels), pixels - 1)
    white = np.partition(bright, rank, axis=1)[:, rank]
    bright = bright / np.maximum(white, 1e-3)[:, None]
    straight = curves <= 0.0
    steep = np.maximum(curves, _LEAST_STEEP).astype(np.float32)
    # Sigmoid curves, 0 at 0 and 1 at infinity: (1 - e) / (1 + e exp(k t)), e = exp(-k v).
    fading = np.exp(-steep[:, None] * bright)
    risen = 1.0 - fading
    low, high = np.full(n, -3.0), np.full(n, 2.0)
    for step in range(_STEPS + 1):
        middle = (low + high) / 2.0
        found = risen / (1.0 + fading * np.exp(steep * middle).astype(np.float32)[:, None])
        if straight.any():
            scale = np.exp(-middle[straight]).astype(np.float32)[:, None]
            found[straight] = np.minimum(bright[straight] * scale, 1.0)
        if step < _STEPS:
            large = np.einsum("np,np->n", found, found) > norms**2 * pixels
            low, high = np.where(large, middle, low), np.where(large, high, middle)
    found[found < _FAINT] = 0.0
    found *= BRIGHTEST
    if images.shape[1] > 1:
        # All channels of a pixel get the gain of the largest one, which keeps the hue.
        gain = found / np.maximum(bright, _LEAST_BRIGHT) / np.maximum(white, 1e-3)[:, None]
        return np.asarray(images * gain.reshape(n, 1, *images.shape[2:]), dtype=np.float32)
    return np.asarray(found.reshape(images.shape), dtype=np.float32)


_TURN, _STRETCH, _SHEAR, _SHIFT = 0.12, 0.07, 0.12, 0.025
"""Standard deviations at strength one: radians, logarithm, tangent, parts of a side."""

_WAVES = np.array([0.5, 0.5, 0.5, 0.35, 0.25])
_ELASTIC = np.outer(np.where(np.arange(5) > 0, _WAVES, 0.0), _WAVES) / 28.0
"""Standard deviations of the smooth shifts by their frequency along both sides, in parts of one."""


def warped(images: Floats32, strength: Floats, rng: np.random.Generator) -> Floats32:
    """Warp images (n, channels, height, width) by strength (n,).

    Outside a gray image is black; outside a colour image, of any ground, is the nearest pixel.
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
