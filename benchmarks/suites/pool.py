"""Pools of parts against one release of all their patients, of hospitals, and under attack.

``whole`` is one release of all patients at mu / sqrt(T), ``all`` one at mu, ``part`` a part alone.
Parts are random, or differ: two halves by age, or 80 and 20 %. The attack guesses canaries of one
part of four from the noisy counts of the pool. Draws have no seed, splits have.

``python -m benchmarks.suites.pool --dataset D --parts T [--differ age | size] --draw N``
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pandas as pd

import clustmix
from audits.planted import PlantedTable
from audits.whole_release import judge_scores
from benchmarks.jobs import run
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.score import score
from benchmarks.tables import read_table, site_document, split, write_site
from privacy.calibration import affordable_epsilon, release_mu
from privacy.parameters import Adjacency, PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from tasks.ingest.encoding import domain_of
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.method import measure
from tasks.measurement.pooled_sums import part_of, sums_of
from tasks.methods.clustmix.records.table_layout import LABEL_COUNTS
from tasks.methods.clustmix.table_clustmix import TableClustMix

DELTA, ROWS, EPSILON, PARTS, CANARIES = 1e-6, 100_000, 1.0, 4, 1_000
HOSPITALS, CANARY_TABLE = "heart-disease-uci", "canaries"


def tables(name: str, seed: int) -> tuple[clustmix.Schema, dict[str, Any], pd.DataFrame, Any]:
    """Return the schema, the unit, and the training and held-out rows of a table."""
    with tempfile.TemporaryDirectory() as folder:
        site = write_site(site_document(name), Path(folder) / "site.yaml")
    train, test = split(read_table(site), site, seed)
    schema = clustmix.Schema.model_validate(site.table_schema.model_dump(mode="json"))
    unit = {"patient_column": site.unit.column, "max_rows_per_patient": site.unit.max_rows}
    return schema, unit, train, test


def scored(model: clustmix.Synthesizer, test: pd.DataFrame) -> dict[str, float]:
    """Judge rows of a model by real ones, as those of a bundle are judged."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model.sample(ROWS).to_parquet(folder / "synthetic.parquet", index=False)
        (folder / "schema.json").write_text(model.schema.model_dump_json(), encoding="utf-8")
        test.to_parquet(folder / "test.parquet", index=False)
        found = score(folder, folder / "test.parquet")
    return {name: found[name] for name in ("auc", "log_loss", "tvd_1way", "tvd_2way")}


def fitted(
    schema: clustmix.Schema, rows: pd.DataFrame, epsilon: float, unit: Any, parts: int = 1
) -> Any:
    """Measure rows with ClustMix, which is told their number in two digits."""
    column = unit["patient_column"]
    size = int(float(f"{rows[column].nunique() if column else len(rows):.2g}"))
    given = {**unit, "epsilon": epsilon, "delta": DELTA, "patients": size, "parts": parts}
    return clustmix.ClustMix(schema, **given).fit(rows)


def places_of(keys: pd.Series, rows: pd.DataFrame, parts: int, differ: str, seed: int) -> Any:
    """Return the part of each row; all rows of a patient are in one part."""
    numbers, names = pd.factorize(keys)
    if differ == "age":
        age = pd.Series(pd.factorize(rows["age"], sort=True)[0]).groupby(numbers).first()
        return (age.rank(method="first") > len(age) / 2).astype(int).to_numpy()[numbers]
    shares = [0.8, 0.2] if differ == "size" else None
    return np.random.default_rng(seed).choice(parts, len(names), p=shares)[numbers]


def parts_of(name: str, parts: int, differ: str, seed: int) -> dict[str, float]:
    """Compare a pool of parts of patients with all of them, and with the last part."""
    schema, unit, train, test = tables(name, seed)
    column = unit["patient_column"]
    keys = train[column] if column else pd.Series(range(len(train)))
    place = places_of(keys, train, parts, differ, seed)
    each = [fitted(schema, train[place == t], EPSILON, unit, parts) for t in range(parts)]
    began = perf_counter()
    models = {"pool": clustmix.pool(each, disjoint=True)}
    seconds = perf_counter() - began
    models["part"] = fitted(schema, train[place == parts - 1], EPSILON, unit)
    rho = Decimal(each[0].guarantee_.rho / parts).quantize(Decimal("1e-12"))
    less = affordable_epsilon(rho, delta=DELTA, adjacency=Adjacency.ADD_REMOVE)
    for kind, epsilon in (("whole", less), ("all", EPSILON)):
        models[kind] = fitted(schema, train, epsilon, unit)
    found = {f"{kind}_{of}": v for kind, m in models.items() for of, v in scored(m, test).items()}
    return {**found, "pool_seconds": seconds}


