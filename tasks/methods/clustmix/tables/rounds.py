"""Rounds of the label model: its fit to the sums so far, and the loudness of the next features.

Loudness is the factor of a feature in a draw. Post-processing: inputs of a draw are public.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Self

import numpy as np
from scipy.linalg import block_diag
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats
from tasks.measurement.method import Released
from tasks.measurement.pooled_sums import Part
from tasks.methods.clustmix.records import label_model as labels
from tasks.methods.clustmix.records.kernel_features import FEATURE_NORM, KernelMap
from tasks.methods.clustmix.records.label_features import LabelFeatures, loudness_of, white_features
from tasks.methods.clustmix.records.table_layout import Layout
from tasks.methods.clustmix.tables import table_draws as draws
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables import table_sampler as sampler

CONSTANT = 0.1
"""Constant feature of a row in a residual round; small, as label shares are known well."""

_KERNEL_SPREAD = 0.3
_STEPS = 8
_MOST_FEATURES = 600
_WHOLE, _NO_EFFECT = 0.99, 1e-9
_COST, _MOST_SPREAD, _TINY = 0.002, 0.2, 1e-12

_DISPERSIONS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""Factors of the sampling variance of the sums, tried in this order.

Rows of the mixture stand in for the patients. Where the mixture misses dependences between columns,
their effective sample size is smaller. A fit that ignores this overfits.
"""


