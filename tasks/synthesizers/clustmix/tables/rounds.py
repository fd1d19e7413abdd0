"""The rounds of the label model: what it was told so far, and what it is told next.

Post-processing of released values; what it hands to a residual round is public.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.synthesizer import Released
from tasks.synthesizers.clustmix.tables import draws
from tasks.synthesizers.clustmix.tables import label_model as labels
from tasks.synthesizers.clustmix.tables.label_features import LabelFeatures, loudness_of
from tasks.synthesizers.clustmix.tables.layout import Layout

Array = NDArray[np.float64]

CONSTANT = 0.1
"""Feature that every row has in a residual round: the shares of the labels are known well."""

_NEWTON_STEPS = 5
_MOST_FEATURES = 600


class Rounds:
    """What the label model was told so far, on one sample (N, d) of the mixture.

    The scale is the prior standard deviation of the log-odds of a code. Of many features those are
    used that are the widest under the prior.
    """

    def __init__(
        self,
        layout: Layout,
        features: LabelFeatures,
        released: Released,
        codes: NDArray[np.uint16],
        *,
        scale: float,
    ) -> None:
        shares, by_label = released["label_shares"], released["counts_by_label"]
        self._patients = float(released["patients"])
        self._basis = labels.contrasts(layout.n_labels)
        self._codes, self._all = codes.astype(np.int64), features
        self._chosen = np.zeros(features.n_features, dtype=np.bool_)
        self._chosen[np.argsort(-features.prior, kind="stable")[:_MOST_FEATURES]] = True
        self._features = features.only(self._chosen)
        features = self._features
        declared = int(layout.offsets[layout.n_declared])
        # Of a model that knows the shares alone, residuals are counts less shares of them.
        surplus = by_label - shares[:, None] * by_label.sum(axis=0)
        values = features.of_counts(surplus[:, :declared].T @ self._basis)
        towards = float(((shares @ self._basis) ** 2).max())
        variance = float(released["counts_stddev"]) ** 2 * (1.0 + layout.n_labels * towards)
        noise = np.zeros((len(values) + 1,) * 2)
        noise[0, 0], place = variance, 1
        for table in features.tables:
            block = slice(place, place + table.shape[1])
            noise[block, block] = variance * (table.T @ table)
            place += table.shape[1]
        sizes = surplus[:, layout.block(0)].sum(axis=1)
        first = labels.Sums(
            values=np.concatenate([(sizes @ self._basis)[None], values]),
            loudness=np.ones(len(values) + 1),
            noise=noise,
            row_weights=np.ones(len(codes), dtype=np.float32),
            probabilities=np.tile(shares.astype(np.float32), (len(codes), 1)),
        )
        self._posterior = labels.Posterior(
            design=features.design(self._codes),
            patients=self._patients,
            sums=(first,),
            prior=features.prior,
            column=features.column,
            intercepts=np.log(shares) @ self._basis,
            reference=scale**2 / 2.0,
        )
        model = labels.start_model(shares, features.prior, features.column, scale=scale)
        self._model = labels.fit(self._posterior, model, steps=_NEWTON_STEPS)

    def loudness(self, *, stddev: float) -> Array:
        """How loudly each of all q features is measured next, under the noise of one value."""
        information = self._information(self._probabilities(), stddev=stddev)
        loudness = np.zeros(len(self._chosen))
        loudness[self._chosen] = loudness_of(
            self._model.variances[1:].mean(axis=1), information=information
        )
        return loudness

    @property
    def scores(self) -> Array:
        """What each code of a declared column adds to the score of each label, shape (W, C)."""
        return self._features.by_code(self._model.coefficients[1:] @ self._basis.T)

    @property
    def intercepts(self) -> Array:
        """Intercepts of the labels, shape (C,)."""
        return np.asarray(self._model.coefficients[0] @ self._basis.T)

    def learn(self, noisy: Array, loudness: Array, *, stddev: float) -> None:
        """Take a released residual round (1 + q, C) in, which was drawn at the model as it is."""
        found = self._probabilities()
        scaled = self._all.scaled(loudness)
        weights = draws.residual_weights(found)
        weights = weights / np.maximum(1.0, draws.row_norms(self._codes, scaled, CONSTANT))
        kept = np.concatenate([[True], self._chosen])
        self._posterior = self._posterior.with_sums(
            labels.Sums(
                values=noisy[kept] @ self._basis,
                loudness=np.concatenate([[CONSTANT], loudness])[kept],
                noise=np.full(int(kept.sum()), stddev**2),
                row_weights=weights.astype(np.float32),
                probabilities=found.astype(np.float32),
            )
        )
        self._model = labels.fit(self._posterior, self._model, steps=_NEWTON_STEPS)

    def _probabilities(self) -> Array:
        return labels.probabilities(self._posterior.design, self._model.coefficients)

    def _information(self, probabilities: Array, *, stddev: float) -> float:
        """Precision that a round gives a coefficient of loudness one, on average."""
        spread = 1.0 - (probabilities**2).sum(axis=1)
        moved = float((draws.residual_weights(probabilities) * spread).mean())
        return float((self._patients * moved / self._basis.shape[1] / stddev) ** 2)
