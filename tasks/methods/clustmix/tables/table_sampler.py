"""Rows of the released mixture, and their labels, with little sampling error.

Sampling error adds no privacy. Components have quotas of rows, and codes have quotas in each
component, rounded at random to whole numbers. Labels are drawn by systematic sampling along their
probabilities, so that all shares are met without sharpening. Post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.method import PUBLIC_SEED, Released
from tasks.measurement.record_rules import Combinations, RecordRules
from tasks.methods.clustmix.records.table_layout import Layout

_LEAST_SHARE, _TINY, _SWEEPS = 1e-12, np.finfo(np.float64).tiny, 100
_RAKINGS, _RAKED, _MOVED, _MOST_FACTOR = 50, 100_000, 1e-5, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """A column of which every component has shares (K, k, l) for each code of its parent."""

    column: int
    parent: int
    shares: Floats


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Released mixture: weights (K,), and components (K, W) of distributions.

    Columns of a component are independent but for the branches, each after that of its parent.
    """

    weights: Floats
    components: Floats
    branches: tuple[_Branch, ...] = ()


def mixture_of(released: Released, layout: Layout) -> Mixture:
    """Return the mixture of a measurement."""
    weights, components = released["mixture_weights"], released["mixture_components"]
    mixture = Mixture(weights=weights, components=components)
    pairs = released["strong_pairs"].tolist() if "strong_pairs" in released else []
    branches, start = [], 0
    for parent, column in pairs:
        shape = layout.n_codes[parent], layout.n_codes[column]
        factors = released["strong_factors"][start : start + prod(shape)].reshape(shape)
        start += prod(shape)
        margins = components[:, layout.block(parent)], components[:, layout.block(column)]
        table = coupled(factors, *margins, sweeps=_SWEEPS)
        table /= np.maximum(table.sum(axis=2, keepdims=True), _TINY)
        branches.append(_Branch(column=column, parent=parent, shares=table))
    return replace(mixture, branches=tuple(branches))


def coupled(tables: Floats, first: Floats, second: Floats, *, sweeps: int) -> Floats:
    """Bring tables (k, l) or (K, k, l), by components, to their margins (K, k) and (K, l).

    Start from independent columns if there is one table for all components: its cells are then
    factors, and change odds ratios alone (Sinkhorn 1967).
    """
    found = tables if tables.ndim > 2 else tables * first[:, :, None] * second[:, None]
    for _ in range(sweeps):
        found = found * (first / np.maximum(found.sum(axis=2), _TINY))[:, :, None]
        found = found * (second / np.maximum(found.sum(axis=1), _TINY))[:, None]
    return found


def pair_shares(mixture: Mixture, layout: Layout, first: int, second: int) -> Floats:
    """Shares (k, l) of the codes of two columns together."""
    above = {branch.column: branch for branch in mixture.branches}

    def path(column: int) -> list[int]:
        return [column, *(path(above[column].parent) if column in above else [])]

    def given(column: int, ancestor: int) -> Floats:
        """Return conditional shares (K or 1, k, l) of a column for each code of an ancestor."""
        if column == ancestor:
            return np.eye(layout.n_codes[column])[None]
        branch = above[column]
        return np.asarray(given(branch.parent, ancestor) @ branch.shares)

    common = [column for column in path(first) if column in path(second)]
    if not common:
        own, other = (mixture.components[:, layout.block(one)] for one in (first, second))
        return np.asarray(own.T @ (mixture.weights[:, None] * other))
    shares = mixture.weights[:, None] * mixture.components[:, layout.block(common[0])]
    own, other = given(first, common[0]), given(second, common[0])
    return np.asarray(((own * shares[:, :, None]).transpose(0, 2, 1) @ other).sum(axis=0))


def public_sample(
    layout: Layout, released: Released, rules: RecordRules | None, *, n_rows: int
) -> Codes:
    """Rows of the mixture, by a public seed, on which the label model is fitted."""
    mixture = mixture_of(released, layout)
    for kept in (rules, None):
        rng = np.random.default_rng(PUBLIC_SEED)
        codes = sample_kept(mixture, layout, kept, n_rows=n_rows, rng=rng)
        if len(codes) == n_rows:
            break
    return codes


def quotas(shares: Floats, total: int, rng: np.random.Generator) -> Integers:
    """Round ``total * shares`` up or down to whole numbers of this sum, without bias."""
    ends = np.cumsum(shares)
    ends = np.floor(ends / ends[-1] * total + rng.random())
    ends[-1] = total
    return np.asarray(np.diff(ends, prepend=0.0), dtype=np.int64)


