"""Rules that no pair of columns shows: tables of XOR, on which a method of pairs should lose.

Ten columns of zeros and ones, drawn evenly. The label is a column, the XOR of two or of three
columns, each turned round in a tenth of the rows; or the third column is the XOR of the first two,
and the label says nothing of it. ``rule_kept`` is the share of released rows that keep the rule:
.9 if all of it is there, and .5 if none. Tests of this kind are in the paper of Tab-PE (2026).
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.releases import Run, main, measured
from benchmarks.results import ResultRow
from benchmarks.suites.sizes import public_site

N_ROWS, N_COLUMNS, FLIPPED = 20_000, 10, 0.1
RULES = {"copied-label": 1, "xor-label-2": 2, "xor-label-3": 3, "xor-columns": 2}
"""Columns that a rule reads."""


def made(rule: str) -> pd.DataFrame:
    rng, columns = np.random.default_rng(20_260_701), [f"x{j}" for j in range(N_COLUMNS)]
    bits = rng.integers(2, size=(N_ROWS, N_COLUMNS))
    result = bits[:, : RULES[rule]].sum(axis=1) % 2 ^ (rng.random(N_ROWS) < FLIPPED)
    if rule == "xor-columns":
        bits[:, 2] = result
        result = bits[:, -1] ^ (rng.random(N_ROWS) < FLIPPED)
    return pd.DataFrame(bits, columns=columns).assign(label=result)


def rule_kept(rule: str, frame: pd.DataFrame) -> dict[str, float]:
    bits = frame.astype(str).astype(int)
    result = bits["x2" if rule == "xor-columns" else "label"]
    found = bits[[f"x{j}" for j in range(RULES[rule])]].sum(axis=1) % 2 == result
    return {"rule_kept": round(float(found.mean()), 4)}


def document(rule: str, table: Path) -> dict[str, Any]:
    levels = ["0", "1"]
    named = {"kind": "categorical", "levels": levels}
    columns = [{"name": f"x{j}", **named} for j in range(N_COLUMNS)]
    label = {"name": "label", "levels": {level: [level] for level in levels}}
    return public_site(rule, table, {"columns": columns, "label": label}, patients=N_ROWS)


def row_of(run: Run) -> ResultRow:
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as folder:
        table = Path(folder) / "table.csv"
        made(run.dataset).to_csv(table, index=False)
        return measured(run, document(run.dataset, table), partial(rule_kept, run.dataset))


if __name__ == "__main__":
    main(row_of)
