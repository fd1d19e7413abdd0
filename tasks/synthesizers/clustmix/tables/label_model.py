"""The released label model: the posterior mode of a multinomial logistic model, by Gauss-Newton.

Everything known of the label is a noisy sum over the patients, ``sum h phi (e_y - p_t)``, with
features phi, a row weight h and a model p_t that were public when it was drawn. A model p predicts
it on N rows of the released mixture as ``(n / N) sum h phi (p - p_t)``, with the variance of the
noise and of the sampling of patients. The mode of the posterior under a Gaussian prior is found by
Gauss-Newton steps with backtracking; the prior's scale of each column by expectation-maximisation.

Labels are handled in C - 1 orthonormal contrasts. The curvature leaves out what two contrasts have
to do with each other, the gradient does not. Post-processing of released values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from tasks.measurement.statistics import softmax

Array = NDArray[np.float64]
_Array32 = NDArray[np.float32]

_INTERCEPT_VARIANCE = 4.0
_PSEUDO_COUNT, _POOLED_COUNT = 3.0, 20.0
_BACKTRACKS, _LONGEST_STEP, _SMALL_STEP = 6, 3.0, 0.03


@dataclass(frozen=True, kw_only=True)
class Sums:
    """One released set of sums by contrast (1 + q, C - 1); the first feature is one.

    The loudness (1 + q,) is the factor of each feature in them; the noise is a variance (1 + q,),
    or a covariance. Rows of the mixture's sample have weights h (N,) and the probabilities p_t (N,
    C) of the model that the sums were drawn at.
    """

    values: Array
    loudness: Array
    noise: Array
    row_weights: _Array32
    probabilities: _Array32


@dataclass(frozen=True, kw_only=True)
class LabelModel:
    """Coefficients (1 + q, C - 1) of the contrasts, with what is known of them.

    Variances are posterior ones; scales (d,) are the prior variance of each column.
    """

    coefficients: Array
    variances: Array
    scales: Array


def contrasts(n_labels: int) -> Array:
    """Return an orthonormal basis of the vectors that sum to zero, of shape (C, C - 1)."""
    return np.asarray(helmert(n_labels).T)


def start_model(
    labels: Array, prior: Array, column: NDArray[np.int64], *, scale: float
) -> LabelModel:
    """Return the model that knows the shares of the labels (C,), above 0, alone.

    The prior (q,) is the variance of each feature at unit scale of its column, `scale` the prior
    standard deviation of the log-odds of two labels.
    """
    basis = contrasts(len(labels))
    coefficients = np.zeros((1 + len(prior), basis.shape[1]))
    coefficients[0] = np.log(labels) @ basis
    # The log-odds of two labels are sqrt(2) times a contrast.
    scales = np.full(int(column.max()) + 1, scale**2 / 2.0)
    variances = np.concatenate([[_INTERCEPT_VARIANCE], scales[column] * prior])
    return LabelModel(
        coefficients=coefficients,
        variances=np.repeat(variances[:, None], basis.shape[1], axis=1),
        scales=scales,
    )


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Everything that a fit reads, beside the released sums.

    The design (N, 1 + q) has ones and features of rows of the mixture; prior and column are those
    of `start_model`. Intercepts (C - 1,) are prior means; scales of columns are drawn to the prior
    variance `reference`.
    """

    design: _Array32
    patients: float
    sums: tuple[Sums, ...]
    prior: Array
    column: NDArray[np.int64]
    intercepts: Array
    reference: float

    @property
    def row_scale(self) -> float:
        """Patients for each row of the sample."""
        return self.patients / len(self.design)

    def with_sums(self, more: Sums) -> Posterior:
        """Return the same with one released set more."""
        return replace(self, sums=(*self.sums, more))


def probabilities(design: _Array32, coefficients: Array) -> Array:
    """Label probabilities of rows, float64 of shape (N, C)."""
    basis = contrasts(coefficients.shape[1] + 1)
    scores = (design @ coefficients.astype(np.float32)).astype(np.float64)
    return softmax(scores @ basis.T)


def fit(posterior: Posterior, model: LabelModel, *, steps: int) -> LabelModel:
    """Go from a model to the mode of the posterior, by at most so many Gauss-Newton steps."""
    found, place = _Newton(posterior), model
    current = found.at(model.coefficients)
    for step in range(steps):
        precision = _prior_precision(posterior, place.scales)
        gradient, curvature, noise = found.local(place.coefficients, current, precision)
        inverses = np.stack([np.linalg.inv(block) for block in curvature])
        direction = np.einsum("cij,jc->ic", inverses, gradient)
        length = min(1.0, _LONGEST_STEP / max(float(np.abs(direction).max()), 1e-12))
        before = found.loss(place.coefficients, current, noise, precision)
        moved = 0.0
        for _ in range(_BACKTRACKS):
            tried = place.coefficients + length * direction
            seen = found.at(tried)
            if found.loss(tried, seen, noise, precision) <= before:
                place, current = replace(place, coefficients=tried), seen
                moved = float(np.abs(length * direction).max())
                break
            length *= 0.4
        variances = np.stack([np.diagonal(inverse) for inverse in inverses], axis=1)
        scales = _scales(posterior, place.coefficients, variances)
        place = replace(place, variances=variances, scales=scales)
        if moved < _SMALL_STEP and step > 1:
            break
    return place


