"""Released counts and pair tables, of one draw or of several, to the mixture of a table.

Post-processing of released values.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats
from tasks.measurement.method import PUBLIC_SEED, Released
from tasks.measurement.record_rules import RecordRules
from tasks.methods.clustmix.tables import estimates
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.clustmix.tables.mixture import fit_mixture, pooled
from tasks.methods.clustmix.tables.table_layout import Layout
from tasks.methods.clustmix.tables.table_sampler import Mixture


def density(
    layout: Layout,
    counts: estimates.Counts,
    drawn: Sequence[estimates.DrawnPairs],
    *,
    one_ways: tuple[Floats, float] | None,
    drowned: float,
    starts: int,
    steps: int,
    rules: RecordRules | None,
) -> Released:
    """Return better counts and the mixture, given those of the first draws.

    The one-ways are those of all draws of pair tables together, with their noise, None without one;
    tables of pairs are targets of one fit, each by its own patients and noise.
    """
    mixture = Mixture(weights=np.ones(1), components=counts.shares[None])
    if one_ways is not None:
        counts = estimates.better_counts(layout, counts, one_ways[0], one_way_stddev=one_ways[1])
        mixture = _fitted(layout, counts, drawn, drowned=drowned, starts=starts, steps=steps)
    if rules is not None:
        rng = np.random.default_rng(PUBLIC_SEED)
        with threadpool_limits(1, user_api="blas"):
            mixture = sampler.raked(mixture, layout, rules=rules, shares=counts.shares, rng=rng)
    return {
        "counts_by_label": counts.by_label,
        "counts_stddev": np.array(counts.stddev),
        "one_way_stddev": np.array(counts.one_way_stddev),
        "patients": np.array(counts.patients),
        "label_shares": counts.labels,
        "code_shares": counts.shares,
        "mixture_weights": mixture.weights,
        "mixture_components": mixture.components,
    }


def _fitted(
    layout: Layout,
    counts: estimates.Counts,
    drawn: Sequence[estimates.DrawnPairs],
    *,
    drowned: float,
    starts: int,
    steps: int,
) -> Mixture:
    """Fit mixtures from public random starts, and pool them."""
    targets = estimates.targets_of(layout, counts, drawn, drowned=drowned)
    choices = [pairs.choice for pairs in drawn]
    precision = float(np.sqrt(sum(pairs.precision**2 for pairs in drawn)))

    def fitted(start: int) -> Mixture:
        return fit_mixture(
            layout,
            targets,
            n_components=rule.n_components(choices, precision=precision),
            penalty=rule.penalty(choices, precision=precision),
            steps=steps,
            seed=PUBLIC_SEED + start,
        )

    # A start by one thread: several would round as the machine has processors.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(2) as pool:
        return pooled(list(pool.map(fitted, range(starts))))


def mixture_of(released: Released) -> Mixture:
    """Return the mixture of a measurement."""
    return Mixture(weights=released["mixture_weights"], components=released["mixture_components"])


def public_sample(
    layout: Layout, released: Released, rules: RecordRules | None, *, n_rows: int
) -> Codes:
    """Rows of the mixture, by a public seed, on which the label model is fitted."""
    mixture = mixture_of(released)
    for kept in (rules, None):
        rng = np.random.default_rng(PUBLIC_SEED)
        codes = sampler.sample_kept(mixture, layout, kept, n_rows=n_rows, rng=rng)
        if len(codes) == n_rows:
            break
    return codes
