"""The released label model: the posterior mode of a multinomial logistic model.

The data are noisy sums over the patients, ``sum h phi (e_y - p_t)``, with features phi, a row
weight h and a model p_t that were public when a sum was drawn. A model p predicts such a sum on N
rows of the released mixture as ``(n / N) sum h phi (p - p_t)``, with the variance of the noise and
of the sampling of patients. Conjugate gradients find the posterior mode under a Gaussian prior;
expectation-maximisation fits the prior's scale of each column.

Labels are coded by C - 1 orthonormal contrasts, best with the rarest label last: each is compared
with the mean of those before it. A contrast's prior variance is multiplied by the part that the
sums support (`carried_parts`): effects that noise may explain shrink to those of the labels before.

The Gauss-Newton curvature leaves out the terms between contrasts. It only preconditions the
gradient, which is complete. Post-processing of released values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag, helmert
from scipy.special import expit, logsumexp, softmax

from privacy.arrays import Floats, Floats32, Integers

_INTERCEPT_VARIANCE = 4.0
_PSEUDO_COUNT, _POOLED_COUNT = 3.0, 20.0
_DESCENTS, _BACKTRACKS, _LONGEST_STEP = 8, 6, 3.0
_NEAR_STEP, _SMALL_STEP = 0.1, 0.02
_PARTS, _STRONG = 0.25 ** np.arange(7.0), 20.0


@dataclass(frozen=True, kw_only=True)
class Sums:
    """One released set of sums (m, C - 1) by contrast, over a number of patients.

    The matrix `loudness` (m, 1 + q) maps the features, the first of which is one, to the summed
    quantities; `noise` is a covariance. On the sample of the mixture, `weights` (N,) are the row
    weights of the draw, and `drawn_at` (N, C) the probabilities of its model p_t.
    """

    values: Floats
    loudness: Floats
    noise: Floats
    drawn_at: Floats32
    weights: Floats32
    patients: float


@dataclass(frozen=True, kw_only=True)
class LabelModel:
    """Coefficients (1 + q, C - 1) of the contrasts, with their posterior variances and scales.

    Scales (d,) multiply the prior variances of a column's features; `reaches` those of a contrast.
    """

    coefficients: Floats
    variances: Floats
    scales: Floats


def contrasts(n_labels: int) -> Floats:
    """Return an orthonormal basis of the vectors that sum to zero, of shape (C, C - 1)."""
    return np.asarray(helmert(n_labels).T)


def reaches(labels: Floats, *, scale: float) -> Floats:
    """Prior variance of each contrast (C - 1,), relative to that of two equally frequent labels.

    Labels (C,) are shares, the most frequent first. Features must add ``log((1 - a) / a)`` to the
    log-odds of a label of share a to make it as likely as not. The prior standard deviation of a
    record's log-odds is at least as large; it is `scale` for two equally frequent labels. The
    log-odds of label j to the mean of the j before it are ``sqrt((j + 1) / j)`` times the contrast.
    """
    rare, before = labels[1:], np.arange(1.0, len(labels))
    wider = np.maximum(1.0, np.log((1.0 - rare) / rare) / scale)
    return np.asarray(wider**2 * 2.0 * before / (before + 1.0))


def start_model(
    labels: Floats, prior: Floats, column: Integers, *, scale: float, reach: Floats
) -> LabelModel:
    """Return the model that predicts the shares of the labels (C,), above 0, for every record.

    The prior (q,) is the variance of each feature at unit scale of its column, `scale` the prior
    standard deviation of the log-odds of two labels, and `reach` the result of `reaches`.
    """
    basis = contrasts(len(labels))
    coefficients = np.zeros((1 + len(prior), basis.shape[1]))
    coefficients[0] = np.log(labels) @ basis
    # The log-odds of two labels are sqrt(2) times a contrast.
    scales = np.full(int(column.max()) + 1, scale**2 / 2.0)
    return LabelModel(
        coefficients=coefficients,
        variances=_prior_variances(scales[column] * prior, reach),
        scales=scales,
    )


def with_features(sums: Sums, more: int) -> Sums:
    """Extend sums by `more` features that they do not measure."""
    return replace(
        sums,
        values=np.pad(sums.values, ((0, more), (0, 0))),
        loudness=np.pad(sums.loudness, (0, more)),
        noise=block_diag(sums.noise, np.eye(more)),
    )


def grown(
    model: LabelModel, prior: Floats, group: Integers, *, scale: float, reach: Floats
) -> LabelModel:
    """Extend a model by features of this prior (q,), with coefficients of zero.

    Features of one group (q,), numbered from 0, share a scale, as those of a column do.
    """
    more = len(prior)
    variances = _prior_variances(scale**2 / 2.0 * prior, reach)[1:]
    return LabelModel(
        coefficients=np.pad(model.coefficients, ((0, more), (0, 0))),
        variances=np.concatenate([model.variances, variances]),
        scales=np.append(model.scales, np.full(int(group.max()) + 1, scale**2 / 2.0)),
    )


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The released sums, and everything else that a fit reads.

    The design (N, 1 + q) has ones and features of rows of the mixture; prior, column and reach are
    those of `start_model`. Means (1 + q, C - 1) are prior ones of the coefficients; scales of
    columns are shrunk toward the prior variance `reference`. The dispersion multiplies the sampling
    variance of the sums, since the rows are not the patients (quasi-likelihood; McCullagh 1983).
    """

    design: Floats32
    sums: tuple[Sums, ...]
    prior: Floats
    column: Integers
    reach: Floats
    means: Floats
    reference: float
    dispersion: float = 1.0

    def row_scale(self, sums: Sums) -> float:
        """Patients of the sums for each row of the sample."""
        return sums.patients / len(self.design)


