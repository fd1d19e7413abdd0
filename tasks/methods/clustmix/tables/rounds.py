"""The rounds of the label model: the sums it has learnt from, and the loudness of the next.

Post-processing of released values; what it hands to a residual round is public.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
from scipy.linalg import block_diag

from privacy.arrays import Codes, Floats
from tasks.measurement.method import Released
from tasks.methods.clustmix.tables import label_model as labels
from tasks.methods.clustmix.tables import table_draws as draws
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables.label_features import LabelFeatures, loudness_of
from tasks.methods.clustmix.tables.table_layout import Layout

CONSTANT = 0.1
"""Feature that every row has in a residual round: the shares of the labels are known well."""

_KERNEL_SPREAD = 0.3
_STEPS = 8
_MOST_FEATURES = 600

_DISPERSIONS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""Factors by which the sums may vary more than those of as many patients, tried in this order.

Rows of the mixture stand for the real ones as a sample would, and as a small one where the mixture
misses dependences between columns. A fit that takes the sums for more exact goes too far.
"""


class Rounds:
    """The label model and the sums it has learnt from, on one sample (N, d) of the mixture.

    The scale is the prior standard deviation of the log-odds of a code. Of many features those are
    used that are the widest under the prior. A last one that no draw measures, their sum by rarity,
    is what all columns have in common.
    """

    def __init__(
        self,
        layout: Layout,
        features: LabelFeatures,
        released: Released,
        codes: Codes,
        *,
        scale: float,
    ) -> None:
        # The rarest label last: it is then one contrast to all others.
        self._order = np.argsort(-released["label_shares"], kind="stable")
        shares = released["label_shares"][self._order]
        by_label = released["counts_by_label"][self._order]
        self._patients, self._scale = float(released["patients"]), scale
        self._shares, self._basis = shares, labels.contrasts(layout.n_labels)
        self._codes, self._all = codes.astype(np.int64), features
        self._kernel = np.zeros((len(codes), 0), dtype=np.float32)
        self._chosen = np.zeros(features.n_features, dtype=np.bool_)
        self._chosen[np.argsort(-features.prior, kind="stable")[:_MOST_FEATURES]] = True
        self._features = features = features.only(self._chosen)
        rarity = features.design(self._codes)[:, 1:] @ features.rarity
        self._rarity = features.rarity / max(1.0, float(rarity.std()))
        self._prior = np.append(features.prior, (rule.RARITY_SPREAD / scale) ** 2)
        self._column = np.append(features.column, features.column.max() + 1)
        declared = int(layout.offsets[layout.n_declared])
        # Of a model that knows the shares alone, residuals are counts less shares of them.
        surplus = by_label - shares[:, None] * by_label.sum(axis=0)
        values = features.of_counts(surplus[:, :declared].T @ self._basis)
        # Noise limits how precisely the label's rarity is known.
        self._doubt = float(released["counts_stddev"]) / self._patients
        towards = float(((shares @ self._basis) ** 2).max())
        variance = float(released["counts_stddev"]) ** 2 * (1.0 + layout.n_labels * towards)
        noise = variance * block_diag(1.0, *(table.T @ table for table in features.tables))
        sizes = surplus[:, layout.block(0)].sum(axis=1)
        self._reach = labels.reaches(shares, scale=rule.LABEL_SCALE)
        self._model = labels.start_model(
            shares, self._prior, self._column, scale=scale, reach=self._reach
        )
        values = np.concatenate([(sizes @ self._basis)[None], values])
        self._posterior = self._all_learnt((self._sums(values, np.ones(len(values)), noise),))
        self._fit()

    def loudness(self, *, stddev: float) -> Floats:
        """Loudness of each of all q features in the next round, under the noise of one value."""
        probabilities = labels.probabilities(self._posterior.design, self._model.coefficients)
        # Precision that a round gives a coefficient of loudness one, on average.
        spread = 1.0 - (probabilities**2).sum(axis=1)
        moved = float((draws.residual_weights(probabilities) * spread).mean())
        information = float((self._patients * moved / self._basis.shape[1] / stddev) ** 2)
        loudness = np.zeros(len(self._chosen))
        variances = self._model.variances.mean(axis=1)
        loudness[self._chosen] = loudness_of(
            variances[1:-1] + self._rarity**2 * variances[-1], information=information
        )
        return loudness

    @property
    def scores(self) -> Floats:
        """Contribution of each code of a declared column to the score of each label, (W, C)."""
        found = self._model.coefficients
        end = 1 + self._features.n_features
        effects = found[1:end] + self._rarity[:, None] * found[end]
        return self._features.by_code(self._by_label(effects))

    @property
    def kernel_scores(self) -> Floats:
        """Contribution of each kernel feature to the score of each label, shape (q, C)."""
        return self._by_label(self._model.coefficients[2 + self._features.n_features :])

    @property
    def intercepts(self) -> Floats:
        """Intercepts of the labels, shape (C,)."""
        return self._by_label(self._model.coefficients[0])

    def learn(self, noisy: Floats, loudness: Floats, *, stddev: float) -> None:
        """Take a released residual round (1 + q, C) in, which was drawn at the model as it is."""
        kept = np.concatenate([[True], self._chosen])
        sums = self._sums(
            noisy[kept][:, self._order] @ self._basis,
            np.concatenate([[CONSTANT], loudness])[kept],
            stddev**2 * np.eye(int(kept.sum())),
            norms=draws.row_norms(
                draws.one_hot(self._codes, self._all.tables), self._all.scaled(loudness), CONSTANT
            ),
        )
        self._posterior = replace(self._posterior, sums=(*self._posterior.sums, sums))
        self._fit()

    def learn_kernel(self, noisy: Floats, features: Floats, *, stddev: float) -> None:
        """Take a released round (q, C) of kernel features in, those (N, q) of the sample's rows."""
        more = features.shape[1]
        self._kernel = features.astype(np.float32)
        self._prior = np.append(self._prior, np.full(more, (_KERNEL_SPREAD / self._scale) ** 2))
        self._column = np.append(self._column, np.full(more, self._column.max() + 1))
        learnt = [labels.with_features(sums, more) for sums in self._posterior.sums]
        self._model = labels.grown(
            self._model, self._prior[-more:], scale=self._scale, reach=self._reach
        )
        before = len(self._prior) + 1 - more
        learnt.append(
            labels.Sums(
                values=np.concatenate(
                    [np.zeros((before, self._basis.shape[1])), noisy[:, self._order] @ self._basis]
                ),
                loudness=np.concatenate([np.zeros(before), np.ones(more)]),
                noise=np.diag(np.concatenate([np.ones(before), np.full(more, stddev**2)])),
                coefficients=self._model.coefficients,
                norms=np.ones(len(features)),
            )
        )
        self._posterior = self._all_learnt(tuple(learnt), self._posterior.dispersion)
        self._fit()

    def _sums(
        self, values: Floats, loudness: Floats, noise: Floats, norms: Floats | None = None
    ) -> labels.Sums:
        """Return sums drawn at the model as it is, without the last feature."""
        return labels.Sums(
            values=np.append(values, np.zeros((1, values.shape[1])), axis=0),
            loudness=np.append(loudness, 0.0),
            noise=block_diag(noise, 1.0),
            coefficients=self._model.coefficients,
            norms=norms,
        )

    def _fit(self) -> None:
        """Fit with the dispersion as it is, then with larger ones while these explain the sums."""
        start = self._model
        ladder = [
            replace(self._posterior, dispersion=one)
            for one in _DISPERSIONS
            if one >= self._posterior.dispersion
        ]

        def fitted(
            posterior: labels.Posterior,
        ) -> tuple[float, labels.Posterior, labels.LabelModel]:
            model, evidence = labels.fit(posterior, start, steps=_STEPS)
            return evidence, posterior, model

        # The second is tried in any case: side by side with the first.
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(fitted, ladder[:2]))
        tried = chain(both, map(fitted, ladder[2:]))
        best = next(tried)
        for better in tried:
            if better[0] <= best[0]:
                break
            best = better
        _, self._posterior, self._model = best

    def _all_learnt(
        self, sums: tuple[labels.Sums, ...], dispersion: float = 1.0
    ) -> labels.Posterior:
        features = self._features
        design = features.design(self._codes)
        rarity = design[:, 1:] @ self._rarity.astype(np.float32)
        means = np.zeros_like(self._model.coefficients)
        means[0] = np.log(self._shares) @ self._basis
        means[1 + features.n_features] = -rule.RARITY_MEAN * (
            np.log(self._shares + self._doubt) @ self._basis
        )
        return labels.Posterior(
            design=np.column_stack([design, rarity, self._kernel]),
            patients=self._patients,
            sums=sums,
            prior=self._prior,
            column=self._column,
            reach=self._reach,
            means=means,
            reference=self._scale**2 / 2.0,
            dispersion=dispersion,
        )

    def _by_label(self, coefficients: Floats) -> Floats:
        """Turn coefficients of contrasts (..., C - 1) to scores of labels as they are declared."""
        return np.asarray((coefficients @ self._basis.T)[..., np.argsort(self._order)])
