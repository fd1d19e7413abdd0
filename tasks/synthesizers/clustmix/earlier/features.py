"""The public features that labels of earlier measurements are drawn by.

An exact linear part, and random features of the tangent kernel of one hidden ReLU layer, from a
public seed; every record has norm one.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.synthesizer import PUBLIC_SEED

_ONE_HOT_WIDTH_LIMIT = 400
"""Widest one-hot row for which every code has a feature; wider tables have ordinal scores."""

_SHRINK = 1.0 - 2.0**-36


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFeatures:
    """Raw features of each code, by column (n_codes, width), and their random products."""

    tables: tuple[Floats, ...]
    products: tuple[Floats, ...]
    skip_weight: float

    @classmethod
    def of(
        cls,
        domain: EncodingDomain,
        *,
        n_random: int,
        skip_weight: float,
        kind: Literal["auto", "one_hot", "ordinal"],
    ) -> "EarlierFeatures":
        """Return the features of a domain under the settings of a measurement."""
        if kind == "auto":
            kind = "one_hot" if domain.one_hot_width <= _ONE_HOT_WIDTH_LIMIT else "ordinal"
        plain = [
            _scores(n_codes, has_missing=missing)
            if kind == "ordinal" and numeric
            else np.eye(n_codes)
            for n_codes, missing, numeric in zip(
                domain.n_codes, domain.has_missing, domain.numeric, strict=True
            )
        ]
        tables = tuple(table * (1.0 / np.sqrt(len(plain))) for table in plain)
        ends = np.cumsum([table.shape[1] for table in tables])
        rng = np.random.default_rng(PUBLIC_SEED)
        gates, directions = (rng.standard_normal((n_random // 2, ends[-1])) for _ in range(2))
        lines = np.split(np.concatenate([gates, directions]).T, ends[:-1])
        products = tuple(table @ line for table, line in zip(tables, lines, strict=True))
        return cls(tables=tables, products=products, skip_weight=skip_weight)

    @property
    def offsets(self) -> Integers:
        """Start of each column's block of raw features, with the total at the end."""
        return np.cumsum([0] + [table.shape[1] for table in self.tables])

    def phi(self, codes: Codes) -> Floats:
        """Features (n, m) of encoded records (n, d)."""
        raw = np.empty((len(codes), self.offsets[-1]))
        for column, table in enumerate(self.tables):
            raw[:, self.offsets[column] : self.offsets[column + 1]] = table[codes[:, column]]
        total = np.zeros((len(codes), self.products[0].shape[1]))
        for column, product in enumerate(self.products):
            total += product[codes[:, column]]
        drive, directed = np.split(total, 2, axis=1)
        gated = np.where(drive > 0.0, directed, 0.0)
        hidden = _unit_rows(np.concatenate([np.maximum(drive, 0.0), gated], axis=1))
        skip = self.skip_weight
        return np.asarray(
            _SHRINK
            * np.concatenate(
                [np.sqrt(skip) * _unit_rows(raw), np.sqrt(1.0 - skip) * hidden], axis=1
            )
        )


def _scores(n_codes: int, *, has_missing: bool) -> Floats:
    """Centred place of a bin, and missingness where the column has it."""
    n_bins = n_codes - int(has_missing)
    score = (2.0 * np.arange(n_bins) + 1.0) / n_bins - 1.0
    if not has_missing:
        return score[:, None]
    table = np.zeros((n_codes, 2))
    table[:n_bins, 0] = score
    table[n_bins, 1] = 1.0
    return table


def _unit_rows(x: Floats) -> Floats:
    squares = np.sum(x * x, axis=1, keepdims=True)
    positive = squares > 0.0
    return np.asarray(np.where(positive, x / np.sqrt(np.where(positive, squares, 1.0)), 0.0))