def probabilities(design: Floats32, coefficients: Floats) -> Floats:
    """Label probabilities of rows, float64 of shape (N, C)."""
    basis = contrasts(coefficients.shape[1] + 1)
    scores = (design @ coefficients.astype(np.float32)).astype(np.float64)
    return np.asarray(softmax(scores @ basis.T, axis=1))


def fit(
    posterior: Posterior, model: LabelModel, *, steps: int, carried: Floats | float = 1.0
) -> tuple[LabelModel, float]:
    """Find the posterior mode from a starting model, in at most `steps` updates of the scales.

    The prior variance of each contrast's effects is multiplied by its `carried` part (C - 1,). The
    second result is the log evidence of the sums, up to a constant (Laplace's approximation).
    """
    found, place, moved = _Newton(posterior), model, np.inf
    for step in range(steps):
        if moved > _NEAR_STEP:
            information = found.information(found.at(place.coefficients))
        found.assume(place.scales, carried)
        inverses: Floats = np.asarray(np.linalg.inv(_with_diagonals(information, found.precision)))
        coefficients = _descend(found, place.coefficients, inverses=inverses)
        moved = float(np.abs(coefficients - place.coefficients).max())
        variances = np.diagonal(inverses, axis1=1, axis2=2).T
        offsets = (coefficients - found.means) / np.sqrt(carried)
        place = LabelModel(
            coefficients=coefficients,
            variances=variances,
            scales=_scales(posterior, offsets, variances / carried),
        )
        if moved < _SMALL_STEP and step > 1:
            break
    found.assume(place.scales, carried)
    total = found.loss(place.coefficients, found.at(place.coefficients))
    total += float(np.linalg.slogdet(_with_diagonals(information, found.precision))[1].sum())
    total -= float(np.log(found.precision).sum())
    total -= sum(float(np.linalg.slogdet(inverse)[1].sum()) for inverse in found.inverses)
    return place, -total / 2.0


def _descend(found: _Newton, start: Floats, *, inverses: Floats) -> Floats:
    """Minimise by conjugate gradients (Polak and Ribiere 1969), preconditioned by curvature."""
    place, current = start, found.at(start)
    before, last, direction = np.inf, np.zeros_like(start), np.zeros_like(start)
    for _ in range(_DESCENTS):
        loss, gradient = found.loss(place, current), found.gradient(place, current)
        step = np.einsum("cij,jc->ic", inverses, gradient)
        turned = max(0.0, float(((gradient - last) * step).sum()) / before)
        before, last = max(float((gradient * step).sum()), 1e-300), gradient
        direction = step + turned * direction
        length = min(1.0, _LONGEST_STEP / max(float(np.abs(direction).max()), 1e-12))
        for _ in range(_BACKTRACKS):
            tried = place + length * direction
            seen = found.at(tried)
            if found.loss(tried, seen) <= loss:
                break
            length *= 0.4
        else:
            break
        place, current = tried, seen
        if float(np.abs(length * direction).max()) < _SMALL_STEP:
            break
    return place


