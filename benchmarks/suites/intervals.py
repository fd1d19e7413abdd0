"""Coverage of 95 % intervals of `clustmix.contrast` in simulated releases of 4,000 patients.

Patients are drawn from a large table, made up or Adult's, whose figures are the truth; beside them
the intervals of rows that are taken for patients, without the noise. ``python -m
benchmarks.suites.intervals --table adult --epsilon 1`` prints one row. Draws have no seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

import clustmix
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.suites.pool import DELTA, _tables
from privacy.calibration import release_mu
from privacy.errors import ConfigurationError
from privacy.mechanisms import NoisyStatistic
from privacy.parameters import Adjacency, PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from tasks.ingest.encoding import domain_of, encode_chunk
from tasks.measurement.centred import label_counts
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Noisy
from tasks.measurement.record_rules import LABEL
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.clustmix.tables.estimates import first_counts
from tasks.methods.clustmix.tables.table_layout import LABEL_COUNTS
from tasks.reporting.conclusions import contrast

PATIENTS, RELEASES = 4_000, 200
ADULT = (
    ("mean", "age"),
    ("share", "sex=Female"),
    ("risk_difference", "income=>50K", "sex=Male"),
    ("odds_ratio", "income=>50K", "sex=Male"),
    ("odds_ratio", "relationship=Husband", "sex=Male"),
    ("risk_difference", "sex=Female", "workclass=Private"),
)
MADE_UP = (
    ("mean", "age"),
    ("share", "ward=b"),
    ("risk_difference", "y=yes", "smoker=y"),
    ("odds_ratio", "y=yes", "smoker=y"),
    ("risk_ratio", "y=yes", "ward=c"),
    ("risk_difference", "smoker=y", "sex=m"),
    ("odds_ratio", "smoker=y", "sex=m"),
)


def jobs() -> list[Any]:
    """Return the jobs."""
    from benchmarks.jobs import Job

    words = [
        ("--table", t, "--epsilon", e) for e in ("1", "0.5", "4") for t in ("made-up", "adult")
    ]
    return [Job(suite="intervals", command=("benchmarks.suites.intervals", *w)) for w in words]


def _population(table: str) -> tuple[clustmix.Schema, Any, Any]:
    if table == "adult":
        schema, _, train, test = _tables("adult", 0)
        coded = [encode_chunk(part.reset_index(drop=True), schema) for part in (train, test)]
        return (
            schema,
            np.concatenate([one.codes for one in coded]),
            np.concatenate([one.label for one in coded]),
        )
    schema = clustmix.Schema(
        columns=[
            {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 10},
            {"name": "sex", "kind": "categorical", "levels": ["f", "m"]},
            {"name": "smoker", "kind": "categorical", "levels": ["n", "y"]},
            {"name": "ward", "kind": "categorical", "levels": list("abcd"), "missing": ["?"]},
        ],
        label={"name": "y", "levels": {"no": ("0",), "yes": ("1",)}},
    )
    rng, n = np.random.default_rng(1), 1_000_000
    age, sex = np.minimum(rng.poisson(4, n), 9), rng.integers(0, 2, n)
    smoker, ward = rng.random(n) < 0.2 + 0.25 * sex, rng.choice(5, n, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    label = rng.random(n) < 1.0 / (1.0 + np.exp(2.0 - 0.2 * age - 0.7 * smoker))
    return schema, np.column_stack([age, sex, smoker, ward]), label


def _exact(codes: Any, label: Any) -> Any:
    """Return a method whose cells are the counts of a table, without noise."""

    class Exact:
        def cells(self, released: Any, noisy: Any, *columns: int) -> Any:
            own = [label.astype(int) if j == LABEL else codes[:, j].astype(int) for j in columns]
            own += [np.zeros(len(label), dtype=int)] * (2 - len(own))
            counts = np.zeros([int(one.max()) + 1 for one in own])
            np.add.at(counts, tuple(own), 1.0)
            groups = tuple(tuple((code,) for code in range(size)) for size in counts.shape)
            return type(
                "Cells", (), {"counts": counts, "groups": groups, "noise": lambda _, w: 0.0}
            )()

    return Exact()


def _counted(
    method: TableClustMix, plan: MeasurementPlan, rows: EncodedRows
) -> tuple[dict[str, Any], Noisy]:
    """Draw the counts and the pair tables, all that a contrast reads; nothing is fitted."""
    layout = method._layout
    sealed: dict[str, Any] = {}

    def seal(name: str, statistic: NoisyStatistic) -> None:
        sealed[name] = statistic.values / plan[name].scale

    def noisy(name: str) -> tuple[Any, float]:
        return sealed[name], plan[name].unit_noise_stddev

    source = OperatingSystemNoise()
    curator = Curator(plan=plan, shards=[rows], noise_source=source, seal=seal)
    values = curator.release(
        LABEL_COUNTS, label_counts, n_codes=layout.n_codes, n_labels=layout.n_labels
    )
    counts = first_counts(layout, values, unit_stddev=plan[LABEL_COUNTS].unit_noise_stddev)
    _, measured = method._pairs(curator, counts)
    return {**measured, "code_shares": counts.shares, "label_shares": counts.labels}, noisy


def coverage(table: str, epsilon: float) -> ResultRow:
    """Count how often an interval has the truth."""
    schema, codes, label = _population(table)
    method = TableClustMix(replace(domain_of(schema), patients=PATIENTS))
    parameters = PrivacyParameters(epsilon=epsilon, delta=DELTA)
    plan = method.plan(mu=release_mu(parameters, adjacency=Adjacency.ADD_REMOVE))
    asked: list[dict[str, Any]] = [
        {"kind": kind, "of": of, "by": by[0] if by else None}
        for kind, of, *by in (ADULT if table == "adult" else MADE_UP)
    ]
    truth = [contrast(_exact(codes, label), schema, {}, None, **one).estimate for one in asked]  # type: ignore[arg-type]
    rng = np.random.default_rng()
    hits, offered, naive = Counter[int](), Counter[int](), Counter[int]()
    for _ in range(RELEASES):
        drawn = rng.integers(0, len(label), PATIENTS)
        rows = EncodedRows(
            codes=codes[drawn].astype(np.uint16),
            label=label[drawn].astype(np.uint16),
            weight=np.ones(PATIENTS),
            fold=np.zeros(PATIENTS, dtype=np.uint8),
        )
        released, noisy = _counted(method, plan, rows)
        for place, one in enumerate(asked):
            try:
                found = contrast(method, schema, released, noisy, **one)
            except ConfigurationError:
                continue
            offered[place] += 1
            hits[place] += bool(found.low <= truth[place] <= found.high)
            logs = np.log if "ratio" in one["kind"] else np.asarray
            naive[place] += bool(
                abs(logs(found.estimate) - logs(truth[place])) < 1.96 * found.sampling
            )
    figures: dict[str, float] = {}
    for place, one in enumerate(asked):
        name = " ".join(filter(None, one.values()))
        figures[f"offered, {name}"] = offered[place] / RELEASES
        figures[f"coverage, {name}"] = round(hits[place] / max(offered[place], 1), 3)
        figures[f"naive, {name}"] = round(naive[place] / max(offered[place], 1), 3)
    return ResultRow(
        dataset=table,
        method="clustmix",
        analysis="proven",
        epsilon=epsilon,
        delta=DELTA,
        seed=0,
        source=IN_PROCESS,
        rows=PATIENTS,
        settings={"releases": RELEASES},
        figures=figures,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and print its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    asked = parser.parse_args(arguments)
    print(json.dumps(asdict(coverage(asked.table, asked.epsilon))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
