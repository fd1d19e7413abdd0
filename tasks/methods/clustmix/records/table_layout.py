"""The measured columns of a table: their codes, and the number of rows of a patient as one more.

A row of a patient with m rows weighs 1 / m, so that measured shares are of patients. Where a
patient may have several rows, m is a hidden column, which leads the sampler back to rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Integers
from tasks.measurement.encoded import EncodingDomain

LABEL_COUNTS, PAIR_TABLES = "label_counts", "pair_tables"
"""Names of the first two draws."""

_SMOOTH_BINS = 3.0
"""Length scale, in bins, of the smooth prior of effects."""

_ROUGH = 0.35
"""Standard deviation of the independent effect of a bin, relative to the smooth part."""

MAX_VISITS = 8
"""Most levels of the hidden column; the last one stands for as many rows or more."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Public shape of what is measured: d columns, the hidden one last, and C labels.

    The hidden column has `n_visits` levels, 0 where every patient has one row.
    """

    n_codes: tuple[int, ...]
    numeric: tuple[bool, ...]
    has_missing: tuple[bool, ...]
    n_labels: int
    n_visits: int

    @classmethod
    def of(cls, domain: EncodingDomain) -> Layout:
        """Return the layout of a public domain."""
        n_visits = min(domain.rows_per_patient, MAX_VISITS) if domain.rows_per_patient > 1 else 0
        hidden = n_visits > 0
        return cls(
            n_codes=domain.n_codes + (n_visits,) * hidden,
            numeric=domain.numeric + (True,) * hidden,
            has_missing=domain.has_missing + (False,) * hidden,
            n_labels=domain.n_labels,
            n_visits=n_visits,
        )

    @property
    def n_columns(self) -> int:
        """Number d of measured columns."""
        return len(self.n_codes)

    @property
    def n_declared(self) -> int:
        """Number of declared columns: those that rows are made of."""
        return self.n_columns - (self.n_visits > 0)

    @cached_property
    def offsets(self) -> Integers:
        """Start of each column's block of codes, with the total W at the end."""
        return np.concatenate([[0], np.cumsum(self.n_codes)]).astype(np.int64)

    @property
    def width(self) -> int:
        """Total number W of codes."""
        return int(self.offsets[-1])

    @cached_property
    def sizes(self) -> Floats:
        """Number of codes of the column of each code, shape (W,)."""
        return np.repeat(np.asarray(self.n_codes, dtype=np.float64), self.n_codes)

    def block(self, column: int) -> slice:
        """Return the codes of a column."""
        return slice(int(self.offsets[column]), int(self.offsets[column + 1]))

    def prior_covariance(self, column: int) -> Floats:
        """Prior covariance of the effects of a column's codes, of shape (k, k)."""
        covariance = np.eye(self.n_codes[column])
        if self.numeric[column]:
            n_bins = len(covariance) - int(self.has_missing[column])
            place = np.arange(n_bins)
            smooth = np.exp(-0.5 * ((place[:, None] - place) / _SMOOTH_BINS) ** 2)
            covariance[:n_bins, :n_bins] = smooth + _ROUGH**2 * np.eye(n_bins)
        return covariance


def pair_cells(n_groups: Sequence[int], used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Measured cells (M, M) of joined codes, M = ``sum(n_groups)``: pairs above the diagonal."""
    column = np.repeat(np.arange(len(n_groups)), n_groups)
    upper = np.triu(used, 1)
    return np.asarray(upper[np.ix_(column, column)])
