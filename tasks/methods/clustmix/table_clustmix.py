"""ClustMix on tables and item sets: approximate, adapt, anonymise, mix, by one public rule.

Approximate: counts of codes by label and tables of pairs of columns are released, and a mixture of
product distributions is fitted to them. Adapt: a label model is fitted to the counts. Anonymise:
the model is corrected by residuals, each as large as its bound allows. Mix: rows come from the
mixture and labels from the model. Every look at the rows is one planned Gaussian draw, and the
whole is mu-GDP by composition (Dong, Roth and Su 2019, Corollary 3.3).

Source of the chain: Madl et al., "Approximate, Adapt, Anonymize (3A)", Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats, Records
from privacy.errors import ConfigurationError
from tasks.measurement.centred import counts_of, label_counts
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain, row_slices
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import PUBLIC_SEED, Noisy, Released, Stage, Table, budget_left
from tasks.measurement.pooled_sums import Part, Pool
from tasks.methods.clustmix import table_pool
from tasks.methods.clustmix.records.kernel_features import (
    FEATURE_NORM,
    N_FEATURES,
    KernelMap,
    association_with_label,
)
from tasks.methods.clustmix.records.table_layout import LABEL_COUNTS, PAIR_TABLES, Layout
from tasks.methods.clustmix.tables import estimates
from tasks.methods.clustmix.tables import table_draws as draws
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.clustmix.tables.measured_tables import _Cells, measured_cells, measured_tables
from tasks.methods.clustmix.tables.mixture import Effort, density
from tasks.methods.clustmix.tables.rounds import CONSTANT, Rounds, label_arrays
from tasks.methods.clustmix.tables.table_sampler import Mixture, mixture_of, public_sample

_SHIFTS, _SHIFT_TOLERANCE, _NO_SHARE, _NEVER = 50, 1e-6, 1e-12, np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True)
class TableClustMix:
    """ClustMix bound to the public domain of a table or of item sets.

    Where public rows (N, d) are `given` to fit the label model on, no pairs are measured.
    """

    domain: EncodingDomain
    effort: Effort = field(default_factory=Effort)
    given: Codes | None = None

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Every noisy statistic and its noise, from public values alone."""
        patients, parts = self.domain.patients, self.domain.parts
        plan = draws.plan_of(self._layout, patients=patients, mu=mu, parts=parts)
        own = [one for one in plan.statistics if self.given is None or one.name != PAIR_TABLES]
        return replace(plan, statistics=tuple(own))

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages; the last draws are made by mixing."""
        return (
            Stage(name="partition", run=self._partition),
            Stage(name="constrained-gmm", run=self._density),
            Stage(name="kip", run=self._inducing),
            Stage(name="noise-calibration", run=partial(budget_left, self)),
            Stage(name="mixing", run=self._mixing),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample rows from the mixture, labels from the model; see `Synthesizer.sample`."""
        whole = sampler.of_rows(mixture_of(released, self._layout), self._layout)
        codes, scores = self._records(whole, released, n_rows=n_rows, rng=rng)
        intercepts = _intercepts(scores, released["row_label_shares"])
        return codes, sampler.systematic_labels(softmax(scores + intercepts, axis=1), rng)

    def relabelled(
        self, released: Released, codes: Codes, label: Codes, rng: np.random.Generator
    ) -> Codes:
        """Redraw labels of records (n, d) whose codes have changed; their shares stay the same."""
        scores = self._allowed_scores(released, codes)
        shares = np.bincount(label, minlength=scores.shape[1]) / len(label)
        intercepts = _intercepts(scores, np.maximum(shares, _NEVER))
        return sampler.systematic_labels(softmax(scores + intercepts, axis=1), rng)

    def sample_where(
        self,
        released: Released,
        allowed: Mapping[int, NDArray[np.bool_]],
        *,
        n_rows: int,
        rng: np.random.Generator,
    ) -> Records:
        """Sample rows with allowed codes, exactly: from the mixture that is conditioned on them.

        Intercepts are fitted to the label shares of all rows, without the conditions.
        """
        whole = sampler.of_rows(mixture_of(released, self._layout), self._layout)
        _, scores = self._records(whole, released, n_rows=self.effort.fit_rows, rng=rng)
        intercepts = _intercepts(scores, released["row_label_shares"])
        asked = sampler.conditioned(whole, self._layout, allowed)
        codes, scores = self._records(asked, released, n_rows=n_rows, rng=rng)
        return codes, sampler.systematic_labels(softmax(scores + intercepts, axis=1), rng)

    def _records(
        self, mixture: Mixture, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[Codes, Floats]:
        """Sample records (n, d) of the declared columns, with the scores of their labels."""
        layout = self._layout
        rules = self.domain.rules
        codes = sampler.sample_kept(mixture, layout, rules, n_rows=n_rows, rng=rng)
        if len(codes) < n_rows:
            raise ConfigurationError(
                "CONSTRAINTS_RARE",
                "expected records that meet the conditions and keep the constraints of the schema, "
                "found none; ask for fewer conditions",
            )
        codes = np.ascontiguousarray(codes[:, : layout.n_declared])
        return codes, self._allowed_scores(released, codes)

    def _allowed_scores(self, released: Released, codes: Codes) -> Floats:
        """Scores, minus infinity for a label that a record may not have."""
        scores, rules = self.scores(released, codes), self.domain.rules
        if rules is not None and rules.limits_labels:
            scores = np.where(rules.labels_allowed(codes), scores, -np.inf)
        return scores

    def scores(self, released: Released, codes: Codes) -> Floats:
        """Scores (n, C) of the labels of records (n, d), without the intercepts."""
        layout = self._layout
        scores = np.zeros((len(codes), layout.n_labels))
        for column in range(layout.n_declared):
            scores += released["label_scores"][layout.block(column)][codes[:, column]]
        if "kernel_scores" in released:
            kernel = KernelMap.of(released)
            for part in row_slices(len(codes)):
                found = kernel.features(layout, codes[part]) / FEATURE_NORM
                scores[part] += found @ released["kernel_scores"]
        return scores

    def tables(self, released: Released, noisy: Noisy) -> tuple[float, Iterator[Table]]:
        """Return the noisy number of patients, and every table of shares."""
        sizes, _ = counts_of(noisy(LABEL_COUNTS)[0], self._layout.n_codes)
        by_label = self.shares_by_label(released)
        return float(sizes.sum()), measured_tables(self.domain, released, noisy, by_label=by_label)

    def cells(self, released: Released, noisy: Noisy, *columns: int) -> _Cells | None:
        """Return measured cells, by which `tasks.reporting.conclusions` estimates."""
        return measured_cells(self.domain, released, noisy, *columns)

    def shares_by_label(self, released: Released) -> Floats:
        """Shares (W, C) of patients by declared code and label, in records of a public seed."""
        rng, n_rows = np.random.default_rng(PUBLIC_SEED), self.effort.fit_rows
        with threadpool_limits(1, user_api="blas"):
            mixture = mixture_of(released, self._layout)
            codes, scores = self._records(mixture, released, n_rows=n_rows, rng=rng)
        each = softmax(scores + _intercepts(scores, released["label_shares"]), axis=1) / len(scores)
        ones = draws.one_hot(codes, [np.empty(k) for k in self.domain.n_codes])
        return np.asarray(ones.T @ each)[1:]

    def drawn_at(self, plan: MeasurementPlan, released: Released, sums: Part) -> Part:
        """Return the public arrays at which sealed sums were drawn; see `pooled_sums`."""
        drawn_at = table_pool.replayed(plan, sums, lambda again: self._mixing(again, released))
        return {**table_pool.measured(released), **drawn_at}

    def pooled(self, parts: Sequence[Part]) -> Pool:
        """Fit the mixture and the label model to the sums of parts."""
        planned, rules = self.domain.parts, self.domain.rules
        return table_pool.pooled(
            self._layout, parts, planned=planned, rules=rules, effort=self.effort
        )

    @property
    def _layout(self) -> Layout:
        return Layout.of(self.domain)

    def _split(self, curator: Curator) -> rule.Shares:
        patients, parts, mu = self.domain.patients, self.domain.parts, curator.plan.mu
        return rule.shares_of(self._layout, patients=patients, mu=mu, parts=parts)

    def _partition(self, curator: Curator, released: Released) -> Released:
        """Return the numbers of codes and of visits that are measured; public."""
        layout = self._layout
        return {"n_codes": np.array(layout.n_codes), "n_visits": np.array(layout.n_visits)}

    def _density(self, curator: Curator, released: Released) -> Released:
        """Draw the counts and the pair tables; fit the mixture."""
        layout, plan = self._layout, curator.plan
        noisy = curator.release(
            LABEL_COUNTS,
            label_counts,
            n_codes=layout.n_codes,
            n_labels=layout.n_labels,
            n_visits=layout.n_visits,
        )
        unit_stddev = plan[LABEL_COUNTS].unit_noise_stddev
        counts = estimates.first_counts(layout, noisy, unit_stddev=unit_stddev)
        drawn, measured = self._pairs(curator, counts)
        drowned, rules = self._split(curator).drowned, self.domain.rules
        found = density(layout, counts, drawn, drowned=drowned, effort=self.effort, rules=rules)
        return {**found, **measured}

    def _choice(self, shares: Floats, *, patients: float, mu: float) -> rule.PairChoice:
        declared, parts = self.domain.patients, self.domain.parts
        split = rule.shares_of(self._layout, patients=declared, mu=mu, parts=parts)
        return rule.choose_pairs(
            self._layout,
            shares,
            most=rule.most_codes(self._layout, patients=declared, mu=mu, parts=parts),
            one_ways=split.one_ways,
            pair_mu=rule.mu_of_pool(mu * split.pair_tables**0.5, parts),
            patients=patients,
        )

    def pairs_without_a_table(self, *, mu: float) -> list[tuple[int, int]]:
        """Pairs of declared columns that would not be measured if codes were equally frequent."""
        layout = self._layout
        if layout.n_columns == 1:
            return []
        even = np.concatenate([np.full(k, 1.0 / k) for k in layout.n_codes])
        patients = rule.declared_patients(self.domain.patients)
        used = self._choice(even, patients=patients, mu=mu).used
        return [*zip(*np.nonzero(np.triu(~used, 1)[:, : layout.n_declared]), strict=True)]

    def _pairs(
        self, curator: Curator, counts: estimates.Counts
    ) -> tuple[list[estimates.DrawnPairs], Released]:
        """Choose the pairs and draw their tables, where there are several columns."""
        layout = self._layout
        if layout.n_columns == 1 or self.given is not None:
            return [], {"code_groups": np.arange(layout.width)}
        planned = curator.plan[PAIR_TABLES]
        choice = self._choice(counts.shares, patients=counts.patients, mu=curator.plan.mu)
        noisy = curator.release(
            PAIR_TABLES,
            draws.pair_tables,
            n_codes=layout.n_codes,
            n_visits=layout.n_visits,
            choice=choice,
            length=planned.shape[0],
        )
        drawn = estimates.DrawnPairs(
            choice=choice,
            values=noisy,
            unit_stddev=planned.unit_noise_stddev,
            patients=counts.patients,
        )
        return [drawn], {
            "code_groups": choice.groups,
            "pair_used": choice.used,
            "pair_scale": np.array([choice.norm, choice.one_way]),
        }

    def _inducing(self, curator: Curator, released: Released) -> Released:
        """Take inducing points from the mixture, and fit the map of kernel features to them."""
        layout = self._layout
        if self._split(curator).kernel == 0.0:
            return {}
        by_label, labels = released["counts_by_label"], released["label_shares"]
        noise, points = float(released["counts_stddev"]), self.effort.points
        association = association_with_label(layout, by_label, labels, stddev=noise)
        shares, sample = released["code_shares"], self._public_sample(released)
        with threadpool_limits(1, user_api="blas"):
            kernel = KernelMap.fitted(
                layout,
                shares,
                association,
                sample,
                n_points=points,
                n_products=curator.plan[draws.KERNEL_ROUND].shape[0] - N_FEATURES,
            )
        return kernel.released

    def _public_sample(self, released: Released) -> Codes:
        if self.given is not None:
            return self.given
        rules, n_rows = self.domain.rules, self.effort.fit_rows
        return public_sample(self._layout, released, rules, n_rows=n_rows)

    def _mixing(self, curator: Curator, released: Released) -> Released:
        """Fit the label model to the counts, correct it by weighted residuals."""
        layout, split = self._layout, self._split(curator)
        codes = self._public_sample(released)
        rounds = Rounds.of(layout, released, codes, drowned=split.drowned)
        for index in range(split.rounds):
            name = draws.residual_round(index)
            stddev = curator.plan[name].unit_noise_stddev
            in_pool = rule.mu_of_pool(1.0, self.domain.parts)
            loudness = rounds.loudness(stddev=stddev / in_pool)
            noisy = curator.release(
                name,
                draws.weighted_residuals,
                features=rounds.tables(loudness),
                constant=CONSTANT,
                log_odds=rounds.scores,
                intercepts=rounds.intercepts,
            )
            with threadpool_limits(1, user_api="blas"):
                rounds.learn(noisy, loudness, stddev=stddev)
        if "kernel_points" in released:
            kernel = KernelMap.of(released)
            noisy = curator.release(
                draws.KERNEL_ROUND,
                draws.kernel_residuals,
                layout=layout,
                kernel=kernel,
                features=rounds.tables(np.ones(draws.n_features(layout))),
                log_odds=rounds.scores,
                intercepts=rounds.intercepts,
            )
            stddev = curator.plan[draws.KERNEL_ROUND].unit_noise_stddev
            with threadpool_limits(1, user_api="blas"):
                rounds.learn_kernel(noisy, kernel, stddev=stddev)
        return label_arrays(layout, released, rounds)


def _intercepts(scores: Floats, shares: Floats) -> Floats:
    """Return intercepts (C,) under which the mean probabilities of scores (n, C) are the shares.

    A label that no row may have gets no share, whatever its noisy one is.
    """
    possible = np.isfinite(scores).any(axis=0)
    if not possible.all():
        shares = np.where(possible, shares, _NO_SHARE) / shares[possible].sum()
    intercepts = np.log(shares)
    for _ in range(_SHIFTS):
        mean = softmax(scores + intercepts, axis=1).mean(axis=0)
        if np.abs(mean - shares).max() < _SHIFT_TOLERANCE:
            break
        intercepts = intercepts + np.log(shares / np.maximum(mean, 1e-12))
    return np.asarray(intercepts)