def _prior_variances(features: Floats, reach: Floats) -> Floats:
    """Prior variances (1 + q, C - 1) of the intercept and of features of these variances (q,)."""
    intercept = np.full((1, len(reach)), _INTERCEPT_VARIANCE)
    return np.concatenate([intercept, features[:, None] * reach])


def carried(posterior: Posterior, model: LabelModel) -> Floats:
    """Return `carried_parts` of the sums, linearised at a model, at a dispersion of one.

    A larger dispersion would explain true effects as sampling error.
    """
    found = _Newton(replace(posterior, dispersion=1.0))
    current = found.at(model.coefficients)
    information = found.information(current)
    pulled = found.pull(current) + np.einsum("cij,jc->ic", information, model.coefficients)
    found.assume(np.full_like(model.scales, posterior.reference), 1.0)
    how = {"means": found.means, "variances": 1.0 / found.precision}
    return carried_parts(information, pulled, posterior.column, **how)


def carried_parts(
    information: Floats, pulled: Floats, column: Integers, *, means: Floats, variances: Floats
) -> Floats:
    """Part (C - 1,) of its prior variance that the effects of each contrast keep, by the evidence.

    Near the mode the sums are a Gaussian likelihood of the coefficients of a contrast, with this
    information matrix (C - 1, m, m) and precision-weighted mean (m, C - 1). With part g the prior
    has g times the variances and root g times the means (m, C - 1); the first coefficient, the
    intercept, keeps its own and is integrated out (MacKay 1992, section 4). The result is a
    weighted mean of two values. The first is 1; its weight is the probability that there are
    effects, at prior odds of 1 to 20 (strong evidence; Kass and Raftery 1995), in all columns or in
    a single one, equally likely. The second is the posterior mean of g over powers of 1/4, with
    prior weights ``g**-0.25``, which prefer small parts where the sums have little information.
    """
    result = np.empty(len(information))
    for c, (matrix, pull) in enumerate(zip(information, pulled.T, strict=True)):
        first = matrix[0, 0] + 1.0 / variances[0, c]
        ahead = pull[0] + means[0, c] / variances[0, c]
        root = np.sqrt(variances[1:, c])
        inner = matrix[1:, 1:] - np.outer(matrix[1:, 0], matrix[1:, 0]) / first
        inner, own = root[:, None] * inner * root, pull[1:] - matrix[1:, 0] * (ahead / first)
        white = inner, root * own, means[1:, c] / root
        logs = _log_likelihoods(*white)
        places = [np.flatnonzero(column == one) for one in np.unique(column)]
        alone = [_log_likelihoods(inner[np.ix_(p, p)], *(v[p] for v in white[1:])) for p in places]
        any_one = logsumexp([one[0] for one in alone]) - np.log(len(alone))
        whole = expit(np.logaddexp(logs[0], any_one) - np.log(2.0 * _STRONG))
        likely = np.exp(logs - logs.max()) * _PARTS**-0.25
        result[c] = whole + (1.0 - whole) * (likely @ _PARTS) / likely.sum()
    return result


def _log_likelihoods(information: Floats, pulled: Floats, means: Floats) -> Floats:
    """Log likelihood ratio of each of `_PARTS` to a part of zero, at prior variances of one."""
    values, axes = np.linalg.eigh(information)
    values, data = np.maximum(values, 0.0)[:, None], (axes.T @ pulled)[:, None]
    centre = np.sqrt(_PARTS) * (axes.T @ means)[:, None]
    logs = _PARTS * (data - values * centre) ** 2 / (1.0 + _PARTS * values)
    logs += 2.0 * data * centre - values * centre**2 - np.log1p(_PARTS * values)
    return np.asarray(logs.sum(axis=0) / 2.0)


def _with_diagonals(matrices: Floats, values: Floats) -> Floats:
    """Matrices (c, m, m) with columns (m, c) added to their diagonals."""
    return np.asarray(matrices + values.T[:, :, None] * np.eye(len(values)))


def _scales(posterior: Posterior, offsets: Floats, variances: Floats) -> Floats:
    """Expectation-maximisation of each column's prior variance, shrunk toward a common one."""
    squares = (offsets[1:] ** 2 + variances[1:]) / posterior.reach
    squares = squares.sum(axis=1) / posterior.prior
    n_columns = int(posterior.column.max()) + 1
    total = np.bincount(posterior.column, weights=squares, minlength=n_columns)
    size = np.bincount(posterior.column, minlength=n_columns) * len(posterior.reach)
    common = total.sum() + _POOLED_COUNT * posterior.reference
    common = max(common / (size.sum() + _POOLED_COUNT), 1e-4 / 2.0)
    return np.asarray((total + _PSEUDO_COUNT * common) / (size + _PSEUDO_COUNT))


