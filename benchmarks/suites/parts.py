"""Value of each step and draw of ClustMix on tables: releases without it, in this process.

A draw that gets a millionth of the budget says nothing; what it would have got goes to the others.
This changes no setting of the product: the rule that splits the budget is replaced for a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import clustmix
from benchmarks.jobs import run
from benchmarks.releases import Run, as_bundle, budget_of
from benchmarks.results import IN_PROCESS, SCORED, ResultRow
from benchmarks.score import score
from benchmarks.tables import divided, read_table, site_document, write_site
from tasks.methods.clustmix.tables import table_rule as rule

ROWS_OUT, NOTHING = 100_000, 1e-6

CHANGES: dict[str, Callable[[rule.Shares], dict[str, Any]]] = {
    "whole": lambda s: {},
    "naive-bayes": lambda s: {},
    "without-pair-tables": lambda s: {
        "pair_tables": NOTHING, "label_counts": s.label_counts + s.pair_tables,
    },
    "without-one-ways": lambda s: {"one_ways": NOTHING},
    "without-counts-by-label": lambda s: {
        "label_counts": NOTHING, "pair_tables": s.pair_tables + s.label_counts / 2.0,
        "residuals": s.residuals + s.label_counts / 4.0,
    },
    "without-kernel-features": lambda s: {
        "kernel": 0.0, "residuals": s.residuals + s.kernel / 2.0,
    },
    "without-residuals-and-kernel": lambda s: {
        "residuals": NOTHING, "kernel": 0.0,
        "label_counts": s.label_counts + s.rounds * s.residuals + s.kernel,
    },
    "two-rounds": lambda s: {"residuals": s.residuals * s.rounds / 2.0, "rounds": 2},
}  # fmt: skip
"""Changes of the rule that splits the budget; naive Bayes is measured beside them."""


def row_of(dataset: str, variant: str, epsilon: float = 1.0, seed: int = 0) -> ResultRow:
    with TemporaryDirectory(prefix="clustmix-bench-") as place:
        asked = Run(dataset=dataset, method="real", epsilon=epsilon)
        document, test, n_rows = divided(asked.changed(site_document(dataset)), seed, Path(place))
        site = write_site(document, Path(place) / "site.yaml")
        schema = clustmix.Schema.model_validate(site.table_schema.model_dump(mode="json"))
        kind = clustmix.NaiveBayes if variant == "naive-bayes" else clustmix.ClustMix
        frame, started = read_table(site), time.process_time()
        known = rule.shares_of

        def changed(*args: Any, **kwargs: Any) -> rule.Shares:
            shares = known(*args, **kwargs)
            return replace(shares, **CHANGES[variant](shares))

        with mock.patch.object(rule, "shares_of", changed):
            model = kind(
                schema, patient_column=site.unit.column, max_rows_per_patient=site.unit.max_rows,
                patients=site.patients, **budget_of(site),
            )  # fmt: skip
            made = model.fit(frame).sample(ROWS_OUT)
        seconds = time.process_time() - started
        found = score(as_bundle(made, site, Path(place)), test)
        return ResultRow(
            dataset=dataset, method=kind.kind, analysis="proven", seed=seed, source=IN_PROCESS,
            rows=n_rows, columns=len(schema.columns), rows_out=ROWS_OUT,
            settings={"variant": variant}, cpu_seconds=round(seconds, 2), **budget_of(site),
            **{key: found[key] for key in SCORED},
        )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
