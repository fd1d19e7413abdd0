"""Records of a measurement that an earlier form of ClustMix has sealed.

A mixture of products, tilted by a few latent factors, and a logistic model of the label. Nothing
measures by it any more; what it samples is what it always sampled, byte by byte.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, qmc

from privacy.arrays import Floats, Records
from tasks.measurement.encoded import EncodingDomain, row_slices
from tasks.measurement.marginals import draw_codes
from tasks.measurement.statistics import softmax
from tasks.measurement.synthesizer import PUBLIC_SEED, Released
from tasks.synthesizers.clustmix.config import EarlierSettings
from tasks.synthesizers.clustmix.earlier.features import EarlierFeatures

_RAKING_POINTS_LOG2, _RAKING_ITERATIONS = 11, 8
_MAX_TILT = 4.0
_PRIOR_ITERATIONS, _PRIOR_TOLERANCE = 500, 1e-9
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class EarlierClustMix:
    """The earlier form, bound to the domain and the settings of its measurement."""

    domain: EncodingDomain
    settings: EarlierSettings

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample component, factors, codes column by column, then the label."""
        features = EarlierFeatures.of(
            self.domain,
            n_random=self.settings.random_features,
            skip_weight=self.settings.skip_weight,
            kind=self.settings.features,
        )
        codes = np.empty((n_rows, self.domain.n_columns), dtype=np.uint16)
        component = draw_codes(released["mixture_weights"], n_rows, rng)
        loadings = released["loadings"]
        factors = rng.standard_normal((n_rows, loadings.shape[1]))
        tilts = _tilts(loadings, features, released["overall_marginals"])
        points = _raking_points(loadings.shape[1])
        for index in np.unique(component):
            member = np.flatnonzero(component == index)
            start = 0
            for column, tilt in enumerate(tilts):
                marginal = released["mixture_marginals"][index, start : start + len(tilt)]
                start += len(tilt)
                base = _raked(marginal, tilt, points)
                for rows in (member[block] for block in row_slices(len(member), _ROWS_AT_ONCE)):
                    weights = base * _gain(tilt, factors[rows])
                    codes[rows, column] = draw_codes(weights, len(rows), rng)
        logits = [
            features.phi(codes[block]) @ released["label_weights"]
            for block in row_slices(n_rows, _ROWS_AT_ONCE)
        ]
        sharpened = self.settings.label_sharpness * np.concatenate(logits)
        prior = np.exp(released["label_log_prior"])
        return codes, draw_codes(_label_probabilities(sharpened, prior), n_rows, rng)


def _raking_points(n_factors: int) -> Floats:
    """Public points spread like standard normal draws."""
    if n_factors == 0:
        return np.zeros((1, 0))
    uniform = qmc.Sobol(n_factors, rng=np.random.default_rng(PUBLIC_SEED))
    points = uniform.random_base2(_RAKING_POINTS_LOG2)
    return np.asarray(norm.ppf(np.clip(points, 1e-9, 1.0 - 1e-9)))


def _tilts(loadings: Floats, features: EarlierFeatures, marginals: Floats) -> list[Floats]:
    """For each column, the log-odds (n_codes, r) of each code per unit of each factor."""
    offsets, start, result = features.offsets, 0, []
    for column, table in enumerate(features.tables):
        probabilities = marginals[start : start + len(table)]
        start += len(table)
        own = loadings[offsets[column] : offsets[column + 1]]
        centred = table - probabilities @ table
        covariance = centred.T @ (probabilities[:, None] * centred)
        values, vectors = np.linalg.eigh(covariance - own @ own.T)
        least = 0.1 * max(float(np.trace(covariance)) / len(covariance), 1e-12)
        inverse = (vectors / np.maximum(values, least)) @ vectors.T
        result.append(centred @ inverse @ own)
    return result


def _gain(tilt: Floats, factors: Floats) -> Floats:
    return np.asarray(np.exp(np.clip(factors @ tilt.T, -_MAX_TILT, _MAX_TILT)))


def _raked(marginal: Floats, tilt: Floats, factors: Floats) -> Floats:
    """Find base probabilities (n_codes,) whose tilted mean over the factors is the marginal."""
    gain, base = _gain(tilt, factors), marginal.copy()
    for _ in range(_RAKING_ITERATIONS):
        tilted = base * gain
        mean = (tilted / tilted.sum(axis=1, keepdims=True)).mean(axis=0)
        base = np.where(marginal > 0.0, base * marginal / np.maximum(mean, 1e-12), 0.0)
        base /= base.sum()
    return base


def _label_probabilities(logits: Floats, prior: Floats) -> Floats:
    """Probabilities (n, C) whose mean is the released shares of the labels."""
    intercept = np.log(prior)
    for _ in range(_PRIOR_ITERATIONS):
        mean = softmax(logits + intercept).mean(axis=0)
        if np.abs(mean - prior).max() < _PRIOR_TOLERANCE:
            break
        intercept = intercept + np.log(prior / np.maximum(mean, 1e-12))
    return softmax(logits + intercept)
