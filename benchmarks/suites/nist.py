"""NIST Diverse Communities, national 2019: ClustMix and others, scored by NIST's own program.

One fit measures all 27,253 rows and makes as many, which `sdnist` scores in an environment of its
own; where the score is by area, also of 250,000, as a release has. The ten features are those of
NIST's reports on AIM and MST, 21 are all but the weights and the industry code. With ``--rules``
the schema of ``nist-national2019.yaml`` has its constraints, in their order, as far as the columns
that they connect have no more combinations than a release takes. Draws have no seed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

import numpy as np
import pandas as pd

import clustmix
from benchmarks import peers
from benchmarks.jobs import run
from benchmarks.results import IN_PROCESS, PEER, ResultRow
from benchmarks.tables import data_place, site_document
from privacy.errors import ConfigurationError
from privacy.mechanisms import NoisyStatistic
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from privacy.randomness import OperatingSystemNoise
from tasks.ingest.encoding import domain_of
from tasks.ingest.patient_rows import encoded_shards
from tasks.measurement.curator import Curator
from tasks.measurement.method import checked_plan, measure
from tasks.measurement.record_rules import LABEL
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.clustmix.tables.mixture import Effort

SITE, DATA = "nist-national2019", "nist_diverse_communities"
TEN = tuple("AGEP SEX MSP RAC1P HOUSING_TYPE OWN_RENT EDU PINCP_DECILE DVET DEYE".split())
LEFT_OUT_OF_21 = ("INDP", "PWGTP", "WGTP")
METHODS = {"clustmix": clustmix.ClustMix, "naive_bayes": clustmix.NaiveBayes}
DELTA = 1e-5
N_ROWS, MORE_ROWS = 27_253, 250_000
"""Records of the excerpts, and rows that a release has if its site file names no number."""


def schema_of(features: int, *, rules: bool) -> clustmix.Schema:
    """Return the declared table of ten, 21 or all features.

    The label, which ClustMix measures with every column, is the area, and income where that is not
    among the features.
    """
    declared = site_document(SITE)["schema"]
    columns = {column["name"]: column for column in declared["columns"]}
    label = area = declared["label"]
    kept = {10: TEN, 21: [n for n in columns if n not in LEFT_OUT_OF_21]}.get(features, columns)
    if features == 10:
        levels = columns["PINCP_DECILE"]["levels"]
        named = [{"name": str(level), "values": []} for level in levels]
        label = {"name": "PINCP_DECILE", "levels": named}
    names = {*kept, label["name"]}
    declared |= {
        "columns": [columns[name] for name in kept if name != label["name"]],
        "label": label,
        "ignore": sorted({*columns, area["name"]} - names),
    }
    constraints = declared.pop("constraints")
    for constraint in constraints if rules else ():
        one = dict(constraint)
        if "then" in one:
            one["then"] = {k: v for k, v in one["then"].items() if k in names}
        longer = {**declared, "constraints": [*declared.get("constraints", ()), one]}
        # Refused are other columns, and too many combinations of those that are connected.
        with suppress(ConfigurationError):
            domain_of(clustmix.Schema.model_validate(longer))
            declared = longer
    return clustmix.Schema.model_validate(declared)


def of_method(
    method: str, schema: clustmix.Schema, epsilon: float, rows: pd.DataFrame
) -> tuple[list[pd.DataFrame], dict[str, Any]]:
    wall, cpu = perf_counter(), process_time()
    patients = site_document(SITE)["patients"]
    model = METHODS[method](schema, epsilon=epsilon, delta=DELTA, patients=patients)
    made = [model.fit(rows).sample(len(rows))]
    used = {"wall_seconds": perf_counter() - wall, "cpu_seconds": process_time() - cpu}
    if "PUMA" in schema.released_columns:
        made.append(model.sample(MORE_ROWS))
    return made, {name: round(seconds, 3) for name, seconds in used.items()}


def measured_tables(schema: clustmix.Schema, epsilon: float, rows: pd.DataFrame) -> dict[str, Any]:
    """Measure the tables of ClustMix, by its plan; return them as `peer_programs` reads them.

    The rest of the plan is drawn as well, and its fit is cut short, as nobody uses it.
    """
    domain = replace(domain_of(schema), patients=site_document(SITE)["patients"])
    method = TableClustMix(domain, Effort(starts=1, steps=1))
    parameters = PrivacyParameters(epsilon=epsilon, delta=DELTA)
    plan = checked_plan(method, parameters=parameters, adjacency=Adjacency.ADD_REMOVE)
    sealed: dict[str, NoisyStatistic] = {}
    unit = PrivacyUnit(column=None, max_rows=1)
    shards = encoded_shards(rows[list(schema.released_columns)], schema, unit)
    noise, seal = OperatingSystemNoise(), sealed.__setitem__
    curator = Curator(plan=plan, shards=shards, noise_source=noise, seal=seal)
    released = measure(method, curator)

    def noisy(name: str) -> tuple[Any, float]:
        planned = plan[name]
        values = sealed[name].values  # noqa: PD011, no frame
        return values / planned.scale, planned.noise_stddev / planned.scale

    patients, tables = method.tables(released, noisy)
    n_codes = (*domain.n_codes, domain.n_labels)
    measured: list[Any] = [table for table in tables if table.stddevs is not None]
    arrays: dict[str, Any] = {}
    for place, table in enumerate(measured):
        columns = [len(n_codes) - 1 if column == LABEL else column for column in table.columns]
        arrays |= {
            f"columns_{place}": np.array(columns),
            f"counts_{place}": table.estimates * patients,
            f"noise_{place}": np.sqrt((table.stddevs**2).mean()) * patients,
        }
        for side, (column, groups) in enumerate(zip(columns, table.groups, strict=True)):
            joins = np.zeros((len(groups), n_codes[column]))
            for group, codes in enumerate(groups):
                joins[group, list(codes)] = 1.0
            arrays[f"joins_{place}_{side}"] = joins
    return arrays


def scored(folder: Path, made: Iterable[pd.DataFrame]) -> dict[str, float]:
    words = ["benchmarks.suites.sdnist_scores", str(data_place(DATA))]
    for place, rows in enumerate(made):
        words.append(str(folder / f"made{place}.csv"))
        rows.astype(object).where(rows.notna(), "N").to_csv(words[-1], index=False)
    said, _ = peers.run_program("sdnist", words)
    return {name: round(value, 5) for name, value in json.loads(said.splitlines()[-1]).items()}


def row_of(
    features: Literal[10, 21, 24], method: str, epsilon: float, seed: int, rules: bool = False
) -> ResultRow:
    """Make rows by one method and score them; with the constraints of the schema if asked for."""
    rows = pd.read_csv(data_place(DATA) / "national2019.csv", dtype=str, keep_default_na=False)
    schema, own = schema_of(features, rules=rules), method in METHODS
    with tempfile.TemporaryDirectory(prefix="clustmix-nist-") as name:
        if own:
            made, used = of_method(method, schema, epsilon, rows)
        else:
            tables = measured_tables(schema, epsilon, rows) if method == "mbi" else None
            one, used = peers.made_by(
                method, schema, rows, Path(name), n_rows=len(rows), epsilon=epsilon, delta=DELTA,
                tables=tables,
            )  # fmt: skip
            made = [one]
        figures = scored(Path(name), made)
    return ResultRow(
        dataset=SITE, method=method, analysis="proven" if own or method == "mbi" else "stated",
        epsilon=epsilon, delta=DELTA, seed=seed, source=IN_PROCESS if own else PEER, rows=N_ROWS,
        columns=features, rows_out=N_ROWS, settings={"features": features, "rules": rules},
        figures=figures, **used,
    )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
