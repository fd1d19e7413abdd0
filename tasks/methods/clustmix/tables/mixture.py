"""A mixture of product distributions, fitted to released pair tables by Adam.

Post-processing of released values. With components ``P`` of shape (K, W) and weights ``w``, the
pair shares of the mixture are ``A = P' diag(w) P``. The loss is

    1/4 sum V (A - T)^2 + 1/2 u sum (L' diag(w) P - B)^2 + 1/2 v sum (w P - p)^2
        + r sum w_k KL(P_k | w P),

with released pair shares T, shares B of codes by label and one-ways p; L are the labels of the
components, which are a column of P as well. The weights V, u and v follow from the noise; A has
every pair twice, hence 1/4. The last term, the mutual information of component and code, is the
prior: components depart from their mean only if the targets require it. B carries dependences
through the label, which are known well even where pair tables are mostly noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import hypot

import numpy as np
from threadpoolctl import threadpool_limits

from privacy.arrays import Floats, Floats32
from tasks.measurement.method import PUBLIC_SEED, Released
from tasks.measurement.record_rules import RecordRules
from tasks.methods.clustmix.records.table_layout import Layout
from tasks.methods.clustmix.tables import estimates
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.clustmix.tables.estimates import Targets
from tasks.methods.clustmix.tables.strong_pairs import strong_pairs
from tasks.methods.clustmix.tables.table_sampler import Mixture

_RATE, _FIRST, _SECOND, _FLOOR = 0.05, 0.9, 0.99, 1e-8
_LEAST_SHARE = 1e-5
_MARGIN_STEPS, _MARGIN_TOLERANCE, _LEAST_MEAN = 100, 1e-7, 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Amount of computing after the draws; it changes neither them nor their guarantee.

    The mixtures of public random starts are pooled; the label model is fitted on rows of them.
    """

    starts: int = 2
    steps: int = 1_000
    fit_rows: int = 25_000
    points: int = 300


def density(
    layout: Layout,
    counts: estimates.Counts,
    drawn: Sequence[estimates.DrawnPairs],
    *,
    drowned: float,
    effort: Effort,
    rules: RecordRules | None,
) -> Released:
    """Improve the counts of the first draws by their one-ways; return them with the mixture.

    One fit has the pair tables of all draws as targets, each with its own patients and noise.
    """
    mixture = Mixture(weights=np.ones(1), components=counts.shares[None])
    strong: Released = {}
    if drawn:
        one_ways, stddev = estimates.joint_one_ways(layout, drawn)
        counts = estimates.better_counts(layout, counts, one_ways, one_way_stddev=stddev)
        place = int(np.argmax([pairs.precision for pairs in drawn]))
        largest = drawn[place]
        patients = hypot(*(pairs.precision for pairs in drawn)) * largest.stddev
        scale = {"pair_stddev": largest.stddev, "patients": patients}
        targets = estimates.targets_of(layout, counts, drawn, drowned=drowned)
        mixture = fit_pooled(
            layout,
            targets,
            n_components=rule.n_components(largest.choice, **scale),
            penalty=rule.penalty(largest.choice, **scale),
            effort=effort,
        )
    if rules is not None:
        rng = np.random.default_rng(PUBLIC_SEED)
        with threadpool_limits(1, user_api="blas"):
            mixture = sampler.raked(mixture, layout, rules=rules, shares=counts.shares, rng=rng)
    if drawn:
        left_out = set() if rules is None else rules.named_columns
        with threadpool_limits(1, user_api="blas"):
            measured = targets.pairs[place]
            strong = strong_pairs(layout, mixture, measured, drowned=drowned, left_out=left_out)
    return {
        "counts_by_label": counts.by_label,
        "counts_stddev": np.array(counts.stddev),
        "one_way_stddev": np.array(counts.one_way_stddev),
        "patients": np.array(counts.patients),
        "label_shares": counts.labels,
        "code_shares": counts.shares,
        "mixture_weights": mixture.weights,
        "mixture_components": mixture.components,
        **strong,
    }


def fit_pooled(
    layout: Layout, targets: Targets, *, n_components: int, penalty: float, effort: Effort
) -> Mixture:
    """Fit the mixtures of public random starts, and pool them."""
    fit = partial(fit_mixture, layout, targets, n_components=n_components, penalty=penalty)
    seeds = range(PUBLIC_SEED, PUBLIC_SEED + effort.starts)
    # One thread for a start: with several, rounding depends on the number of processors.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(2) as pool:
        return pooled(list(pool.map(lambda seed: fit(steps=effort.steps, seed=seed), seeds)))


def fit_mixture(
    layout: Layout, targets: Targets, *, n_components: int, penalty: float, steps: int, seed: int
) -> Mixture:
    """Fit one mixture from a public random start.

    The penalty r is the weight of the divergence of the components from their mean. The rate of
    Adam falls to nearly nothing over the second half of the steps.
    """
    width = layout.width + layout.n_labels
    start = np.random.default_rng(seed).standard_normal((n_components, width))
    fit = _Fit(layout, targets, penalty)
    adam = [_Adam(np.zeros(n_components, dtype=np.float32)), _Adam(start.astype(np.float32))]
    for step in range(steps):
        rate = _RATE * min(1.0, 2.0 * (1.0 - step / steps) + 0.02)
        gradients = fit.gradients(*(one.parameters for one in adam))
        for one, gradient in zip(adam, gradients, strict=True):
            one.step(gradient, rate)
    parameters = [one.parameters for one in adam]
    weights, components = (part.astype(np.float64) for part in fit.distribution(*parameters))
    weights = weights / weights.sum()
    components = _normalised(layout, components[:, : layout.width])
    if targets.drowned > 0.0:
        mean = weights @ components
        shares = mean + targets.drowned * (targets.shares - mean)
        components = with_one_ways(layout, weights, components, shares)
    return Mixture(weights=weights, components=components)


