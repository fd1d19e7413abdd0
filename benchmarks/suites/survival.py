"""A time to an event: Kaplan-Meier curves and a Cox model, of releases, naive Bayes and real rows.

``curve_error`` is the largest distance of the curve of the rows that were made to that of their
source, also in two groups; ``concordance`` (Harrell 1982) that of their Cox model on held-out rows.

``python -m benchmarks.suites.survival --dataset D --method M [--epsilon E] --split N``
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.releases import REAL, Run, main, released
from benchmarks.results import ResultRow
from benchmarks.tables import divided, read_table, site_document, write_site
from storage.schema.columns import NumericColumn
from storage.schema.table import TableSchema
from tasks.ingest.encoding import encode_chunk, label_codes

GROUPS = {"rotterdam-survival": "grade", "flchain-survival": "sex", "nafld-survival": "male"}
FEW, STEPS, RIDGE = 10, 15, 1.0
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def kaplan_meier(times: Floats, died: Bools, places: Floats) -> Floats:
    moments, own = np.unique(times, return_inverse=True)
    at_risk = np.bincount(own)[::-1].cumsum()[::-1]
    curve = np.append(1.0, np.cumprod(1.0 - np.bincount(own, weights=died) / at_risk))
    return curve[np.searchsorted(moments, places, side="right")]


def cox(features: Floats, times: Floats, died: Bools) -> Floats:
    """Return the coefficients of the largest partial likelihood, with a small ridge."""
    order = np.argsort(-times)
    x, own = features[order], -times[order]
    last = np.searchsorted(own, own, side="right") - 1
    events, beta = np.flatnonzero(died[order]), np.zeros(features.shape[1])
    for _ in range(STEPS):
        weights = np.exp(np.clip(x @ beta, -20.0, 20.0))
        total = weights.cumsum()[last][events]
        means = (weights[:, None] * x).cumsum(axis=0)[last][events] / total[:, None]
        hazard = np.bincount(last[events], weights=1.0 / total, minlength=len(x))
        own_risk = (weights * hazard[::-1].cumsum()[::-1])[:, None]
        curvature = (x * own_risk).T @ x - means.T @ means + RIDGE * np.eye(len(beta))
        step = np.linalg.solve(curvature, (x[events] - means).sum(axis=0) - RIDGE * beta)
        beta += step / max(1.0, np.abs(step).max())
    return beta


def concordance(scores: Floats, times: Floats, died: Bools) -> float:
    found = pairs = 0.0
    for own, time in zip(scores[died], times[died], strict=True):
        others = scores[(times > time) | ((times == time) & ~died)]
        found += (others < own).sum() + 0.5 * (others == own).sum()
        pairs += len(others)
    return found / pairs


def features_of(frame: pd.DataFrame, schema: TableSchema) -> Floats:
    """Return numbers of bins, and indicators of levels and missing cells."""
    parts: list[Floats] = []
    for column, codes in zip(schema.columns, encode_chunk(frame, schema).codes.T, strict=True):
        known = np.eye(column.n_codes)[codes]
        if isinstance(column, NumericColumn):
            n = column.n_bins
            known = np.column_stack([codes * (codes < n), known[:, n:]])
        parts.append(known[:, known.sum(axis=0) > FEW])
    return np.hstack(parts)


def outcome_of(frame: pd.DataFrame, schema: TableSchema) -> tuple[Floats, Bools]:
    """Return times up to the last edge, and a mask of events before it."""
    outcome, time = schema.all_labels
    censored = outcome.level_names.index(schema.labels.parts[outcome.name][-1])
    end = time.number.upper if time.number else np.inf
    times = pd.to_numeric(frame[time.name].astype("string")).to_numpy(np.float64)
    died = label_codes(frame[outcome.name], outcome, []) != censored
    return np.minimum(times, end), died & (times < end)


def figures(
    made: pd.DataFrame, train: pd.DataFrame, test: pd.DataFrame, schema: TableSchema, group: str
) -> dict[str, float]:
    both, n = features_of(pd.concat([made, test]).astype("string"), schema), len(made)
    both = (both - both[:n].mean(axis=0)) / np.maximum(both[:n].std(axis=0), 1e-9)
    scores = both[n:] @ cox(both[:n], *outcome_of(made, schema))
    found = {"concordance": concordance(scores, *outcome_of(test, schema))}
    for level in ("", *sorted(train[group].astype(str).value_counts().index[:2])):
        parts = (one[one[group].astype(str) == level] if level else one for one in (train, made))
        real, own = (outcome_of(part, schema) for part in parts)
        places = np.unique(np.append(real[0], own[0]))
        apart = kaplan_meier(*real, places) - kaplan_meier(*own, places)
        found["curve_error" + f", {group} = {level}" * bool(level)] = float(np.abs(apart).max())
    return {name: round(value, 5) for name, value in found.items()}


def row_of(run: Run) -> ResultRow:
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder, facts = Path(name), REAL
        document, test, rows = divided(run.changed(site_document(run.dataset)), run.seed, folder)
        site = write_site(document, folder / "site.yaml")
        train = made = read_table(site)
        if run.method != "real":
            bundle, facts = released(site, folder, run)
            made = pd.read_parquet(bundle / "synthetic.parquet")
        found = figures(made, train, pd.read_parquet(test), site.table_schema, GROUPS[run.dataset])
        return ResultRow(
            dataset=site.dataset, method=run.method, seed=run.seed, rows=rows,
            columns=len(site.columns_to_read), rows_out=len(made), figures=found, **facts,
        )  # fmt: skip


if __name__ == "__main__":
    main(row_of)
