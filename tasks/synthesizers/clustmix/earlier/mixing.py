"""Stage 5, mixing: records sampled from the released mixture, labelled by the released model.

The paper releases noisy cluster means. Means alone train tree models poorly; here the same cells
release noisy histograms, and as many valid records as wanted are sampled from them. All of it is
post-processing, so more rows, or other rows, cost nothing more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, qmc

from tasks.measurement.features import FeatureMap
from tasks.measurement.marginals import Mixture, draw_codes
from tasks.measurement.synthesizer import PUBLIC_SEED
from tasks.synthesizers.clustmix.earlier.dependence import Dependence, rake, tilted, tilts
from tasks.synthesizers.clustmix.earlier.label_model import LabelModel, label_probabilities

_RAKING_POINTS_LOG2 = 11
"""Binary logarithm of the number of factors over which the tilted marginals are matched."""

_ROWS_AT_ONCE = 256
"""Rows expanded to features at a time: few enough for the cache."""


def sample_records(
    mixture: Mixture,
    dependence: Dependence,
    model: LabelModel,
    feature_map: FeatureMap,
    *,
    label_sharpness: float,
    n_rows: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Sample records: component, factors, codes column by column, then the label.

    The sharpness is a public factor on the log-odds of the labels; codes (n_rows, d), labels
    (n_rows,).

    Privacy
    -------
    Post-processing: reads released values only.
    """
    codes = np.empty((n_rows, len(feature_map.tables)), dtype=np.uint16)
    component = draw_codes(mixture.weights, n_rows, rng)
    factors = rng.standard_normal((n_rows, dependence.n_factors))
    column_tilts = tilts(dependence, feature_map, mixture.overall)
    points = _raking_points(dependence.n_factors)
    for index in np.unique(component):
        member = np.flatnonzero(component == index)
        start = 0
        for column, tilt in enumerate(column_tilts):
            marginal = mixture.marginals[index, start : start + len(tilt)]
            start += len(tilt)
            base = rake(marginal, tilt, points)
            for first in range(0, len(member), _ROWS_AT_ONCE):
                rows = member[first : first + _ROWS_AT_ONCE]
                weights = tilted(base, tilt, factors[rows])
                codes[rows, column] = draw_codes(weights, len(rows), rng)
    blocks = range(0, n_rows, _ROWS_AT_ONCE)
    logits = np.concatenate(
        [model.logits(codes[first : first + _ROWS_AT_ONCE], feature_map) for first in blocks]
    )
    probabilities = label_probabilities(logits, np.exp(model.log_prior), sharpness=label_sharpness)
    return codes, draw_codes(probabilities, n_rows, rng)


def _raking_points(n_factors: int) -> NDArray[np.float64]:
    """Public points spread like standard normal draws, the same for every sample.

    With points drawn anew, all rows of a sample would share their error in the marginals.
    """
    if n_factors == 0:
        return np.zeros((1, 0))
    # The seed is public, like the points.
    uniform = qmc.Sobol(n_factors, rng=np.random.default_rng(PUBLIC_SEED))
    points = uniform.random_base2(_RAKING_POINTS_LOG2)
    return np.asarray(norm.ppf(np.clip(points, 1e-9, 1.0 - 1e-9)))
