"""The released label model: probabilities of the label given the features of a record.

It starts from the adapted support set and the naive-Bayes log-odds of the released histograms,
and is corrected by noisy residual moments, which are gradients of the likelihood of the private
rows at the released model. It labels the sampled records, so that a classifier trained on them
has about the loss of one trained on the real rows (the aim of "Adapt").
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.features import FeatureMap
from tasks.measurement.statistics import softmax

_MARGIN_OF_KRR = 0.5
"""Kernel ridge regression estimates p(y|x) - p(y); divided by the variance of the label it is a
log-odds up to a factor, which this shrinks because the largest scores overshoot."""

_TYPICAL_CURVATURE = 0.6
"""Mean of p(1 - p) over records, as a share of its value at the prior."""

_DAMPING = 0.15
"""Damping of a Newton step, as a share of the spectral norm of the noise of the gradient."""

_LEAST_DAMPING = 1e-9
"""Least damping, as a share of the largest curvature: one-hot features are collinear."""

_PRIOR_ITERATIONS = 500
"""Most fixed-point steps that match the label frequencies; timid logits need about ten."""

_PRIOR_TOLERANCE = 1e-9
"""Distance from the label frequencies at which the steps end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelModel:
    """Multinomial logistic model on the public features: weights (m, n_labels) and a log prior.

    The prior (n_labels,) is that of the released label frequencies.
    """

    weights: NDArray[np.float64]
    log_prior: NDArray[np.float64]

    def logits(self, codes: NDArray[np.uint16], feature_map: FeatureMap) -> NDArray[np.float64]:
        """Logits of encoded records without the intercept, shape (n, n_labels)."""
        return feature_map.phi(codes) @ self.weights


def start_model(
    krr: NDArray[np.float64],
    log_odds: NDArray[np.float64],
    feature_map: FeatureMap,
    *,
    prior: NDArray[np.float64],
    naive_bayes_weight: float,
) -> LabelModel:
    """Blend kernel ridge regression with the naive-Bayes log-odds of the histograms.

    The weights of the adapted support set are (m, n_labels), the log-odds (n_labels, one_hot_width)
    the log ratio of each code's probability given the label to its overall probability. They are
    used only where every code has its own raw feature, because else they are no linear function of
    the features; their weight is below one, because columns that say the same count once each.
    """
    weights = _MARGIN_OF_KRR * krr / (prior * (1.0 - prior))
    if feature_map.n_raw == log_odds.shape[1]:
        # phi = sqrt(skip) * onehot / sqrt(d) / |raw|, and |raw| = 1 for a one-hot row.
        gain = np.sqrt(len(feature_map.tables) / feature_map.hidden.skip_weight)
        weights[: feature_map.n_raw] += naive_bayes_weight * gain * log_odds.T
    return LabelModel(weights=weights, log_prior=np.log(prior))


def naive_bayes_log_odds(
    histograms: NDArray[np.float64],
    offsets: NDArray[np.int64],
    *,
    prior: NDArray[np.float64],
    noise_stddev: float,
) -> NDArray[np.float64]:
    """Log ratio of p(code | label) to p(code), shrunk to 0 by half a noise standard deviation.

    The noisy counts are of shape (n_labels, one_hot_width), as is the result; the last of the
    starts of each column's block is the width.
    """
    if histograms.shape[1] != int(offsets[-1]):
        raise ValueError(f"expected {int(offsets[-1])} codes, found {histograms.shape[1]}")
    pseudo = 0.5 * noise_stddev
    counts = np.maximum(histograms, 0.0)
    given = (counts + pseudo * prior[:, None]) / (counts.sum(axis=0) + pseudo)
    return np.asarray(np.log(given / prior[:, None]))


def correct(
    model: LabelModel,
    residual: NDArray[np.float64],
    second: NDArray[np.float64],
    *,
    noise_stddev: float,
) -> LabelModel:
    """One damped Newton step along a noisy residual moment.

    The residual (m, n_labels), taken at the model, is a noisy gradient, and (m, m) the noisy second
    moment of the features, both in patients; `noise_stddev` is of one entry of the residual.

    Privacy
    -------
    Post-processing of released statistics.
    """
    prior = np.exp(model.log_prior)
    n_labels = len(prior)
    # For two labels the gradients are opposite and half a step each makes a whole one.
    share = (n_labels - 1) / n_labels
    curvature = _TYPICAL_CURVATURE * prior * (1.0 - prior)
    values, vectors = np.linalg.eigh(second)
    damping = _DAMPING * noise_stddev * np.sqrt(len(second))
    scale = np.maximum(values, 0.0)[:, None] * curvature
    scale += max(damping, _LEAST_DAMPING * float(scale.max()))
    step = vectors @ ((vectors.T @ residual) / scale) * share
    return replace(model, weights=model.weights + step)


def label_probabilities(
    logits: NDArray[np.float64], prior: NDArray[np.float64], *, sharpness: float
) -> NDArray[np.float64]:
    """Label probabilities of sampled records whose mean is the released label frequency.

    Logits (n, n_labels) are ``phi @ weights`` of the sampled records. They are multiplied by the
    sharpness, above 0: noise makes the corrections timid on wide tables; labels drawn from a timid
    model are noisier than real ones.
    """
    intercept = np.log(prior)
    for _ in range(_PRIOR_ITERATIONS):
        mean = softmax(sharpness * logits + intercept).mean(axis=0)
        if np.abs(mean - prior).max() < _PRIOR_TOLERANCE:
            break
        intercept = intercept + np.log(prior / np.maximum(mean, 1e-12))
    return softmax(sharpness * logits + intercept)
