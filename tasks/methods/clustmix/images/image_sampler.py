"""Images of the released density, and labels of the released teacher.

Post-processing. What a matrix product rounds is rounded by one thread, so that the same measurement
gives the same images on a machine with more processors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats32, Integers
from tasks.methods.clustmix.images.coefficients import Basis
from tasks.methods.clustmix.images.density import Density
from tasks.methods.clustmix.images.image_layout import ImageLayout
from tasks.methods.clustmix.images.tone import Tone
from tasks.methods.clustmix.images.variation import warped

_IMAGES_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSampler:
    """Released density and tone; `temperatures` and `warps` are those of `ImageRule`."""

    layout: ImageLayout
    density: Density
    tone: Tone
    temperatures: tuple[float, float]
    warps: tuple[float, float]

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[Codes]:
        """Yield codes (at most 500, columns) of so many images."""
        for start in range(0, n, _IMAGES_AT_ONCE):
            yield self.labelled(min(_IMAGES_AT_ONCE, n - start), rng)[0]

    def labelled(self, n: int, rng: np.random.Generator) -> tuple[Codes, Integers]:
        """Return codes (n, columns) of a few images, and the labels (n,) of their cells."""
        with threadpool_limits(1, user_api="blas"):
            images, label = drawn(self.density, self.layout, n, rng, temperatures=self.temperatures)
            if self.warps[1] > 0.0:
                images = warped(images, rng.uniform(*self.warps, size=n), rng)
            return self.layout.codes(self.tone.applied(images, label, rng)), label


def drawn(
    density: Density,
    layout: ImageLayout,
    n: int,
    rng: np.random.Generator,
    *,
    temperatures: tuple[float, float],
) -> tuple[Floats32, Integers]:
    """Draw images (n, channels, height, width) of no scale yet, and their cells' labels (n,)."""
    vectors, label = density.sample(n, rng, temperatures=temperatures)
    shape = (layout.channels, layout.height, layout.width)
    return Basis.of(layout).to_images(vectors, shape=shape), label