def evidence(posterior: Posterior, model: LabelModel) -> float:
    """Log of how likely the released sums are, all coefficients together, at a mode of `fit`.

    Laplace's approximation, but for a constant.
    """
    found = _Newton(posterior)
    precision = _prior_precision(posterior, model.scales)
    current = found.at(model.coefficients)
    _, curvature, noise = found.local(model.coefficients, current, precision)
    total = found.loss(model.coefficients, current, noise, precision)
    total += sum(float(np.linalg.slogdet(block)[1]) for block in curvature)
    total -= len(curvature) * float(np.log(precision).sum())
    for inverse in (one for of_sums in noise for one in of_sums):
        diagonal = inverse.ndim == 1
        total -= float(np.log(inverse).sum() if diagonal else np.linalg.slogdet(inverse)[1])
    return -total / 2.0


def _prior_precision(posterior: Posterior, scales: Array) -> Array:
    variances = scales[posterior.column] * posterior.prior
    return np.concatenate([[1.0 / _INTERCEPT_VARIANCE], 1.0 / variances])


def _scales(posterior: Posterior, coefficients: Array, variances: Array) -> Array:
    """Expectation-maximisation of each column's prior variance, drawn to a common one."""
    n_contrasts = coefficients.shape[1]
    squares = (coefficients[1:] ** 2 + variances[1:]).sum(axis=1) / posterior.prior
    n_columns = int(posterior.column.max()) + 1
    total = np.bincount(posterior.column, weights=squares, minlength=n_columns)
    size = np.bincount(posterior.column, minlength=n_columns) * n_contrasts
    common = total.sum() + _POOLED_COUNT * posterior.reference
    common = max(common / (size.sum() + _POOLED_COUNT), 1e-4 / 2.0)
    return np.asarray((total + _PSEUDO_COUNT * common) / (size + _PSEUDO_COUNT))


class _Newton:
    """Residuals, their variance and derivatives at coefficients."""

    def __init__(self, posterior: Posterior) -> None:
        self._posterior = posterior
        self._basis = contrasts(posterior.sums[0].probabilities.shape[1])

    def at(self, coefficients: Array) -> tuple[_Array32, list[Array]]:
        """Probabilities of the rows, and what the released sums leave unexplained."""
        posterior = self._posterior
        found = probabilities(posterior.design, coefficients).astype(np.float32)
        left = []
        for sums in posterior.sums:
            moved = (found - sums.probabilities) @ self._basis.astype(np.float32)
            moved *= (posterior.row_scale * sums.row_weights)[:, None]
            predicted = posterior.design.T @ moved.astype(np.float32)
            left.append(sums.values - sums.loudness[:, None] * predicted.astype(np.float64))
        return found, left

    def local(
        self, coefficients: Array, current: tuple[_Array32, list[Array]], precision: Array
    ) -> tuple[Array, Array, list[list[Array]]]:
        """Gradient, curvature by contrast, and inverse variances of the residuals."""
        posterior, (found, left) = self._posterior, current
        design, scale = posterior.design, posterior.row_scale
        contrast = found @ self._basis.astype(np.float32)
        n_contrasts = contrast.shape[1]
        offset = coefficients.copy()
        offset[0] -= posterior.intercepts
        gradient = -precision[:, None] * offset
        curvature = np.stack([np.diag(precision) for _ in range(n_contrasts)])
        squares = design * design
        all_noise = []
        for sums, residual in zip(posterior.sums, left, strict=True):
            weighted, noise = [], []
            for c in range(n_contrasts):
                variance = (found * self._basis[:, c].astype(np.float32) ** 2).sum(axis=1)
                variance -= contrast[:, c] ** 2
                row = sums.row_weights * variance
                sampled = scale * (squares.T @ (sums.row_weights * row)).astype(np.float64)
                inverse = _inverse_noise(sums.noise, sums.loudness**2 * sampled)
                derivative = scale * (design.T @ (design * row[:, None])).astype(np.float64)
                derivative *= sums.loudness[:, None]
                whitened = _times(inverse, derivative)
                curvature[c] += derivative.T @ whitened
                weighted.append(_times(inverse, residual[:, c : c + 1])[:, 0] * sums.loudness)
                noise.append(inverse)
            # The gradient with all contrasts: rows pull by their own covariance of contrasts.
            pull = design @ np.stack(weighted, axis=1).astype(np.float32)
            pull *= (scale * sums.row_weights)[:, None]
            full = pull @ self._basis.T.astype(np.float32)
            full = found * (full - (found * full).sum(axis=1, keepdims=True))
            gradient += (design.T @ (full @ self._basis.astype(np.float32))).astype(np.float64)
            all_noise.append(noise)
        return gradient, curvature, all_noise

    def loss(
        self,
        coefficients: Array,
        current: tuple[_Array32, list[Array]],
        noise: list[list[Array]],
        precision: Array,
    ) -> float:
        """Squared residuals in their variances, and the prior."""
        offset = coefficients.copy()
        offset[0] -= self._posterior.intercepts
        total = float((precision[:, None] * offset**2).sum())
        for residual, inverses in zip(current[1], noise, strict=True):
            for c, inverse in enumerate(inverses):
                part = residual[:, c : c + 1]
                total += float((part * _times(inverse, part)).sum())
        return total


def _inverse_noise(noise: Array, sampling: Array) -> Array:
    if noise.ndim == 1:
        return np.asarray(1.0 / (noise + sampling + 1e-6))
    return np.asarray(np.linalg.inv(noise + np.diag(sampling + 1e-6)), dtype=np.float64)


def _times(inverse: Array, values: Array) -> Array:
    return inverse[:, None] * values if inverse.ndim == 1 else inverse @ values
