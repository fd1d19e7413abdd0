"""Distilled points beside as many random released rows, and beside all of them, on real rows.

A job releases the training part of a table by ``clustmix release``, distils its rows, and lets
kernel ridge regression and LightGBM learn from each by the recipe of ``docs/operate.md``. Figures
are AUC for two labels, else accuracy, on real rows that no release has read.

``python -m benchmarks.suites.distill --site NAME`` prints one row.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import lightgbm
import numpy as np
import pandas as pd
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import roc_auc_score

from benchmarks.jobs import Job
from benchmarks.releases import commanded
from benchmarks.results import BUNDLE, ResultRow
from benchmarks.tables import divided, site_document, write_site
from storage.schema.table import TableSchema
from tasks.distillation.distilled_rows import distilled, encoded
from tasks.gates.agreement import CodedTable
from tasks.ingest.encoding import encode_chunk

SITES = ("adult", "diabetes130-readmission", "physionet2012-mortality", "mnist", "fashion-mnist")
POINTS, SPLIT, MOST_TEST, TREES, TREES_OF_MANY = (50, 200, 500), 0, 10_000, 100, 40
MOST_CELLS = 80_000_000
"""Most features of all rows together; of wider tables the first rows."""


def jobs() -> list[Job]:
    """Return a job for each table."""
    module = "benchmarks.suites.distill"
    return [Job(suite="distill", command=(module, "--site", site)) for site in SITES]


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
        count = TREES if self.n == 2 else TREES_OF_MANY
        settings: dict[str, Any] = {"num_leaves": 15, "min_child_samples": 5, "random_state": 0}
        found = [
            lightgbm.LGBMRegressor(n_estimators=count, n_jobs=1, verbose=-1, **settings)
            .fit(x, own)
            .predict(self.features)
            for own in y.T
        ]
        return self.score(np.stack(found, axis=1))

    def figures(self, name: str, x: Any, y: Any, *, soft: bool) -> dict[str, float]:
        """Return the scores of both models by points; trees follow soft labels by the ridge."""
        ridge = KernelRidge(kernel="rbf", alpha=0.1).fit(x, y)
        score = self.score(ridge.predict(self.features))
        if soft:
            x = (x * self.grid).round() / self.grid
            y = ridge.predict(x)
        return {f"{name}, ridge": score, f"{name}, trees": self.trees(x, y)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.suites.distill", description=__doc__)
    parser.add_argument("--site", required=True, choices=SITES)
    name = parser.parse_args(arguments).site
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        document, test, n_rows = divided(site_document(name), SPLIT, folder)
        site = write_site({**document, "distill": {"points": POINTS[-1]}}, folder / "site.yaml")
        program = str(Path(sys.executable).parent / "clustmix")
        used, answer = commanded([program, "release", str(folder / "site.yaml")], folder)
        bundle = folder / "releases" / site.dataset / answer["release_id"]
        judge = Judge(pd.read_parquet(test), schema := site.table_schema)
        released = pd.read_parquet(bundle / "synthetic.parquet")
        published = pd.read_parquet(bundle / "distilled.parquet")
    rows = encode_chunk(released, schema, mend=False)
    many = slice(MOST_CELLS // judge.features.shape[1])
    x, y = encoded(rows.codes[many], schema)[1], np.eye(judge.n)[rows.label[many]]
    figures = {"rows of all": len(x), "all rows, trees": judge.trees(x, y)}
    for n in POINTS:
        made, seconds = published, answer["stage_seconds"]["distill"]
        if n != POINTS[-1]:
            started = time.perf_counter()
            made = distilled(CodedTable(codes=rows.codes, label=rows.label), schema, n)
            seconds = time.perf_counter() - started
        points, soft = np.split(made.to_numpy(np.float64), [-judge.n], axis=1)
        figures |= judge.figures(f"{n} points", points, soft, soft=True)
        figures |= judge.figures(f"{n} random rows", x[:n].astype(np.float64), y[:n], soft=False)
        figures[f"{n} points, seconds"] = round(seconds, 1)
    row = ResultRow(
        dataset=name, method=site.method.kind, analysis="proven", source=BUNDLE, seed=SPLIT,
        epsilon=site.privacy.epsilon, delta=site.privacy.delta, rows=n_rows, figures=figures,
        columns=len(schema.columns), rows_out=len(rows.label),
        settings={"device": jax.default_backend()},
        wall_seconds=round(used.wall_seconds, 1),
    )  # fmt: skip
    print(json.dumps(asdict(row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