_Seen = tuple[Floats32, list[Floats]]
"""Probabilities of the rows, and residuals of the released sums."""


class _Newton:
    """Residuals and derivatives of the log posterior density at coefficients.

    `information` sets the inverse covariances of the sums; `assume` sets prior precision and means.
    """

    inverses: list[Floats]
    precision: Floats
    means: Floats

    def __init__(self, posterior: Posterior) -> None:
        self._posterior = posterior
        self._basis = contrasts(posterior.sums[0].values.shape[1] + 1)

    def assume(self, scales: Floats, carried: Floats | float) -> None:
        """Set the prior by the scales (d,) of the columns and the `carried` parts (C - 1,)."""
        posterior = self._posterior
        variances = scales[posterior.column] * posterior.prior
        self.precision = 1.0 / _prior_variances(variances, posterior.reach * carried)
        self.means = posterior.means * np.sqrt(carried)
        self.means[0] = posterior.means[0]

    def at(self, coefficients: Floats) -> _Seen:
        """Probabilities and residuals at coefficients."""
        posterior = self._posterior
        found = probabilities(posterior.design, coefficients).astype(np.float32)
        left = []
        for sums in posterior.sums:
            moved = (found - sums.drawn_at) @ self._basis.astype(np.float32)
            moved *= (posterior.row_scale(sums) * sums.weights)[:, None]
            predicted = posterior.design.T @ moved.astype(np.float32)
            left.append(sums.values - sums.loudness @ predicted.astype(np.float64))
        return found, left

    def information(self, current: _Seen) -> Floats:
        """Return the curvature of the sums by contrast; set their inverse covariances."""
        design = self._posterior.design
        basis = self._basis.astype(np.float32)
        variance = np.maximum(current[0] @ basis**2 - (current[0] @ basis) ** 2, 0.0)
        total = np.zeros((basis.shape[1], design.shape[1], design.shape[1]))
        squares = design * design
        self.inverses = []
        for sums in self._posterior.sums:
            inverse = np.empty((basis.shape[1], *sums.noise.shape))
            rows, scale = sums.weights[:, None] * variance, self._posterior.row_scale(sums)
            sampled = scale * (squares.T @ (sums.weights[:, None] * rows)).astype(np.float64)
            sampled *= self._posterior.dispersion
            sampled = sums.loudness**2 @ sampled + 1e-6
            for c in range(basis.shape[1]):
                inverse[c] = np.linalg.inv(sums.noise + np.diag(sampled[:, c]))
                # A matrix times its own transpose takes half as long.
                root = design * np.sqrt(rows[:, c])[:, None]
                derivative = scale * sums.loudness @ (root.T @ root).astype(np.float64)
                total[c] += derivative.T @ inverse[c] @ derivative
            self.inverses.append(inverse)
        return total

    def gradient(self, coefficients: Floats, current: _Seen) -> Floats:
        """Gradient of the log posterior density."""
        return self.pull(current) - self.precision * (coefficients - self.means)

    def pull(self, current: _Seen) -> Floats:
        """Gradient of the log likelihood of the sums, with the terms between contrasts."""
        design, (found, left) = self._posterior.design, current
        total = np.zeros((design.shape[1], self._basis.shape[1]))
        for sums, inverses, missed in zip(self._posterior.sums, self.inverses, left, strict=True):
            weighted = sums.loudness.T @ np.einsum("cij,jc->ic", inverses, missed)
            pull = design @ weighted.astype(np.float32)
            pull *= (self._posterior.row_scale(sums) * sums.weights)[:, None]
            full = pull @ self._basis.T.astype(np.float32)
            full = found * (full - (found * full).sum(axis=1, keepdims=True))
            total += (design.T @ (full @ self._basis.astype(np.float32))).astype(np.float64)
        return total

    def loss(self, coefficients: Floats, current: _Seen) -> float:
        """Squared residuals over their variances, and the squared distance from the prior."""
        total = float((self.precision * (coefficients - self.means) ** 2).sum())
        for residual, inverses in zip(current[1], self.inverses, strict=True):
            total += float((residual * np.einsum("cij,jc->ic", inverses, residual)).sum())
        return total