def with_one_ways(layout: Layout, weights: Floats, components: Floats, shares: Floats) -> Floats:
    """Bring the weighted mean of components (K, W) to shares (W,), in a hundred rounds at most.

    Pair tables that are noise move the mean of a fit. Every component is multiplied by the same
    factor for a code (iterative proportional fitting; Deming and Stephan 1940), so that odds ratios
    between components stay.
    """
    for _ in range(_MARGIN_STEPS):
        mean = weights @ components
        if np.abs(mean - shares).max() < _MARGIN_TOLERANCE:
            break
        components = _normalised(layout, components * (shares / np.maximum(mean, _LEAST_MEAN)))
    return components


def _normalised(layout: Layout, components: Floats) -> Floats:
    sums = np.add.reduceat(components, layout.offsets[:-1], axis=1)
    return np.asarray(components / np.repeat(sums, layout.n_codes, axis=1))


def pooled(mixtures: list[Mixture]) -> Mixture:
    """Return the mixture of several mixtures, with equal weights."""
    return Mixture(
        weights=np.concatenate([mixture.weights for mixture in mixtures]) / len(mixtures),
        components=np.concatenate([mixture.components for mixture in mixtures]),
    )


class _Adam:
    """Adam on one array of parameters; in place, since arrays are large and steps many."""

    def __init__(self, parameters: Floats32) -> None:
        self.parameters = parameters
        self._first, self._second = np.zeros_like(parameters), np.zeros_like(parameters)
        self._n_steps = 0

    def step(self, gradient: Floats32, rate: float) -> None:
        """Descend along a gradient (Kingma and Ba 2015, Algorithm 1)."""
        self._n_steps += 1
        self._first *= np.float32(_FIRST)
        self._first += np.float32(1.0 - _FIRST) * gradient
        self._second *= np.float32(_SECOND)
        self._second += np.float32(1.0 - _SECOND) * gradient * gradient
        spread = np.sqrt(self._second / np.float32(1.0 - _SECOND**self._n_steps))
        rate /= 1.0 - _FIRST**self._n_steps
        self.parameters -= np.float32(rate) * self._first / (spread + np.float32(_FLOOR))


class _Fit:
    """Gradient of the loss in the scores of the weights and the logits of the components."""

    def __init__(self, layout: Layout, targets: Targets, penalty: float) -> None:
        shares = np.concatenate([targets.shares, targets.by_label.sum(axis=1) / layout.n_columns])
        self._starts, self._width = layout.offsets, layout.width
        self._sizes = np.append(np.diff(layout.offsets), layout.n_labels)
        self._base = np.log(shares + _LEAST_SHARE).astype(np.float32)
        self._shares = shares.astype(np.float32)
        self._by_label = targets.by_label.astype(np.float32)
        self._label_weight = np.float32(targets.label_weight)
        self._share_weight = np.float32(targets.share_weight)
        self._pairs = [
            (
                # No matrix is needed where every code is its own group.
                None if len(pairs.joins) == layout.width else pairs.joins.astype(np.float32),
                pairs.tables.astype(np.float32),
                (0.5 * pairs.weights).astype(np.float32),
            )
            for pairs in targets.pairs
        ]
        self._penalty = np.float32(penalty)

    def distribution(self, scores: Floats32, logits: Floats32) -> tuple[Floats32, Floats32]:
        weights = np.exp(scores - scores.max())
        shifted = logits + self._base
        shifted -= np.repeat(
            np.maximum.reduceat(shifted, self._starts, axis=1), self._sizes, axis=1
        )
        np.exp(shifted, out=shifted)
        shifted /= np.repeat(np.add.reduceat(shifted, self._starts, axis=1), self._sizes, axis=1)
        return weights / weights.sum(), shifted

    def gradients(self, scores: Floats32, logits: Floats32) -> tuple[Floats32, Floats32]:
        weights, components = self.distribution(scores, logits)
        codes, labels = components[:, : self._width], components[:, self._width :]
        by_weight, of_pairs = np.zeros_like(weights), np.zeros_like(codes)
        for joins, tables, precision in self._pairs:
            joined = codes if joins is None else codes @ joins.T
            table = joined.T @ (weights[:, None] * joined)
            table -= tables
            table *= precision
            pulled = joined @ table
            by_weight += (pulled * joined).sum(axis=1)
            pulled *= 2.0
            of_pairs += pulled if joins is None else pulled @ joins
        by_label = labels.T @ (weights[:, None] * codes)
        by_label -= self._by_label
        by_label *= self._label_weight
        of_codes = labels @ by_label
        by_weight += (of_codes * codes).sum(axis=1)
        of_codes += of_pairs
        by_component = np.concatenate([of_codes, codes @ by_label.T], axis=1)
        mean = weights @ components
        by_component += self._share_weight * (mean - self._shares)
        divergence = np.log(components + np.float32(1e-9)) - np.log(mean + np.float32(1e-9))
        by_weight += components @ (self._share_weight * (mean - self._shares))
        by_weight += self._penalty * (components * divergence).sum(axis=1)
        by_component += self._penalty * divergence
        by_component *= weights[:, None]
        by_component *= components
        sums = np.add.reduceat(by_component, self._starts, axis=1)
        by_component -= components * np.repeat(sums, self._sizes, axis=1)
        return weights * (by_weight - weights @ by_weight), by_component
