"""The public rule: every setting, from budget, patients, labels and size, before a row is read."""

from dataclasses import dataclass

import numpy as np

from tasks.methods.clustmix.images.image_layout import ImageLayout
from tasks.methods.clustmix.tables.table_rule import declared_patients

CELL_ROUNDS = 2
MOMENT_NORM = 0.85
"""Norm at which a record's distance from the mean of its label is cut off."""

NORM_BINS, INTENSITY_BINS = 24, 16
INDUCING_POINTS = 1_500
"""Released images that the features of the teacher are whitened on."""

_SIGNAL = np.log([370.0, 1600.0, 12_000.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """Constants of the rule, in place of settings.

    Shares are of ``mu**2``, that of cells for each round; the `rounds` of the teacher have the
    rest. Residuals are clipped to a norm, and `step` is along their mean. The first `flat` of the
    whitened `directions` get similar variances. `frequencies` are the density's. `temperatures` and
    `warps` are ranges of the spread of images around cells, and of warp strength.
    """

    class_sums: float
    class_moments: float
    cells: float
    norms: float
    intensity: float
    n_cells: int
    rounds: int
    residual_norm: float
    step: float
    directions: int
    flat: int
    frequencies: int
    warps: tuple[float, float]
    temperatures: tuple[float, float]

    @property
    def residuals(self) -> float:
        """Share of ``mu**2`` of each round of residuals."""
        others = self.class_sums + self.class_moments + CELL_ROUNDS * self.cells
        return (1.0 - others - self.norms - self.intensity) / self.rounds


def rule_of(
    layout: ImageLayout, *, patients: int | None, mu: float, variation: float = 1.0
) -> ImageRule:
    """Return the settings by ``mu`` times the patients of a label, and strength of warps."""
    signal = np.log(mu * declared_patients(patients) / layout.n_labels)

    def at(*values: float) -> float:
        return float(np.interp(signal, _SIGNAL, values))

    directions = round(at(300, 600, 1000))
    return ImageRule(
        class_sums=at(0.05, 0.04, 0.04),
        class_moments=at(0.15, 0.12, 0.4),
        cells=at(0.06, 0.07, 0.07),
        norms=0.01,
        intensity=0.01,
        n_cells=round(at(3, 8, 8)),
        rounds=round(at(20, 40, 50)),
        residual_norm=at(0.5, 0.35, 0.5),
        step=at(360, 1200, 3600),
        directions=directions,
        flat=directions // 6,
        frequencies=round(at(14, 14, 26)),
        warps=(0.0, 2.0 * variation),
        temperatures=(at(0.4, 0.4, 0.7), at(1.0, 1.0, 1.2)),
    )
