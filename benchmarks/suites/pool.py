"""Pools: T parts against one release of all, hospitals of heart disease.

``python -m benchmarks.suites.pool --dataset adult --parts 4 --draw 0`` prints one row; so does
``--hospitals 0``. Draws have no seed, splits have.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from time import perf_counter
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import clustmix
from benchmarks.marginal_distance import marginal_distance
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.tables import read_table, site_document, split, write_site
from privacy.calibration import affordable_epsilon
from privacy.parameters import Adjacency
from tasks.ingest.encoding import encode_chunk

DELTA, ROWS, EPSILON = 1e-6, 100_000, 1.0


def jobs() -> list[Any]:
    """Return the jobs."""
    from benchmarks.jobs import Job

    asked: list[tuple[str, ...]] = []
    for draw in ("0", "1", "2"):
        for parts in ("2", "4", "12"):
            for name in ("adult", "diabetes130-readmission"):
                asked.append(("--dataset", name, "--parts", parts, "--draw", draw))
    asked += [("--hospitals", str(draw)) for draw in range(3)]
    return [Job(suite="pool", command=("benchmarks.suites.pool", *words)) for words in asked]


def _tables(
    name: str, seed: int
) -> tuple[clustmix.Schema, dict[str, Any], pd.DataFrame, pd.DataFrame]:
    with tempfile.TemporaryDirectory() as folder:
        site = write_site(site_document(name), Path(folder) / "site.yaml")
    train, test = split(read_table(site), site, seed)
    schema = clustmix.Schema.model_validate(site.table_schema.model_dump(mode="json"))
    unit = {"patient_column": site.unit.column, "max_rows_per_patient": site.unit.max_rows}
    return schema, unit, train, test


def _scored(model: clustmix.Synthesizer, test: pd.DataFrame) -> dict[str, float]:
    """AUC of a classifier trained on codes of a model, and distances, on real rows."""
    schema, rng = model.schema, np.random.default_rng(0)
    codes, label = model._bound().sample(model.released_, n_rows=ROWS, rng=rng)
    real = encode_chunk(test.reset_index(drop=True), schema)
    trees = lightgbm.LGBMClassifier(n_estimators=100, random_state=0, verbose=-1, n_jobs=1)
    found = np.asarray(trees.fit(codes, label).predict_proba(real.codes))
    several = found.shape[1] > 2
    auc = roc_auc_score(real.label, found if several else found[:, 1], multi_class="ovr")
    widths = [*(column.n_codes for column in schema.columns), len(schema.label.level_names)]
    made, true = (np.column_stack(one) for one in ((codes, label), (real.codes, real.label)))
    distance = marginal_distance(made, true, widths)
    return {"auc": auc, "tvd_1way": distance.one_way, "tvd_2way": distance.two_way}


def _model(schema: clustmix.Schema, patients: int, **settings: Any) -> clustmix.ClustMix:
    size = int(float(f"{patients:.2g}"))
    return clustmix.ClustMix(schema, delta=DELTA, patients=size, **settings)


def parts_of(name: str, parts: int, seed: int) -> ResultRow:
    """Compare a pool of parts of patients with all at mu / sqrt(T), and with one part."""
    schema, unit, train, test = _tables(name, seed)
    key = train[unit["patient_column"]] if unit["patient_column"] else pd.Series(range(len(train)))
    place = np.random.default_rng(seed).integers(0, parts, key.nunique())[pd.factorize(key)[0]]
    size = key.nunique() // parts
    each = [
        _model(schema, size, epsilon=EPSILON, **unit).fit(train[place == t]) for t in range(parts)
    ]
    began = perf_counter()
    pooled = clustmix.pool(each, disjoint=True)
    seconds = perf_counter() - began
    rho = Decimal(each[0].guarantee_.rho / parts).quantize(Decimal("1e-12"))
    less = affordable_epsilon(rho, delta=DELTA, adjacency=Adjacency.ADD_REMOVE)
    whole = _model(schema, key.nunique(), epsilon=less, **unit).fit(train)
    figures = {
        f"{kind}_{name}": round(value, 5)
        for kind, model in (("pool", pooled), ("whole", whole), ("part", each[0]))
        for name, value in _scored(model, test).items()
    }
    return _row(name, seed, {"parts": parts}, figures | {"pool_seconds": round(seconds, 1)})


def hospitals(seed: int) -> ResultRow:
    """AUC in each hospital's held-out patients: alone, pooled, and all rows in one place."""
    schema, unit, train, test = _tables("heart-disease-uci", seed)
    figures = {}
    names = sorted(train["hospital"].unique())
    alone = [
        _model(schema, int((train["hospital"] == one).sum()), epsilon=EPSILON, **unit).fit(
            train[train["hospital"] == one]
        )
        for one in names
    ]
    pooled = clustmix.pool(alone, disjoint=True)
    everything = _model(schema, len(train), epsilon=EPSILON, **unit).fit(train)
    for name, own in zip(names, alone, strict=True):
        held_out = test[test["hospital"] == name]
        for kind, model in (("alone", own), ("pool", pooled), ("all", everything)):
            figures[f"{kind}_{name}"] = round(_scored(model, held_out)["auc"], 5)
    return _row("heart-disease-uci", seed, {"hospitals": len(names)}, figures)


def _row(name: str, seed: int, settings: dict[str, Any], figures: dict[str, float]) -> ResultRow:
    return ResultRow(
        dataset=name,
        method="clustmix",
        analysis="proven",
        epsilon=EPSILON,
        delta=DELTA,
        seed=seed,
        source=IN_PROCESS,
        settings=settings,
        figures=figures,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and print its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="")
    for name in ("--parts", "--draw", "--hospitals"):
        parser.add_argument(name, type=int)
    asked = parser.parse_args(arguments)
    if asked.hospitals is None:
        row = parts_of(asked.dataset, asked.parts, asked.draw)
    else:
        row = hospitals(asked.hospitals)
    print(json.dumps(asdict(row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
