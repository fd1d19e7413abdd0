"""Measurements of one table in parts: counts add up, pair tables and rounds join one fit.

Each part has its own pairs, groups and label model; parts need not agree on them. The fits are
those of a single measurement, which is the case of one part. Post-processing of released values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from privacy.arrays import Floats, Integers
from tasks.measurement.centred import counts_of
from tasks.measurement.curator import Curator
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Released
from tasks.measurement.pooled_sums import Part, Pool, added, joint_mu, noisy_of
from tasks.measurement.record_rules import RecordRules
from tasks.methods.clustmix.records.kernel_features import KernelMap
from tasks.methods.clustmix.records.table_layout import LABEL_COUNTS, PAIR_TABLES, Layout
from tasks.methods.clustmix.tables import estimates
from tasks.methods.clustmix.tables import table_draws as draws
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables.mixture import Effort, density
from tasks.methods.clustmix.tables.rounds import Rounds, label_arrays
from tasks.methods.clustmix.tables.table_sampler import public_sample

_KERNEL = tuple(f"kernel_{name}" for name in KernelMap.__dataclass_fields__)
_MEASURED = ("code_groups", "pair_used", "pair_scale", *_KERNEL)


class _Replay(Curator):
    """A curator that returns sealed sums, and records the public arrays of each draw."""

    def __init__(self, plan: MeasurementPlan, sums: Part) -> None:
        self.plan = plan
        self.drawn_at: dict[str, NDArray[Any]] = {}
        self._sums = sums

    def release(self, name: str, contribution: Callable[..., Integers], **public: Any) -> Floats:
        """Return the sealed sums of a statistic (KeyError if there are none)."""
        features = np.concatenate([table.ravel() for table in public["features"]])
        model = {key: public[key] for key in ("log_odds", "intercepts")}
        drawn_at = {"features": features, **model}
        self.drawn_at |= {f"{name}_{key}": values for key, values in drawn_at.items()}
        return self._sums[f"sum_{name}"]


def replayed(
    plan: MeasurementPlan, sums: Part, stage: Callable[[Curator], Released]
) -> dict[str, NDArray[Any]]:
    """Run a stage again on its sealed sums; return the public arrays at which these were drawn."""
    replay = _Replay(plan, sums)
    stage(replay)
    return replay.drawn_at


def measured(arrays: Released) -> dict[str, NDArray[Any]]:
    """Return the choices of a measurement: groups, pairs and the map of the kernel features."""
    return {name: arrays[name] for name in _MEASURED if name in arrays}


def pooled(
    layout: Layout,
    parts: Sequence[Part],
    *,
    planned: int,
    rules: RecordRules | None,
    effort: Effort,
) -> Pool:
    """Fit the mixture and the label model to the sums of all parts; of one as in its release.

    A release is fitted for the number of parts `planned` that its pool is going to have.
    """
    total, mu = joint_mu(parts)
    more = planned if len(parts) == 1 else 1
    drowned = rule.shares_of(layout, patients=round(total), mu=mu, parts=more).drowned
    sums = added(parts, LABEL_COUNTS)
    noisy, stddev = noisy_of(sums)(LABEL_COUNTS)
    counts = estimates.first_counts(layout, noisy, unit_stddev=stddev)
    drawn = [
        estimates.DrawnPairs.of(layout, part, noisy_of(part), patients=_patients(layout, part))
        for part in parts
        if "pair_used" in part
    ]
    found = density(layout, counts, drawn, drowned=drowned, effort=effort, rules=rules)
    released: dict[str, NDArray[Any]] = {**found}
    if len(parts) == 1:
        released |= measured(parts[0])
        if drawn:
            sums |= added(parts, PAIR_TABLES)
    elif drawn:
        # Parts measure different pairs, so only the one-ways have a sum over all parts.
        one_ways, stddev = estimates.joint_one_ways(layout, drawn)
        sums |= {f"sum_{PAIR_TABLES}": one_ways, f"stddev_{PAIR_TABLES}": np.array(stddev)}
        released["pair_used"] = np.zeros((layout.n_columns,) * 2, dtype=np.bool_)
        released["pair_scale"] = np.ones(2)
        released["code_groups"] = np.concatenate([np.arange(k) for k in layout.n_codes])
    codes = public_sample(layout, released, rules, n_rows=effort.fit_rows)
    rounds = Rounds.of(layout, released, codes, drowned=drowned)
    with threadpool_limits(1, user_api="blas"):
        for name in map(draws.residual_round, range(max(map(len, parts)))):
            if with_it := [part for part in parts if f"sum_{name}" in part]:
                rounds.learn_parts(name, [(part, _patients(layout, part)) for part in with_it])
        if "kernel_points" in released:
            name, [part] = draws.KERNEL_ROUND, parts
            rounds.learn_kernel(
                part[f"sum_{name}"],
                KernelMap.of(part),
                stddev=float(part[f"stddev_{name}"]),
                drawn_at=rounds.drawn_at(part, name),
            )
    return {**released, **label_arrays(layout, released, rounds)}, sums


def _patients(layout: Layout, part: Part) -> float:
    """Noisy number of patients of a part, at least 1."""
    return max(float(counts_of(part[f"sum_{LABEL_COUNTS}"], layout.n_codes)[0].sum()), 1.0)