def hospitals(seed: int) -> dict[str, float]:
    """AUC in each hospital's held-out patients: alone, pooled, and all rows in one place."""
    schema, unit, train, test = tables(HOSPITALS, seed)
    alone = {name: fitted(schema, rows, EPSILON, unit) for name, rows in train.groupby("hospital")}
    each = [
        fitted(schema, rows, EPSILON, unit, len(alone)) for _, rows in train.groupby("hospital")
    ]
    both = {"pool": clustmix.pool(each, disjoint=True), "all": fitted(schema, train, EPSILON, unit)}
    return {
        f"{kind}_{name}": scored(model, rows)["auc"]
        for name, rows in test.groupby("hospital")
        for kind, model in {"alone": alone[name], **both}.items()
    }


def drawn_from(method: TableClustMix, rows: EncodedRows, *, mu: float) -> tuple[Any, Any, Any]:
    """Measure rows; return the plan, the released arrays and the sums."""
    drawn: dict[str, Any] = {}
    noise, seal, plan = OperatingSystemNoise(), drawn.__setitem__, method.plan(mu=mu)
    released = measure(method, Curator(plan=plan, shards=[rows], noise_source=noise, seal=seal))
    return plan, released, sums_of(plan, {name: one.values for name, one in drawn.items()})  # noqa: PD011


def as_part(method: TableClustMix, plan: Any, released: Any, sums: Any) -> Any:
    """Return a measurement as a part of a pool."""
    return part_of(method, plan, released, sums=sums, events=plan.event.events)


def mu_of(epsilon: float) -> float:
    """Budget of a release."""
    asked = PrivacyParameters(epsilon=epsilon, delta=DELTA)
    return release_mu(asked, adjacency=Adjacency.ADD_REMOVE)


def attacked() -> dict[str, float]:
    """Guess the canaries of the first part of a pool by their codes in its counts by label."""
    rng, domain, mu = np.random.default_rng(), domain_of(tables("adult", 0)[0]), mu_of(EPSILON)
    size = {"canaries": CANARIES, "others": CANARIES}
    method = TableClustMix(replace(domain, parts=PARTS))
    planted = [PlantedTable.draw(domain, named=False, **size, rng=rng) for _ in range(PARTS)]
    rows = [table.encoded().only(table.present) for table in planted]
    pooled = method.pooled([as_part(method, *drawn_from(method, one, mu=mu)) for one in rows])
    counts = pooled[1][f"sum_{LABEL_COUNTS}"][:, 1:]
    codes, own = (of[:CANARIES] for of in (planted[0].codes, planted[0].labels))
    scores = counts[own[:, None], domain.one_hot_offsets[:-1] + codes].sum(axis=1)
    found = judge_scores(scores, planted[0].included, delta=DELTA, confidence=0.95)
    shown = {"any": found.epsilon_any, "gdp": found.epsilon_gdp, "independent": found.epsilon}
    right = found.correct / CANARIES
    return {f"epsilon_{of}": value for of, value in shown.items()} | {"right_guesses": right}


def made_row(name: str, epsilon: float, seed: int, **more: Any) -> ResultRow:
    """Return a row of these settings and figures."""
    figures = {of: round(float(value), 5) for of, value in more.pop("figures").items()}
    usual: dict[str, Any] = {"method": "clustmix", "analysis": "proven", "delta": DELTA}
    usual |= {"epsilon": epsilon, "seed": seed, "source": IN_PROCESS}
    return ResultRow(dataset=name, figures=figures, **usual, **more)


def row_of(
    dataset: str, parts: int = PARTS, differ: Literal["", "age", "size"] = "", seed: int = 0
) -> ResultRow:
    """Make the row of a table in parts, of the hospitals or of the canaries."""
    if dataset == HOSPITALS:
        figures = hospitals(seed)
    else:
        is_attack = dataset == CANARY_TABLE
        figures = attacked() if is_attack else parts_of(dataset, parts, differ, seed)
    settings = {"parts": parts, "differ": differ}
    return made_row(dataset, EPSILON, seed, settings=settings, figures=figures)


if __name__ == "__main__":
    run(row_of)