def sample_codes(
    mixture: Mixture,
    layout: Layout,
    *,
    n_rows: int,
    rng: np.random.Generator,
    joint: Sequence[Combinations] = (),
) -> Codes:
    """Sample records (n_rows, d) of all measured columns, in random order.

    Columns in `joint` have one of their listed combinations of codes.
    """
    codes = np.empty((layout.n_columns, n_rows), dtype=np.uint16)
    together = {column for group in joint for column in group.columns}
    together |= {branch.column for branch in mixture.branches}
    start = 0
    for index, size in enumerate(quotas(mixture.weights, n_rows, rng)):
        member = slice(start, start + int(size))
        start += int(size)
        for group in joint if size else ():
            share = _densities(mixture.components[index], layout, group)
            codes[group.columns, member] = group.codes[_drawn(share, int(size), rng)].T
        for column in range(layout.n_columns):
            if column in together:
                continue
            share = mixture.components[index, layout.block(column)]
            codes[column, member] = _drawn(share, int(size), rng)
        for branch in mixture.branches:
            parents = codes[branch.parent, member]
            for code in np.unique(parents):
                rows = start - int(size) + np.flatnonzero(parents == code)
                codes[branch.column, rows] = _drawn(branch.shares[index, code], len(rows), rng)
    return codes.T[rng.permutation(n_rows)]


def _drawn(shares: Floats, size: int, rng: np.random.Generator) -> Integers:
    return rng.permutation(np.repeat(np.arange(len(shares)), quotas(shares, size, rng)))


def kept_weights(mixture: Mixture, layout: Layout, rules: RecordRules) -> Floats:
    """Weights (K,) of the components given the listed rules; 0 for one without allowed records."""
    logs = np.log(np.maximum(mixture.weights, _TINY))
    for group in rules.combinations:
        kept = [_densities(one, layout, group).sum() for one in mixture.components]
        logs = logs + np.where(np.array(kept) > 0.0, np.log(np.maximum(kept, _TINY)), -np.inf)
    weights = np.exp(logs - max(logs.max(), np.finfo(np.float64).min))
    return np.asarray(weights / max(weights.sum(), _TINY))


def _densities(component: Floats, layout: Layout, group: Combinations) -> Floats:
    found = np.ones(len(group.codes))
    for column, codes in zip(group.columns, group.codes.T, strict=True):
        found *= component[layout.block(column)][codes]
    return found


def sample_kept(
    mixture: Mixture,
    layout: Layout,
    rules: RecordRules | None,
    *,
    n_rows: int,
    rng: np.random.Generator,
) -> Codes:
    """Sample records that keep the rules: from the mixture that is conditioned on them.

    Columns that rules connect are sampled as one, over the combinations that keep the rules. The
    result is empty if no component has such a combination.
    """
    if rules is None:
        return sample_codes(mixture, layout, n_rows=n_rows, rng=rng)
    weights = kept_weights(mixture, layout, rules)
    if not weights.any():
        return np.empty((0, layout.n_columns), dtype=np.uint16)
    kept = replace(mixture, weights=weights)
    return sample_codes(kept, layout, n_rows=n_rows, rng=rng, joint=rules.combinations)


def raked(
    mixture: Mixture,
    layout: Layout,
    *,
    rules: RecordRules,
    shares: Floats,
    rng: np.random.Generator,
) -> Mixture:
    """Adjust a mixture so that its records that keep the rules have one-way shares (W,).

    Each code gets one factor for all components; a record is reweighted by the product of its
    factors (`tilted`). Raking on a sample finds the factors (Deming and Stephan 1940). They are
    limited: where noisy shares contradict the rules they would diverge, and favour records that the
    sample lacks.
    """
    codes = sample_kept(mixture, layout, rules, n_rows=_RAKED, rng=rng)
    if len(codes) == 0:
        return mixture
    weights = np.full(len(codes), 1.0 / len(codes))
    factors = np.ones(layout.width)
    for _ in range(_RAKINGS):
        farthest = 0.0
        for column in range(layout.n_columns):
            own, block = codes[:, column], layout.block(column)
            found = np.bincount(own, weights=weights, minlength=len(shares[block]))
            farthest = max(farthest, float(np.abs(found - shares[block]).max()))
            # Plus one record on both sides: a smaller difference is sampling error.
            ratio = (shares[block] + 1.0 / len(codes)) / (found + 1.0 / len(codes))
            moved = np.clip(factors[block] * ratio, 1.0 / _MOST_FACTOR, _MOST_FACTOR)
            weights *= (moved / factors[block])[own]
            weights /= weights.sum()
            factors[block] = moved
        if farthest < _MOVED:
            break
    return tilted(mixture, layout, factors)


