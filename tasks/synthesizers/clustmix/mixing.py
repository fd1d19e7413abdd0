"""Stage 5, mixing: records sampled from the released mixture, labelled by the released model.

The paper releases noisy cluster means. Means alone train tree models poorly; here the same cells
release noisy histograms, and as many valid records as wanted are sampled from them. All of it is
post-processing, so more rows, or other rows, cost nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, qmc

from tasks.measurement.features import FeatureMap
from tasks.measurement.marginals import (
    draw_codes,
    shrink_toward,
    sizes_of,
    to_marginals,
)
from tasks.measurement.synthesizer import PUBLIC_SEED
from tasks.synthesizers.clustmix.dependence import Dependence, rake, tilted, tilts
from tasks.synthesizers.clustmix.label_model import LabelModel, label_probabilities

_RAKING_POINTS_LOG2 = 11
"""Binary logarithm of the number of factors over which the tilted marginals are matched."""

_ROWS_AT_ONCE = 256
"""Rows expanded to features at a time: few enough for the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Released mixture of product distributions.

    Parameters
    ----------
    weights : float64 array of shape (k,), summing to one
    marginals : float64 array of shape (k, one_hot_width)
    overall : float64 array of shape (one_hot_width,)
        Probabilities over all components.
    """

    weights: NDArray[np.float64]
    marginals: NDArray[np.float64]
    overall: NDArray[np.float64]


def build_mixture(
    histograms: NDArray[np.float64], offsets: NDArray[np.int64], *, noise_stddev: float
) -> Mixture:
    """Mixture of (label, cell) components, each shrunk toward its label, that toward the whole.

    Parameters
    ----------
    histograms : float64 array of shape (n_labels, n_cells, one_hot_width)
        Noisy counts in patients.
    offsets : int64 array of shape (d + 1,)
    noise_stddev
        Standard deviation of the noise of one entry.
    """
    n_labels, n_cells, width = histograms.shape
    label_noise = noise_stddev * np.sqrt(n_cells)
    by_label = histograms.sum(axis=1)
    overall = to_marginals(
        by_label.sum(axis=0), offsets, noise_stddev=label_noise * np.sqrt(n_labels)
    )
    label_marginals = shrink_toward(by_label, overall, offsets, noise_stddev=label_noise)
    cell_marginals = shrink_toward(
        histograms, label_marginals[:, None, :], offsets, noise_stddev=noise_stddev
    )
    sizes = sizes_of(histograms, offsets)
    # The mean of d block sums, each of about width / d noisy entries.
    size_noise = noise_stddev * np.sqrt(width) / (len(offsets) - 1)
    sizes = np.where(sizes < 2.0 * size_noise, 0.0, sizes)
    if sizes.sum() <= 0.0:
        sizes = np.ones_like(sizes)
    weights = (sizes / sizes.sum()).reshape(-1)
    return Mixture(
        weights=weights, marginals=cell_marginals.reshape(len(weights), width), overall=overall
    )


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

    Parameters
    ----------
    mixture, dependence, model, feature_map
        Released statistics and the public feature map.
    label_sharpness
        Factor on the log-odds of the labels; public.
    n_rows
        Number of records, 1 or more; public.
    rng
        Source of post-processing randomness.

    Returns
    -------
    codes : uint16 array of shape (n_rows, d)
    labels : uint16 array of shape (n_rows,)

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
