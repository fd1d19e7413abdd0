"""Distances between coded tables, with finite-sample bounds for honest samples.

Distances are total variation distances between tables of shares: a column's codes, or its codes by
label. The distance of two samples is a function of independent rows, each of which moves it by at
most one over the size of its sample. It exceeds its mean by t with probability at most ``exp(-2 t^2
/ (1/n + 1/m))`` (McDiarmid 1989). The Gaussian noise of a measurement is bounded in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privacy.arrays import Codes, Floats
from storage.releases.manifest import GateRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedTable:
    """Codes (n, d) and labels (n,) of n rows."""

    codes: Codes
    label: Codes

    def __len__(self) -> int:
        return len(self.label)


def compared(
    check: str, *, distance: float, bound: float, unseen: tuple[str, ...] = ()
) -> GateRecord:
    """Return the record of a distance, which passes up to its bound."""
    return GateRecord(
        check=check,
        passed=bool(distance <= bound),
        distance=round(distance, 4),
        bound=round(bound, 4),
        unseen=unseen,
    )


def shares_by_label(table: CodedTable, *, n_codes: Sequence[int], n_labels: int) -> list[Floats]:
    """Return, for each column, the share of each (label, code): arrays of shape (C, w)."""
    label = table.label.astype(np.int64)
    return [
        np.bincount(label * width + table.codes[:, column], minlength=n_labels * width).reshape(
            n_labels, width
        )
        / len(table)
        for column, width in enumerate(n_codes)
    ]


def total_variation(first: Floats, second: Floats) -> float:
    """Return half the sum of absolute differences of two tables of shares."""
    return float(np.abs(first - second).sum() / 2.0)


def sampling_bound(shares: Floats, *, n_first: int, n_second: float, alarm: float) -> float:
    """Return a distance that samples exceed with probability ``alarm``; inf for known shares."""
    inverse = 1.0 / n_first + 1.0 / n_second
    # The mean of |a - b| is at most its standard deviation.
    mean = float(np.sqrt(_variances(shares) * inverse).sum() / 2.0)
    return mean + float(np.sqrt(inverse * np.log(1.0 / alarm) / 2.0))


def _variances(shares: Floats) -> Floats:
    """Return variances of indicators; a pooled share may round to slightly above one."""
    return np.asarray(np.maximum(shares * (1.0 - shares), 0.0))


def cell_bounds(shares: Floats, *, n_first: int, n_second: int, alarm: float) -> Floats:
    """Return differences of single shares; one is exceeded with probability at most ``alarm``.

    Empirical Bernstein bounds (Maurer and Pontil 2009), tighter for rare codes.
    """
    inverse = 1.0 / n_first + 1.0 / n_second
    tail = np.log(4.0 * shares.size / alarm)
    return np.sqrt(2.0 * tail * _variances(shares) * inverse) + 3.0 * tail * inverse


def noise_bound(n_cells: int, noise_stddev: float, *, alarm: float) -> float:
    """Return half the absolute sum of Gaussian noise, exceeded with probability ``alarm``.

    Mean ``n sqrt(2/pi) sigma`` and Lipschitz constant ``sqrt(n)`` (concentration of measure).
    """
    mean = n_cells * np.sqrt(2.0 / np.pi)
    return float(noise_stddev * (mean + np.sqrt(2.0 * n_cells * np.log(1.0 / alarm))) / 2.0)


def mean_bound(scores: Floats, *, n_first: int, alarm: float) -> tuple[float, float]:
    """Return the standard error of the difference of two means of scores, and its bound.

    Exceeded with probability at most ``alarm``, for any number of rows (Bernstein's inequality).
    """
    inverse = 1.0 / n_first + 1.0 / len(scores)
    error = float(np.sqrt(scores.var(ddof=1) * inverse)) if len(scores) > 1 else 0.0
    tail = np.log(2.0 / alarm)
    return error, float(np.sqrt(2.0 * tail) * error + np.ptp(scores) * tail * inverse / 3.0)


def association(by_label: Sequence[Floats]) -> list[Floats]:
    """Return joint shares less products of margins: zero for an independent label."""
    return [table - np.outer(table.sum(axis=1), table.sum(axis=0)) for table in by_label]


def association_scores(table: CodedTable, direction: Sequence[Floats]) -> Floats:
    """Return the association of each row's label with its columns along a public direction."""
    scores = np.zeros(len(table))
    for column, weights in enumerate(direction):
        scores += weights[table.label, table.codes[:, column]]
    return scores


def inner(first: Sequence[Floats], second: Sequence[Floats]) -> float:
    """Return the inner product of two lists of tables."""
    return float(sum((a * b).sum() for a, b in zip(first, second, strict=True)))
