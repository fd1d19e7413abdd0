"""Distilled points beside as many random released rows, and beside all of them, on real rows.

A job releases the training part of a table, distils its rows, and lets kernel ridge regression and
LightGBM learn from each by the recipe of ``docs/operate.md``. Settings of distilling were chosen on
split 0 of the first three tables; split 1 had no part in it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import lightgbm
import numpy as np
import pandas as pd
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import roc_auc_score
from sklearn.multioutput import MultiOutputRegressor

from benchmarks.jobs import run
from benchmarks.releases import Run, released
from benchmarks.results import ResultRow
from benchmarks.tables import divided, site_document, write_site
from storage.schema.table import TableSchema
from tasks.distillation.distilled_rows import distilled, encoded
from tasks.gates.agreement import CodedTable
from tasks.ingest.encoding import encode_chunk

POINTS, MOST_TEST, TREES, TREES_OF_MANY = (50, 200, 500), 10_000, 100, 40
MOST_CELLS = 80_000_000
"""Most features of all rows together; of wider tables the first rows."""


class Judge:
    """Real rows in features, and what models that learned from others predict of them."""

    def __init__(self, test: pd.DataFrame, schema: TableSchema) -> None:
        chunk = encode_chunk(test[list(schema.released_columns)], schema)
        some = np.flatnonzero(chunk.valid)[:: max(1, int(chunk.valid.sum()) // MOST_TEST)]
        self.grid = 1 if schema.image is None else 4
        self.features, self.labels = encoded(chunk.codes[some], schema)[1], chunk.label[some]
        self.n = len(schema.labels.level_names)

    def score(self, found: Any) -> float:
        """AUC of predictions for two labels, else accuracy."""
        if self.n == 2:
            return round(float(roc_auc_score(self.labels == 1, found[:, 1])), 4)
        return round(float((found.argmax(axis=1) == self.labels).mean()), 4)

    def trees(self, x: Any, y: Any) -> float:
        """Score of LightGBM, a regression for each label."""
        model: Any = lightgbm.LGBMRegressor(
            n_estimators=TREES if self.n == 2 else TREES_OF_MANY, num_leaves=15,
            min_child_samples=5, random_state=0, n_jobs=1, verbose=-1,
        )  # fmt: skip
        return self.score(MultiOutputRegressor(model).fit(x, y).predict(self.features))

    def figures(self, name: str, x: Any, y: Any, *, soft: bool) -> dict[str, float]:
        """Return the scores of both models by points; trees follow soft labels by the ridge."""
        ridge = KernelRidge(kernel="rbf", alpha=0.1).fit(x, y)
        score = self.score(ridge.predict(self.features))
        if soft:
            x = (x * self.grid).round() / self.grid
            y = ridge.predict(x)
        return {f"{name}, ridge": score, f"{name}, trees": self.trees(x, y)}


def row_of(site: str, seed: int = 0) -> ResultRow:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        document, test, n_rows = divided(site_document(site), seed, folder)
        declared = write_site({**document, "distill": {"points": POINTS[-1]}}, folder / "site.yaml")
        bundle, facts = released(declared, folder, Run(dataset=site, method="clustmix"))
        judge = Judge(pd.read_parquet(test), schema := declared.table_schema)
        published = pd.read_parquet(bundle / "distilled.parquet")
        rows = encode_chunk(pd.read_parquet(bundle / "synthetic.parquet"), schema, mend=False)
    many = slice(MOST_CELLS // judge.features.shape[1])
    x, y = encoded(rows.codes[many], schema)[1], np.eye(judge.n)[rows.label[many]]
    figures = {"rows of all": len(x), "all rows, trees": judge.trees(x, y)}
    for n in POINTS:
        made, seconds = published, facts["stage_seconds"]["distill"]
        if n != POINTS[-1]:
            started = time.perf_counter()
            made = distilled(CodedTable(codes=rows.codes, label=rows.label), schema, n)
            seconds = time.perf_counter() - started
        points, soft = np.split(made.to_numpy(np.float64), [-judge.n], axis=1)
        figures |= judge.figures(f"{n} points", points, soft, soft=True)
        figures |= judge.figures(f"{n} random rows", x[:n].astype(np.float64), y[:n], soft=False)
        figures[f"{n} points, seconds"] = round(seconds, 1)
    kept = ("analysis", "source", "epsilon", "delta", "wall_seconds")
    return ResultRow(
        dataset=site, method=declared.method.kind, seed=seed, rows=n_rows,
        columns=len(schema.columns), rows_out=len(rows.label), figures=figures,
        settings={"device": jax.default_backend()},
        **{name: facts[name] for name in kept},
    )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