class Rounds:
    """The label model and the sums that it is fitted to, on one sample (N, d) of the mixture.

    The scale is the prior standard deviation of the log-odds of a code. At most 600 features are
    used, those of the largest prior variance. The last feature, rarity, is a weighted sum of the
    others (see `LabelFeatures`) that no draw measures. It has no effect in a wide table: it varies
    far less over rows of the mixture, which lacks dependences of many columns, than over patients.
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
        # The rarest label is last: one contrast then compares it with all others.
        self._layout = layout
        self._order = np.argsort(-released["label_shares"], kind="stable")
        shares = released["label_shares"][self._order]
        by_label = released["counts_by_label"][self._order]
        self._patients, self._scale = float(released["patients"]), scale
        self._basis = labels.contrasts(layout.n_labels)
        self._codes, self._all = codes.astype(np.int64), features
        self._chosen = np.zeros(features.n_features, dtype=np.bool_)
        self._chosen[np.argsort(-features.prior, kind="stable")[:_MOST_FEATURES]] = True
        self._features = features = features.only(self._chosen)
        design = features.design(self._codes)
        spread = float((design[:, 1:] @ features.rarity).std())
        self._rarity = features.rarity / max(1.0, spread)
        rarity = design[:, 1:] @ self._rarity.astype(np.float32)
        design = np.column_stack([design, rarity])
        of_rarity = _NO_EFFECT if layout.n_declared > rule.WIDE else 1.0
        prior = np.append(features.prior, of_rarity * (rule.RARITY_SPREAD / scale) ** 2)
        column = np.append(features.column, features.column.max() + 1)
        declared = int(layout.offsets[layout.n_declared])
        # Residuals of the model that predicts the label shares for every record.
        surplus = by_label - shares[:, None] * by_label.sum(axis=0)
        values = features.of_counts(surplus[:, :declared].T @ self._basis)
        towards = float(((shares @ self._basis) ** 2).max())
        variance = float(released["counts_stddev"]) ** 2 * (1.0 + layout.n_labels * towards)
        noise = variance * block_diag(1.0, *(table.T @ table for table in features.tables))
        sizes = surplus[:, layout.block(0)].sum(axis=1)
        reach = labels.reaches(shares, scale=rule.LABEL_SCALE)
        self._model = labels.start_model(shares, prior, column, scale=scale, reach=reach)
        means = np.zeros_like(self._model.coefficients)
        means[0] = np.log(shares) @ self._basis
        # Noise limits how precisely the label's rarity is known.
        known = np.log(shares + float(released["counts_stddev"]) / self._patients)
        means[-1] = -of_rarity * rule.RARITY_MEAN * (known @ self._basis)
        values = np.concatenate([(sizes @ self._basis)[None], values])
        here = labels.probabilities(design, self._model.coefficients)
        self._posterior = labels.Posterior(
            design=design,
            sums=(self._sums(values, np.eye(len(values)), noise, drawn_at=here),),
            prior=prior,
            column=column,
            reach=reach,
            means=means,
            reference=scale**2 / 2.0,
        )
        self._fit()

    @classmethod
    def of(cls, layout: Layout, released: Released, codes: Codes, *, drowned: float) -> Self:
        """Return the model of the released counts, with the features of the released shares."""
        noise = float(released["one_way_stddev"]) / float(released["patients"])
        features = white_features(layout, released["code_shares"], floor=max(0.5 * noise, 1e-4))
        scale = rule.label_scale(layout, drowned=drowned)
        with threadpool_limits(1, user_api="blas"):
            return cls(layout, features, released, codes, scale=scale)

    def tables(self, loudness: Floats) -> tuple[Floats, ...]:
        """Features of each code (k_j, r_j) of each declared column, times their loudness."""
        return self._all.scaled(loudness)

    def loudness(self, *, stddev: float) -> Floats:
        """Loudness (q,) of all features in the next round, given the noise of one value."""
        probabilities = self._here()
        # Mean precision that a round adds to the coefficient of a feature of loudness one.
        spread = 1.0 - (probabilities**2).sum(axis=1)
        moved = float((draws.residual_weights(probabilities) * spread).mean())
        information = float((self._patients * moved / self._basis.shape[1] / stddev) ** 2)
        loudness = np.zeros(len(self._chosen))
        variances = self._unknown
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
        """Add a residual round (1 + q, C) that was drawn at the current model, and fit again."""
        kept = np.concatenate([[True], self._chosen])
        learnt = self._of_round(
            noisy[kept],
            np.diag(np.concatenate([[CONSTANT], loudness])[kept]),
            stddev=stddev,
            tables=self._all.scaled(loudness),
            drawn_at=self._here(),
            patients=self._patients,
        )
        self._posterior = replace(self._posterior, sums=(*self._posterior.sums, learnt))
        self._fit()

    def learn_parts(self, name: str, parts: Iterable[tuple[Part, float]]) -> None:
        """Add one round of several parts, each with its number of patients, and fit again.

        Each part has a model and features of its own. Least squares expresses these features by
        those of this model, exactly if no feature was left out.
        """
        learnt = [self._of_part(name, part, patients) for part, patients in parts]
        self._posterior = replace(self._posterior, sums=(*self._posterior.sums, *learnt))
        self._fit()

    def _of_part(self, name: str, part: Part, patients: float) -> labels.Sums:
        sizes = [len(table) for table in self._features.tables]
        ends = np.cumsum([k * (k - 1) for k in sizes])[:-1]
        each = zip(np.split(part[f"{name}_features"], ends), sizes, strict=True)
        tables = [values.reshape(k, k - 1) for values, k in each]
        nearest = [
            np.linalg.lstsq(np.column_stack([np.ones(len(own)), own]), theirs, rcond=None)[0]
            for theirs, own in zip(tables, self._features.tables, strict=True)
        ]
        loudness = block_diag(CONSTANT, *(found[1:].T for found in nearest))
        loudness[1:, 0] = np.concatenate([found[0] for found in nearest])
        heard = loudness.any(axis=1)
        return self._of_round(
            part[f"sum_{name}"][heard],
            loudness[heard],
            stddev=float(part[f"stddev_{name}"]),
            tables=tables,
            drawn_at=self.drawn_at(part, name),
            patients=patients,
        )

    def drawn_at(self, part: Part, name: str) -> Floats:
        """Probabilities (N, C) of the model at which a part has drawn, in this model's order."""
        ones = draws.one_hot(self._codes, self._all.tables)
        log_odds, intercepts = part[f"{name}_log_odds"], part[f"{name}_intercepts"]
        return draws.probabilities_of(ones, log_odds, intercepts)[:, self._order]

    def _of_round(
        self,
        noisy: Floats,
        loudness: Floats,
        *,
        stddev: float,
        tables: Sequence[Floats],
        drawn_at: Floats,
        patients: float,
    ) -> labels.Sums:
        norms = draws.row_norms(draws.one_hot(self._codes, tables), tables, CONSTANT)
        return self._sums(
            noisy[:, self._order] @ self._basis,
            loudness,
            stddev**2 * np.eye(len(noisy)),
            drawn_at=drawn_at,
            weights=draws.residual_weights(drawn_at) / np.maximum(1.0, norms),
            patients=patients,
        )

    def learn_kernel(
        self, noisy: Floats, kernel: KernelMap, *, stddev: float, drawn_at: Floats | None = None
    ) -> None:
        """Add a released round (q, C) of kernel features, and fit again.

        It was drawn at the current model, or at one with the probabilities `drawn_at` (N, C). Each
        product of two columns has its own prior scale, since few products affect a label.
        """
        before, more = self._posterior, kernel.n_features
        features = kernel.features(self._layout, self._codes) / FEATURE_NORM
        found = self._here() if drawn_at is None else drawn_at
        group = np.maximum(np.arange(more) - (more - len(kernel.products) - 1), 0)
        prior = np.full(more, (_KERNEL_SPREAD / self._scale) ** 2)
        reach, scale = before.reach, self._scale
        self._model = labels.grown(self._model, prior, group, scale=scale, reach=reach)
        n_known = len(before.means)
        learnt = [labels.with_features(sums, more) for sums in before.sums]
        learnt.append(
            labels.Sums(
                values=np.pad(noisy[:, self._order] @ self._basis, ((n_known, 0), (0, 0))),
                loudness=np.diag(np.repeat([0.0, 1.0], [n_known, more])),
                noise=np.diag(np.repeat([1.0, stddev**2], [n_known, more])),
                drawn_at=found.astype(np.float32),
                weights=draws.residual_weights(found).astype(np.float32),
                patients=self._patients,
            )
        )
        self._posterior = replace(
            before,
            design=np.column_stack([before.design, features.astype(np.float32)]),
            sums=tuple(learnt),
            prior=np.append(before.prior, prior),
            column=np.append(before.column, before.column.max() + 1 + group),
            means=np.pad(before.means, ((0, more), (0, 0))),
        )
        self._fit()

    def _sums(
        self,
        values: Floats,
        loudness: Floats,
        noise: Floats,
        *,
        drawn_at: Floats,
        weights: Floats | None = None,
        patients: float | None = None,
    ) -> labels.Sums:
        """Return sums that leave out rarity; by default of all patients, each of weight one."""
        weights = np.ones(len(drawn_at)) if weights is None else weights
        return labels.Sums(
            values=np.append(values, np.zeros((1, values.shape[1])), axis=0),
            loudness=np.pad(loudness, ((0, 1), (0, 1))),
            noise=block_diag(noise, 1.0),
            drawn_at=drawn_at.astype(np.float32),
            weights=weights.astype(np.float32),
            patients=self._patients if patients is None else patients,
        )

    def _here(self) -> Floats:
        """Probabilities (N, C) of the current model, in its own order of labels."""
        return labels.probabilities(self._posterior.design, self._model.coefficients)

    def _fit(self) -> None:
        """Raise the dispersion as long as the evidence rises, then shrink effects without evidence.

        The posterior variances before the shrinkage determine the loudness of the next round.
        """
        start = self._model
        ladder = [
            replace(self._posterior, dispersion=one)
            for one in _DISPERSIONS
            if one >= self._posterior.dispersion
        ]

        def fit(posterior: labels.Posterior) -> tuple[float, labels.Posterior, labels.LabelModel]:
            model, evidence = labels.fit(posterior, start, steps=_STEPS)
            return evidence, posterior, model

        # The second dispersion is always tried, in parallel with the first.
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(fit, ladder[:2]))
        tried = chain(both, map(fit, ladder[2:]))
        best = next(tried)
        for better in tried:
            if better[0] <= best[0]:
                break
            best = better
        _, self._posterior, self._model = best
        self._unknown = self._model.variances.mean(axis=1)
        carried = labels.carried(self._posterior, self._model)
        if carried.min() < _WHOLE:
            shrunk, _ = labels.fit(self._posterior, self._model, steps=_STEPS, carried=carried)
            self._model = self._enlarged(shrunk)

    def _enlarged(self, shrunk: labels.LabelModel) -> labels.LabelModel:
        """Enlarge shrunk effects, at most to those before, as long as noise alone costs little.

        A learner sees effects only above the sampling error of rows. Noise costs half its variance
        over labels, here 0.002 of log-loss; it may spread by 0.2, as rare labels would allow more.
        """
        effects = [of.coefficients[1:] for of in (shrunk, self._model)]
        spread, most = ((self._posterior.design[:, 1:] @ one).std(axis=0) for one in effects)
        shares = self._here().mean(axis=0)
        variances = shares @ self._basis**2 - (shares @ self._basis) ** 2
        least = np.minimum(_MOST_SPREAD, np.sqrt(2.0 * _COST / (variances * len(variances))))
        larger = np.maximum(1.0, np.minimum(least, most) / np.maximum(spread, _TINY))
        enlarged = np.vstack([shrunk.coefficients[:1], larger * effects[0]])
        return replace(shrunk, coefficients=enlarged)

    def _by_label(self, coefficients: Floats) -> Floats:
        """Turn coefficients of contrasts (..., C - 1) into scores of labels in declared order."""
        return np.asarray((coefficients @ self._basis.T)[..., np.argsort(self._order)])


def label_arrays(layout: Layout, released: Released, rounds: Rounds) -> Released:
    """Return the released arrays of the label model."""
    kernel = {"kernel_scores": rounds.kernel_scores} if "kernel_points" in released else {}
    return {
        "label_scores": rounds.scores,
        "row_label_shares": sampler.row_label_shares(
            released["label_shares"],
            released["counts_by_label"],
            released["code_shares"],
            layout,
            stddev=float(released["counts_stddev"]),
        ),
        **kernel,
    }
