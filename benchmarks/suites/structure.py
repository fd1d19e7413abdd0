"""Rules that no single column shows, and some that no pair shows: XOR, products, sums.

Ten columns of zeros and ones and ten of digits, drawn evenly. The label follows a rule, turned
round in a tenth of the rows: it is a column, the XOR of two or of three, whether a product of two
centred digits is positive, or whether a sum of four digits is large; or a column is the XOR of two
others, on which a method of pairs should lose, and the label says nothing of it. ``rule_kept`` is
the share of released rows that keep the rule: .9 if all of it is there, and .5 if none. Tests of
this kind are in the paper of Tab-PE (2026).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.releases import Run, main, measured
from benchmarks.results import ResultRow
from benchmarks.suites.sizes import public_site

N_ROWS, N_COLUMNS, FLIPPED = 13_334, 10, 0.1
"""Rows, of which a quarter is held out; columns of either kind."""

RULES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "copied-label": lambda x: x.x0 == 1,
    "xor-label-2": lambda x: (x.x0 + x.x1) % 2 == 1,
    "xor-label-3": lambda x: (x.x0 + x.x1 + x.x2) % 2 == 1,
    "product-label": lambda x: (x.n0 - 4.5) * (x.n1 - 4.5) > 0,
    "sum-label": lambda x: x.n0 + x.n1 + x.n2 + x.n3 >= 18,
    "xor-columns": lambda x: (x.x0 + x.x1) % 2 == 1,
}


def made(rule: str) -> pd.DataFrame:
    rng = np.random.default_rng(20_260_701)
    bits, digits = (
        rng.integers(2, size=(N_ROWS, N_COLUMNS)),
        rng.integers(10, size=(N_ROWS, N_COLUMNS)),
    )
    names = [f"{kind}{j}" for kind in "xn" for j in range(N_COLUMNS)]
    frame = pd.DataFrame(np.column_stack([bits, digits]), columns=names)
    result = RULES[rule](frame) ^ (rng.random(N_ROWS) < FLIPPED)
    if rule == "xor-columns":
        frame["x2"] = result.astype(int)
        result = (frame.x9 == 1) ^ (rng.random(N_ROWS) < FLIPPED)
    return frame.assign(label=result.astype(int))


def rule_kept(rule: str, frame: pd.DataFrame) -> dict[str, float]:
    known = frame.astype(str).astype(int)
    result = known["x2" if rule == "xor-columns" else "label"]
    return {"rule_kept": round(float((RULES[rule](known) == (result == 1)).mean()), 4)}


def document(rule: str, table: Path) -> dict[str, Any]:
    levels = ["0", "1"]
    bit, digit = {"kind": "categorical", "levels": levels}, {"lower": 0, "upper": 9, "bins": 10}
    columns: list[dict[str, Any]] = [{"name": f"x{j}", **bit} for j in range(N_COLUMNS)]
    columns += [{"name": f"n{j}", "kind": "integer", **digit} for j in range(N_COLUMNS)]
    label = {"name": "label", "levels": {level: [level] for level in levels}}
    return public_site(rule, table, {"columns": columns, "label": label}, patients=10_000)


def row_of(run: Run) -> ResultRow:
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as folder:
        table = Path(folder) / "table.csv"
        made(run.dataset).to_csv(table, index=False)
        return measured(run, document(run.dataset, table), partial(rule_kept, run.dataset))


if __name__ == "__main__":
    main(row_of)
