"""Features of the label model: white directions of each column, and their loudness in a draw.

The effect of a column on the label is a function of its code with a Gaussian prior: smooth along
bins, independent for levels and the missing code. In coordinates in which the released shares are
white, the eigenvectors of that prior are the features. A released gradient has equal noise in all
of them, so each is multiplied by its loudness before the draw (reverse water-filling): the more
uncertain a coefficient, the louder its feature, and 0 if noise would hide it. With many patients
this measures every code; with few, only the slope along the bins. Post-processing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Floats32, Integers
from tasks.methods.clustmix.records.table_layout import Layout

_WATER_STEPS = 60


@dataclass(frozen=True, kw_only=True)
class LabelFeatures:
    """White features of every declared column.

    Tables (k_j, k_j - 1) hold the features of each code: mean zero and variance one under the
    released shares. The prior (q,) is the variance of each feature's coefficient at unit scale,
    largest first in a column; `column` (q,) is the column of each feature. Weighted by `rarity`
    (q,), features add up to the centred sum of ``-log`` of the shares of a record's codes.
    """

    tables: tuple[Floats, ...]
    prior: Floats
    column: Integers
    rarity: Floats

    @property
    def n_features(self) -> int:
        """Number q of features."""
        return len(self.prior)

    def only(self, chosen: NDArray[np.bool_]) -> LabelFeatures:
        """Return the features of a mask of shape (q,) alone."""
        return LabelFeatures(
            tables=tuple(table[:, part] for table, part in self._with(chosen)),
            prior=self.prior[chosen],
            column=self.column[chosen],
            rarity=self.rarity[chosen],
        )

    def design(self, codes: Integers) -> Floats32:
        """Return one and the features of records, float32 of shape (n, 1 + q)."""
        each = zip(self.tables, codes.T[: len(self.tables)], strict=True)
        found = [table.astype(np.float32)[own] for table, own in each]
        return np.column_stack([np.ones(len(codes), dtype=np.float32), *found])

    def scaled(self, loudness: Floats) -> tuple[Floats, ...]:
        """Return the tables with every feature times its loudness, shape (q,)."""
        return tuple(table * part for table, part in self._with(loudness))

    def by_code(self, coefficients: Floats) -> Floats:
        """Turn coefficients (q, c) of the features into contributions (W, c) of the codes."""
        return np.concatenate([table @ part for table, part in self._with(coefficients)])

    def of_counts(self, counts: Floats) -> Floats:
        """Return sums of the features, shape (q, c), from numbers of codes, shape (W, c)."""
        return np.concatenate([table.T @ part for table, part in self._with(counts, axis=0)])

    def _with(self, values: NDArray[Any], axis: int = 1) -> Iterable[tuple[Floats, NDArray[Any]]]:
        ends = np.cumsum([table.shape[axis] for table in self.tables])[:-1]
        return zip(self.tables, np.split(values, ends), strict=True)


def white_features(layout: Layout, shares: Floats, *, floor: float) -> LabelFeatures:
    """Make the features of released one-way shares (W,); the hidden column has none.

    The floor, about the noise of a share, is added to each share: no code then counts as rarer.
    """
    tables, priors, columns, rarities = [], [], [], []
    for column in range(layout.n_declared):
        block = shares[layout.block(column)] + floor
        block = block / block.sum()
        prior = layout.prior_covariance(column)
        values, vectors = np.linalg.eigh(np.diag(block) - np.outer(block, block))
        # One direction, that of the constant, has no variance.
        values, vectors = values[1:], vectors[:, 1:]
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        strength, directions = np.linalg.eigh(root @ prior @ root)
        order = np.argsort(-strength, kind="stable")[: len(block) - 1]
        white = inverse @ directions[:, order]
        tables.append(white - block @ white)
        priors.append(np.maximum(strength[order], 1e-9))
        columns.append(np.full(len(order), column))
        rarities.append(tables[-1].T @ (-np.log(block) * block))
    return LabelFeatures(
        tables=tuple(tables),
        prior=np.concatenate(priors),
        column=np.concatenate(columns),
        rarity=np.concatenate(rarities),
    )


def loudness_of(variances: Floats, *, information: float) -> Floats:
    """Return the loudness (q,) that minimises the sum of the posterior variances of coefficients.

    Measured at loudness c, a coefficient of variance v keeps ``1 / (1 / v + c^2 information)``. The
    least sum under ``sum c^2 = 1`` is at ``c^2 = max(0, level - 1 / (v information))`` (Cover and
    Thomas 2006, section 10.3.3). Prior variances (q,) are above 0; `information` is the precision
    of a coefficient at loudness one.
    """
    needed = 1.0 / np.maximum(variances * information, 1e-300)
    low, high = float(needed.min()), float(needed.min()) + 1.0
    for _ in range(_WATER_STEPS):
        level = (low + high) / 2.0
        low, high = (low, level) if np.maximum(level - needed, 0.0).sum() > 1.0 else (level, high)
    power = np.maximum(high - needed, 0.0)
    return np.asarray(np.sqrt(power / power.sum()))
