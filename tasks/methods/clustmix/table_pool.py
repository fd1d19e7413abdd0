"""Measurements of one table in parts: counts add up, pair tables and rounds join one fit.

Each part has its own pairs, groups and label model: nothing has to be chosen alike. The fits are
those of a single measurement, which is the case of one part. Post-processing of released values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from privacy.arrays import Floats
from tasks.measurement.centred import counts_of
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Released
from tasks.measurement.pooled_sums import Part, Pool, added, joint_mu, require_arrays, sums_of
from tasks.measurement.record_rules import RecordRules
from tasks.methods.clustmix.tables import estimates
from tasks.methods.clustmix.tables import table_draws as draws
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables.kernel_features import FEATURE_NORM, KernelMap
from tasks.methods.clustmix.tables.mixture import density
from tasks.methods.clustmix.tables.rounds import DrawnRound, Rounds, label_arrays
from tasks.methods.clustmix.tables.table_layout import (
    LABEL_COUNTS,
    PAIR_TABLES,
    Layout,
    pair_cells,
)
from tasks.methods.clustmix.tables.table_sampler import public_sample

_MODEL = ("log_odds", "intercepts")
"""Public arguments of a draw of residuals: the model that it is drawn at."""

_MEASURED = ("code_groups", "pair_used", "pair_scale")


class Replay:
    """A curator of sealed sums: it gives each again, and notes what it was drawn at."""

    def __init__(self, plan: MeasurementPlan, sealed: Mapping[str, Floats]) -> None:
        self.plan = plan
        self.drawn_at: dict[str, dict[str, Any]] = {}
        self._sealed = sealed

    def release(self, name: str, _: object, **public: Any) -> Floats:
        """Return the sealed sums of a statistic (KeyError if there are none)."""
        self.drawn_at[name] = public
        return self._sealed[name]


def part_of(
    replay: Replay, released: Released, sealed: Mapping[str, Floats], *, patients: int | None
) -> dict[str, NDArray[Any]]:
    """Return a measurement as a part, once its rounds were replayed."""
    part = sums_of(replay.plan, sealed, patients=rule.declared_patients(patients))
    part |= {name: released[name] for name in _MEASURED if name in released}
    for name, public in replay.drawn_at.items():
        part |= {f"{name}_{key}": public[key] for key in _MODEL}
        if name == draws.KERNEL_ROUND:
            part |= KernelMap.of(released).released
        else:
            part[f"{name}_features"] = np.concatenate([t.ravel() for t in public["features"]])
    return part


def check_part(layout: Layout, part: Part) -> None:
    """Refuse a part of other arrays than this layout has, or without sense (ValueError)."""
    d, width, n_labels = layout.n_columns, layout.width, layout.n_labels
    declared = layout.n_codes[: layout.n_declared]
    shapes: dict[str, tuple[int, ...]] = {"mu": (), "patients": (), "code_groups": (width,)}
    shapes |= {f"sum_{LABEL_COUNTS}": (n_labels, 1 + width), f"stddev_{LABEL_COUNTS}": ()}
    if d > 1:
        shapes |= {f"sum_{PAIR_TABLES}": np.shape(part[f"sum_{PAIR_TABLES}"])}
        shapes |= {f"stddev_{PAIR_TABLES}": (), "pair_used": (d, d), "pair_scale": (2,)}
    for name in _rounds_of(part):
        shapes |= {f"sum_{name}": (1 + draws.n_features(layout), n_labels), f"stddev_{name}": ()}
        shapes |= {f"{name}_log_odds": (sum(declared), n_labels), f"{name}_intercepts": (n_labels,)}
        shapes[f"{name}_features"] = (sum(k * (k - 1) for k in declared),)
    require_arrays(part, shapes)
    groups, sizes = part["code_groups"], layout.sizes
    if groups.dtype.kind not in "iu" or ((groups < 0) | (groups >= sizes)).any():
        raise ValueError("groups of the codes of a column")
    if d > 1:
        choice = _choice(layout, part)
        n_cells = int(pair_cells(choice.n_groups, choice.used).sum())
        if np.shape(part[f"sum_{PAIR_TABLES}"]) < (width + n_cells,):
            raise ValueError("a value of each cell of a pair table")


def pooled(
    layout: Layout, parts: Sequence[Part], *, rules: RecordRules | None, effort: Mapping[str, int]
) -> Pool:
    """Fit the mixture and the label model to the sums of all parts."""
    total, mu = joint_mu(parts)
    drowned = rule.shares_of(layout, patients=round(total), mu=mu).drowned
    sums = {LABEL_COUNTS: added(parts, LABEL_COUNTS)}
    noisy, stddev = sums[LABEL_COUNTS]
    counts = estimates.first_counts(layout, noisy, unit_stddev=stddev)
    drawn = [_drawn_pairs(layout, part) for part in parts if "pair_used" in part]
    one_ways = None
    if drawn:
        each, stddevs = zip(*(pairs.one_ways(layout) for pairs in drawn), strict=True)
        one_ways = np.sum(each, axis=0), float(np.sqrt(np.square(stddevs).sum()))
        sums[PAIR_TABLES] = one_ways
    found = density(
        *(layout, counts, drawn),
        one_ways=one_ways,
        drowned=drowned,
        starts=effort["starts"],
        steps=effort["steps"],
        rules=rules,
    )
    released: dict[str, NDArray[Any]] = {**found}
    if len(parts) == 1:
        kept = {*_MEASURED, *(f"kernel_{name}" for name in KernelMap.__dataclass_fields__)}
        released |= {name: values for name, values in parts[0].items() if name in kept}
        sums = {name: added(parts, name) for name in sums}
    elif drawn:
        # Of no pair there is a table of all parts; of the one-ways there is.
        released["pair_used"] = np.zeros((layout.n_columns,) * 2, dtype=np.bool_)
        released["pair_scale"] = np.ones(2)
        released["code_groups"] = np.concatenate([np.arange(k) for k in layout.n_codes])
    codes = public_sample(layout, released, rules, n_rows=effort["fit_rows"])
    rounds = Rounds.of(layout, released, codes, drowned=drowned)
    with threadpool_limits(1, user_api="blas"):
        for name in _rounds_of(*parts):
            with_it = [part for part in parts if f"sum_{name}" in part]
            rounds.learn_drawn([_drawn_round(layout, part, name) for part in with_it])
        if "kernel_points" in released:
            _learn_kernel(layout, rounds, parts[0], codes)
    return {**released, **label_arrays(layout, released, rounds)}, sums


def _patients(layout: Layout, part: Part) -> float:
    """Noisy number of patients of a part, at least 1."""
    return max(float(counts_of(part[f"sum_{LABEL_COUNTS}"], layout.n_codes)[0].sum()), 1.0)


def _learn_kernel(layout: Layout, rounds: Rounds, part: Part, codes: NDArray[Any]) -> None:
    name = draws.KERNEL_ROUND
    log_odds, intercepts = (part[f"{name}_{key}"] for key in _MODEL)
    ones = draws.one_hot(codes, [np.empty(k) for k in layout.n_codes[: layout.n_declared]])
    rounds.learn_kernel(
        part[f"sum_{name}"],
        KernelMap.of(part).features(layout, codes) / FEATURE_NORM,
        stddev=float(part[f"stddev_{name}"]),
        drawn_at=draws.probabilities_of(ones, log_odds, intercepts),
    )


def _rounds_of(*parts: Part) -> list[str]:
    """Names of the residual rounds of parts, the first ones first."""
    names = map(draws.residual_round, range(max(map(len, parts))))
    return [name for name in names if any(f"sum_{name}" in part for part in parts)]


def _choice(layout: Layout, part: Part) -> rule.PairChoice:
    groups, (norm, one_way) = part["code_groups"], part["pair_scale"]
    upper = np.triu(part["pair_used"], 1).astype(np.bool_)
    return rule.PairChoice(
        groups=groups,
        n_groups=tuple(int(groups[layout.block(j)].max()) + 1 for j in range(layout.n_columns)),
        used=upper | upper.T,
        one_way=float(one_way),
        norm=float(norm),
    )


def _drawn_pairs(layout: Layout, part: Part) -> estimates.DrawnPairs:
    return estimates.DrawnPairs(
        choice=_choice(layout, part),
        values=part[f"sum_{PAIR_TABLES}"],
        unit_stddev=float(part[f"stddev_{PAIR_TABLES}"]),
        patients=_patients(layout, part),
    )


def _drawn_round(layout: Layout, part: Part, name: str) -> DrawnRound:
    sizes = layout.n_codes[: layout.n_declared]
    ends = list(accumulate(k * (k - 1) for k in sizes))[:-1]
    tables = np.split(np.asarray(part[f"{name}_features"]), ends)
    log_odds, intercepts = (part[f"{name}_{key}"] for key in _MODEL)
    return DrawnRound(
        noisy=part[f"sum_{name}"],
        stddev=float(part[f"stddev_{name}"]),
        patients=_patients(layout, part),
        tables=tuple(t.reshape(k, k - 1) for t, k in zip(tables, sizes, strict=True)),
        log_odds=log_odds,
        intercepts=intercepts,
    )