def tilted(mixture: Mixture, layout: Layout, factors: Floats) -> Mixture:
    """Return the mixture with records reweighted by the product of their codes' factors (W,)."""
    components = mixture.components * factors
    sums = np.add.reduceat(components, layout.offsets[:-1], axis=1)
    weights = np.log(np.maximum(mixture.weights, _TINY)) + np.log(sums).sum(axis=1)
    weights = np.maximum(np.exp(weights - weights.max()), _TINY)
    return Mixture(
        weights=weights / weights.sum(),
        components=components / np.repeat(sums, layout.n_codes, axis=1),
    )


def of_rows(mixture: Mixture, layout: Layout) -> Mixture:
    """Turn a mixture of patients into that of their rows: a patient with m rows counts m times."""
    if layout.n_visits == 0:
        return mixture
    components = mixture.components.copy()
    block = layout.block(layout.n_columns - 1)
    counted = components[:, block] * np.arange(1, layout.n_visits + 1)
    mean = counted.sum(axis=1)
    components[:, block] = counted / mean[:, None]
    weights = mixture.weights * mean
    return replace(mixture, weights=weights / weights.sum(), components=components)


def conditioned(
    mixture: Mixture, layout: Layout, allowed: Mapping[int, NDArray[np.bool_]]
) -> Mixture:
    """Return the mixture of the records with an allowed code (k_j,) in each of these columns.

    By Bayes' theorem, the weight of a component is multiplied by its probability of an allowed
    code, and its shares of other codes become zero. A floor makes every condition possible. The
    likelihood of a column passes from a branch to its parent (Pearl 1988).
    """
    likely = {column: mask[None].astype(np.float64) for column, mask in allowed.items()}
    branches, every = list[_Branch](), np.ones((1, 1))
    for branch in reversed(mixture.branches):
        own = likely.pop(branch.column, every)
        kept = np.maximum(branch.shares, _LEAST_SHARE) * own[:, None]
        total = kept.sum(axis=2)
        likely[branch.parent] = likely.get(branch.parent, every) * total
        shares = kept / np.maximum(total, _TINY)[:, :, None]
        branches.insert(0, replace(branch, shares=shares))
    components, weights = mixture.components.copy(), np.log(mixture.weights)
    for column, own in likely.items():
        block = layout.block(column)
        kept = np.maximum(components[:, block], _LEAST_SHARE) * own
        total = kept.sum(axis=1)
        components[:, block] = kept / total[:, None]
        weights = weights + np.log(total)
    weights = np.exp(weights - weights.max())
    return Mixture(weights=weights / weights.sum(), components=components, branches=tuple(branches))


def row_label_shares(
    labels: Floats, by_label: Floats, shares: Floats, layout: Layout, *, stddev: float
) -> Floats:
    """Shares of the labels among rows; those among patients, if each has one row.

    A label has a surplus of rows if its patients have more rows than average. The surplus is shrunk
    by the part of it that noise explains (positive-part James-Stein). The inputs are label shares
    among patients (C,), counts of patients (C, W) with a hidden column and this noise, and shares
    of all codes (W,).
    """
    if layout.n_visits == 0:
        return labels
    block, n_rows = layout.block(layout.n_columns - 1), np.arange(1.0, layout.n_visits + 1.0)
    mean = float(shares[block] @ n_rows)
    surplus = by_label[:, block] @ (n_rows - mean)
    noise = stddev * float(np.linalg.norm(n_rows - mean))
    explained = len(labels) * noise**2 / max(float((surplus**2).sum()), 1e-12)
    patients = max(float(by_label[:, block].sum()), 1.0)
    rows = mean * labels + max(0.0, 1.0 - explained) * surplus / patients
    rows = np.maximum(rows, 0.1 * mean * labels)
    return np.asarray(rows / rows.sum())


def systematic_labels(probabilities: Floats, rng: np.random.Generator) -> Codes:
    """Draw a label for every row of probabilities (n, C), by systematic sampling.

    Labels are assigned one after the other among the rows that have none yet. Along these rows,
    sorted by the conditional probability of the label, it is given where the running sum passes a
    whole number plus a common random fraction.
    """
    labels = np.full(len(probabilities), probabilities.shape[1] - 1, dtype=np.uint16)
    open_rows = np.arange(len(probabilities))
    left = np.ones(len(probabilities))
    for label in range(probabilities.shape[1] - 1):
        wanted = np.clip(probabilities[open_rows, label] / np.maximum(left, 1e-12), 0.0, 1.0)
        order = np.argsort(wanted, kind="stable")
        passed = np.floor(np.cumsum(wanted[order]) + rng.random())
        given = np.diff(passed, prepend=0.0) > 0.0
        labels[open_rows[order[given]]] = label
        left = left - probabilities[open_rows, label]
        kept = np.ones(len(open_rows), dtype=np.bool_)
        kept[order[given]] = False
        open_rows, left = open_rows[kept], left[kept]
    return labels
