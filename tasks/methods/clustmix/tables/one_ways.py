"""One-way shares from noisy ones: the posterior mode under a prior that is smooth along bins.

Log shares have a Gaussian prior with mean zero: smooth along bins, free for levels and the missing
code, and of a scale that each column learns from its noisy shares by expectation-maximisation. With
many patients the mode is the released shares, projected onto the simplex. With few, bins borrow
strength from their neighbours, and no code is empty because of noise alone. Post-processing.

Source: Rasmussen and Williams 2006, sections 3.4 and 3.5, with the likelihood of Gaussian noise on
the shares; the scales as in MacKay 1992.
"""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from privacy.arrays import Floats
from tasks.measurement.centred import blocks_to_simplex
from tasks.methods.clustmix.records.table_layout import Layout

_VARIANCE, _MOST_VARIANCE = 2.0, 25.0
_PSEUDO_COUNT, _POOLED_COUNT = 3.0, 20.0
_ROUNDS, _NEWTON_STEPS, _TOLERANCE = 20, 20, 1e-5
_LONGEST_STEP = 3.0


def smooth_shares(layout: Layout, noisy: Floats, *, stddev: Floats) -> Floats:
    """Return the shares (W,) of highest posterior density.

    The noise of the shares (W,) has a standard deviation for each column (d,), and is centred in
    each block, so that every block sums to one.
    """
    floor = 0.5 * np.repeat(stddev, layout.n_codes)
    start = np.log(blocks_to_simplex(noisy, layout.offsets) + floor)
    kinds: dict[tuple[int, bool, bool], list[int]] = {}
    for column, kind in enumerate(
        zip(layout.n_codes, layout.numeric, layout.has_missing, strict=True)
    ):
        kinds.setdefault(kind, []).append(column)
    groups = [
        _Columns(layout, columns, noisy=noisy, stddev=stddev, start=start)
        for columns in kinds.values()
    ]
    scale = _VARIANCE
    for _ in range(_ROUNDS):
        squares = [group.improve() for group in groups]
        total = sum(float(part.sum()) for part in squares) + _POOLED_COUNT * _VARIANCE
        scale = total / (layout.width + _POOLED_COUNT)
        for group, part in zip(groups, squares, strict=True):
            group.rescale(part, scale)
    result = np.empty(layout.width)
    for group in groups:
        result[group.place] = softmax(group.logits, axis=1)
    return result


class _Columns:
    """Columns with equal codes, together: logits (m, k) and prior variances (m,)."""

    def __init__(
        self, layout: Layout, columns: list[int], *, noisy: Floats, stddev: Floats, start: Floats
    ) -> None:
        n_codes = layout.n_codes[columns[0]]
        self.place = layout.offsets[columns][:, None] + np.arange(n_codes)
        self.logits = start[self.place] - start[self.place].mean(axis=1, keepdims=True)
        self._noisy, self._noise = noisy[self.place], stddev[columns] ** 2
        self._precision = np.linalg.inv(layout.prior_covariance(columns[0]))
        self._variances = np.full(len(columns), _VARIANCE)

    def improve(self) -> Floats:
        """Go to the mode by Levenberg steps; return the expected squares under the prior (m,)."""
        precision = self._precision / self._variances[:, None, None]
        damping = np.full(len(self.logits), 1e-3)
        loss = self._loss(self.logits, precision)
        for _ in range(_NEWTON_STEPS):
            curvature, gradient = self._local(precision)
            diagonal = np.einsum("mkk->mk", curvature)
            damped = curvature + (damping[:, None] * diagonal)[:, None] * np.eye(len(precision[0]))
            step = np.linalg.solve(damped, gradient[..., None])[..., 0]
            step *= np.minimum(1.0, _LONGEST_STEP / (np.abs(step).max(axis=1) + 1e-12))[:, None]
            tried = self._loss(self.logits + step, precision)
            better = tried <= loss
            self.logits[better] += step[better]
            moved = np.where(better, loss - tried, np.inf)
            loss = np.where(better, tried, loss)
            damping = np.where(better, 0.2 * damping, 10.0 * damping + 1e-3)
            if (moved < _TOLERANCE * (1.0 + loss)).all():
                break
        covariance = np.linalg.inv(self._local(precision)[0])
        squares = np.einsum("mk,kl,ml->m", self.logits, self._precision, self.logits)
        return np.asarray(squares + np.einsum("mkl,lk->m", covariance, self._precision))

    def rescale(self, squares: Floats, scale: float) -> None:
        """Set the prior variances from expected squares, shrunk toward a common scale."""
        n_codes = self.logits.shape[1]
        found = (squares + _PSEUDO_COUNT * scale) / (n_codes + _PSEUDO_COUNT)
        self._variances = np.minimum(found, _MOST_VARIANCE)

    def _local(self, precision: Floats) -> tuple[Floats, Floats]:
        shares = softmax(self.logits, axis=1)
        slope = np.einsum("mk,kl->mkl", shares, np.eye(shares.shape[1]))
        slope -= shares[:, :, None] * shares[:, None, :]
        curvature = slope @ slope / self._noise[:, None, None] + precision
        left = np.einsum("mkl,ml->mk", slope, self._noisy - shares) / self._noise[:, None]
        return curvature, left - np.einsum("mkl,ml->mk", precision, self.logits)

    def _loss(self, logits: Floats, precision: Floats) -> Floats:
        left = ((self._noisy - softmax(logits, axis=1)) ** 2).sum(axis=1) / self._noise
        return np.asarray(left + np.einsum("mk,mkl,ml->m", logits, precision, logits)) / 2.0
