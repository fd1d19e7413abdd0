"""Scaling of the features to [0, 1] by the data, as the paper does.

Flaw C1: minima, maxima and quantiles come from the private rows, so one record can move the scaled
value of every other record; the noise of a cluster mean does not cover that. Which of the two
scalings is used was chosen by utility (flaw C9).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.preprocessing import QuantileTransformer

from privacy.arrays import Floats

_MAX_QUANTILES = 1000


ScalingKind = Literal["min_max", "normal_quantile"]
"""The two scalings of the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataScaling:
    """An invertible scaling of columns to [0, 1], by `fit_scaling`.

    `quantiles` maps to normal scores, None for min-max scaling, with ranges (D,) in the data. A
    constant column is mapped to 0 and back.
    """

    quantiles: QuantileTransformer | None
    lower: Floats
    upper: Floats

    def scale(self, features: Floats) -> Floats:
        """Map features of shape (n, D) to [0, 1]."""
        scores = features if self.quantiles is None else self.quantiles.transform(features)
        width = np.where(self.upper > self.lower, self.upper - self.lower, 1.0)
        return np.clip((scores - self.lower) / width, 0.0, 1.0)

    def restore(self, scaled: Floats) -> Floats:
        """Map scaled rows of shape (n, D), clipped to [0, 1], back to the data's own units."""
        scores = self.lower + np.clip(scaled, 0.0, 1.0) * (self.upper - self.lower)
        restored = scores if self.quantiles is None else self.quantiles.inverse_transform(scores)
        return np.asarray(restored, dtype=np.float64)


def fit_scaling(kind: ScalingKind, features: Floats) -> DataScaling:
    """Fit a scaling to the rows (n, D), one or more.

    Privacy
    -------
    Reads every row without noise (flaw C1).
    """
    quantiles = None
    scores = features
    if kind == "normal_quantile":
        quantiles = QuantileTransformer(
            n_quantiles=min(_MAX_QUANTILES, len(features)),
            output_distribution="normal",
            subsample=None,
        )
        scores = quantiles.fit_transform(features)
    return DataScaling(
        quantiles=quantiles, lower=np.min(scores, axis=0), upper=np.max(scores, axis=0)
    )
