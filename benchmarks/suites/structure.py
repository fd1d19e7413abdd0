"""Rules that no pair of columns shows: tables of XOR, on which a method of pairs should lose.

Ten columns of zeros and ones, drawn evenly. The label is a column, the XOR of two or of three
columns, each turned round in a tenth of the rows; or the third column is the XOR of the first two,
and the label says nothing of it. ``rule_kept`` is the share of released rows that keep the rule:
.9 if all of it is there, and .5 if none. Tests of this kind are in the paper of Tab-PE (2026).

``python -m benchmarks.suites.structure --dataset RULE --method M [--epsilon E] --draw N``
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.jobs import Job
from benchmarks.releases import Run, asked, measured
from benchmarks.results import ResultRow, print_row

N_ROWS, N_COLUMNS, FLIPPED, DRAWS = 20_000, 10, 0.1, range(3)
RULES = {"copied-label": 1, "xor-label-2": 2, "xor-label-3": 3, "xor-columns": 2}
"""Columns that a rule reads."""

METHODS = ("clustmix", "naive_bayes")
EPSILONS = (1.0, 10.0)


def jobs() -> list[Job]:
    """Return the jobs: real rows, the methods of the product, AIM."""
    runs = [Run(dataset=name, method="real") for name in RULES]
    runs += [
        Run(dataset=name, method=method, epsilon=epsilon, seed=draw)
        for draw in DRAWS
        for epsilon in EPSILONS
        for method in METHODS
        for name in RULES
        if draw == 0 or method == "clustmix"
    ]
    runs += [Run(dataset=name, method="aim", epsilon=1.0) for name in RULES]
    return [run.job("structure", counted="--draw") for run in runs]


def made(rule: str) -> pd.DataFrame:
    """Draw a table by a public seed."""
    rng, columns = np.random.default_rng(20_260_701), [f"x{j}" for j in range(N_COLUMNS)]
    bits = rng.integers(2, size=(N_ROWS, N_COLUMNS))
    result = bits[:, : RULES[rule]].sum(axis=1) % 2 ^ (rng.random(N_ROWS) < FLIPPED)
    if rule == "xor-columns":
        bits[:, 2] = result
        result = bits[:, -1] ^ (rng.random(N_ROWS) < FLIPPED)
    return pd.DataFrame(bits, columns=columns).assign(label=result)


def rule_kept(rule: str, frame: pd.DataFrame) -> float:
    """Share of rows that keep the rule."""
    bits = frame.astype(str).astype(int)
    result = bits["x2" if rule == "xor-columns" else "label"]
    found = bits[[f"x{j}" for j in range(RULES[rule])]].sum(axis=1) % 2 == result
    return round(float(found.mean()), 4)


def document(rule: str, table: Path) -> dict[str, Any]:
    """Return the site file of a table."""
    levels = ["0", "1"]
    return {
        "dataset": rule,
        "title": f"Generated table: {rule}",
        "public_benchmark_data": True,
        "patients": N_ROWS,
        "source": {"kind": "csv", "path": str(table)},
        "privacy_unit": {"column": None, "max_rows_per_patient": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "budget": {"lifetime_epsilon": 10.0},
        "method": {"kind": "clustmix"},
        "schema": {
            "columns": [
                {"name": f"x{j}", "kind": "categorical", "levels": levels} for j in range(N_COLUMNS)
            ],
            "label": {"name": "label", "levels": {level: [level] for level in levels}},
        },
    }


def row_of(run: Run) -> ResultRow:
    """Write the table, and measure a method on it."""
    kept: list[float] = []
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as folder:
        table = Path(folder) / "table.csv"
        made(run.dataset).to_csv(table, index=False)
        row = measured(
            run,
            document(run.dataset, table),
            look_at=lambda frame: kept.append(rule_kept(run.dataset, frame)),
        )
    return replace(row, figures={**row.figures, "rule_kept": kept[0]})


def main(arguments: Sequence[str] | None = None) -> int:
    return print_row(row_of(asked("structure", arguments, counted="--draw")))


if __name__ == "__main__":
    sys.exit(main())
