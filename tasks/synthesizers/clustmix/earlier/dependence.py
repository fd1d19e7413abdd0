"""Dependence between columns, from the released second moments. Post-processing.

A mixture of products has too little dependence when budget allows few cells. The second moments
A of the features hold all pairwise dependence; what the mixture leaves unexplained is fitted by a
few latent factors (factor analysis with known blocks), and the factors tilt each column's
probabilities so that the marginals stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.features import FeatureMap

_FACTOR_ITERATIONS = 15
_RAKING_ITERATIONS = 8
_MAX_TILT = 4.0
"""Largest log-odds that a factor may move a code by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Latent factors of the raw features, with loadings (n_raw, r).

    The covariance of raw features between different columns is about ``loadings @ loadings.T``.
    """

    loadings: NDArray[np.float64]

    @property
    def n_factors(self) -> int:
        """Number r of factors."""
        return int(self.loadings.shape[1])


def fit_dependence(
    second: NDArray[np.float64],
    feature_map: FeatureMap,
    *,
    component_means: NDArray[np.float64],
    component_weights: NDArray[np.float64],
    expected_squared_norm: float,
    noise_stddev: float,
) -> Dependence:
    """Fit factors to what the mixture leaves of the second moments between columns.

    The noisy second moments (m, m) are divided by the number of patients; the first ``n_raw``
    features of the public map are the raw ones, normalised. Components have mean raw features (k,
    n_raw) and weights (k,). The expected squared norm of raw features undoes the normalisation of
    records; `noise_stddev` is of one entry of ``second``.
    """
    n_raw = feature_map.n_raw
    scale = expected_squared_norm / feature_map.hidden.skip_weight
    explained = (component_means * component_weights[:, None]).T @ component_means
    rest = second[:n_raw, :n_raw] * scale - explained
    offsets = feature_map.raw_offsets
    blocks = [slice(offsets[j], offsets[j + 1]) for j in range(len(offsets) - 1)]
    # Twice the noise times sqrt(n) is the spectral norm of mirrored noise: factors below are noise.
    floor = 2.0 * noise_stddev * scale * np.sqrt(n_raw)
    fitted = np.zeros_like(rest)
    values, vectors = np.zeros(0), np.zeros((n_raw, 0))
    for _ in range(_FACTOR_ITERATIONS):
        # Within a column the marginals say all there is: fill the block by the fit itself.
        for block in blocks:
            rest[block, block] = fitted[block, block]
        values, vectors = np.linalg.eigh(rest)
        kept = values > floor
        values, vectors = values[kept], vectors[:, kept]
        fitted = (vectors * values) @ vectors.T
    return Dependence(loadings=vectors * np.sqrt(values))


def tilts(
    dependence: Dependence, feature_map: FeatureMap, marginals: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """For each column, the log-odds of each code per unit of each factor.

    For a column with raw features f, loadings L and covariance S under its marginal, factor
    analysis gives the tilt ``f . Psi^-1 L`` with ``Psi = S - L L^T``.

    The marginals (one_hot_width,) are overall probabilities; the tilts of a column are of shape
    (n_codes, r).
    """
    offsets, start, result = feature_map.raw_offsets, 0, []
    for column, table in enumerate(feature_map.tables):
        probabilities = marginals[start : start + len(table)]
        start += len(table)
        loadings = dependence.loadings[offsets[column] : offsets[column + 1]]
        centred = table - probabilities @ table
        covariance = centred.T @ (probabilities[:, None] * centred)
        values, vectors = np.linalg.eigh(covariance - loadings @ loadings.T)
        # A residual variance below a tenth of the column's own says more than the noise allows.
        least = 0.1 * max(float(np.trace(covariance)) / len(covariance), 1e-12)
        inverse = (vectors / np.maximum(values, least)) @ vectors.T
        result.append(centred @ inverse @ loadings)
    return result


def rake(
    marginal: NDArray[np.float64], tilt: NDArray[np.float64], factors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Find base probabilities (n_codes,) whose tilted mean over the factors is the wanted marginal.

    The tilt is (n_codes, r), the factors (n, r) are a sample of standard normal ones.
    """
    gain = np.exp(np.clip(factors @ tilt.T, -_MAX_TILT, _MAX_TILT))
    base = marginal.copy()
    for _ in range(_RAKING_ITERATIONS):
        tilted = base * gain
        mean = (tilted / tilted.sum(axis=1, keepdims=True)).mean(axis=0)
        base = np.where(marginal > 0.0, base * marginal / np.maximum(mean, 1e-12), 0.0)
        base /= base.sum()
    return base


def tilted(
    base: NDArray[np.float64], tilt: NDArray[np.float64], factors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Tilted weights of each code for each row of factors, shape (n, n_codes), not normalised."""
    weights: NDArray[np.float64] = base * np.exp(np.clip(factors @ tilt.T, -_MAX_TILT, _MAX_TILT))
    return weights
