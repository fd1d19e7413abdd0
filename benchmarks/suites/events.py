"""Histories of patients: ClustMix with a table of events, against people who are held out.

``python -m benchmarks.suites.events --dataset D --method M --epsilon E --draw N`` prints one row.
Laboratory values of the fatty liver cohort (`nafld`), and its diagnoses (`nafld-diagnoses`): steps
of the method were chosen on split 0 of both, and how a history ends on split 0 of routine tests of
intensive care (`physionet2012-labs`). Nothing was chosen on stays of diabetic inpatients
(`diabetes130-stays`). ``events.yaml`` declares all of them. Everything runs in this process with
the noise of the operating system.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.bundle_rows import table_view
from benchmarks.jobs import run
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.score import TREES, fitted, predicted
from benchmarks.tables import data_place, site_document
from clustmix import ClustMix, Schema
from storage.public_data.datasets import find
from storage.schema.table import TableSchema
from tasks.histories.event_frames import coded_events, event_release, events_of
from tasks.ingest.encoding import domain_of, encode_chunk
from tasks.methods.clustmix.events.event_domain import EventDomain, Events, first_events

DELTA, TEST = 1e-6, 0.25
STAYS, READMISSION = "diabetes130-stays", "diabetes130-readmission"


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Codes of people (n, d), their labels, and their events."""

    codes: Any
    label: Any
    events: Events


def declared(name: str) -> tuple[Schema, int]:
    """Return the declaration of a table, and its public number of patients."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    given = yaml.safe_load(text)[name]
    site = site_document(given["like"])["schema"]["columns"] if "like" in given else []
    of, events, bins = (
        {one["name"]: one for one in site},
        given["events"],
        ("lower", "upper", "bins", "decimals"),
    )
    for part in (given, events):
        part["columns"] = [of[one] if isinstance(one, str) else one for one in part["columns"]]
    for kind, one in events.get("values", {}).items():
        own = of[one] if isinstance(one, str) else one
        events["values"][kind] = {key: own[key] for key in bins if key in own}
    schema = Schema(columns=given["columns"], label=given["label"], events=[events])
    return schema, given["patients"]


def frames(name: str, schema: Schema) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the declared columns of people, and of their events."""
    [table] = schema.events
    if name == STAYS:
        events = pd.read_parquet(find("diabetes130")).sort_values("encounter_id")
        events["day"] = events.groupby(table.key).cumcount()
        people = events.drop_duplicates(table.key)
        people = people[people["gender"] != "Unknown/Invalid"]
    elif name.startswith("nafld"):
        folder, number = data_place("nafld"), 2 if name == "nafld" else 3
        people = pd.read_parquet(folder / "nafld1.parquet")
        events = pd.read_parquet(folder / f"nafld{number}.parquet")
    else:
        people, parts = pd.read_parquet(find("physionet2012")), []
        for test, (day, end) in product(table.kinds, enumerate(("first", "last"))):
            some = people[people[f"{test}_count"] > day]
            part = {"day": day, "test": test, "value": some[f"{test}_{end}"]}
            parts.append(pd.DataFrame({table.key: some[table.key], **part}))
        events = pd.concat(parts)
    events = events[events[table.key].isin(people[table.key])]
    own = [table.key, *schema.released_columns]
    return people[own], events[[table.key, *table.measured_columns]]


def coded(schema: Schema, domain: EventDomain, people: pd.DataFrame, table: pd.DataFrame) -> Cohort:
    """Code people and their events as declared."""
    [events], chunk = schema.events, encode_chunk(people, schema)
    rows, day = coded_events(events, domain, table)
    names, keys = (one[events.key].astype(str).to_numpy(str) for one in (people, table))
    days = np.tile((0.0, -np.inf, np.inf), (len(names), 1))  # moments are days, without ends
    found, ties, _ = events_of((keys, rows.codes, day), names.tolist(), days)
    return Cohort(codes=chunk.codes, label=chunk.label, events=first_events(domain, found, ties))


def counted(domain: EventDomain, some: Cohort) -> dict[str, Any]:
    """Count numbers, gaps and codes, and codes of an event with those of the one before."""
    events, c, n, size = some.events, len(domain.places), len(domain.n_values), len(some.codes)
    later, code = events.rank > 0, events.codes[:, 0]
    kind = domain.kind_of[code]
    own = np.lexsort((kind, events.patient))
    same = np.flatnonzero(np.diff(events.patient[own] * n + kind[own]) == 0)
    gaps = np.searchsorted(domain.gaps, np.diff(events.moment, prepend=0.0)[later], side="right")
    number = np.bincount(events.patient, minlength=size)
    found = {
        "code": code,
        "code_to_code": (np.roll(code, 1) * c + code)[later],
        "kind_to_kind": (np.roll(kind, 1) * n + kind)[later],
        "number": np.searchsorted(domain.fewest, number, side="right"),
        "gap": gaps,
        "kinds": np.bincount(np.unique(events.patient * n + kind) // n, minlength=size),
        "age_and_code": some.codes[events.patient, 0] * c + code,
    }
    before, after = code[own][same], code[own][same + 1]
    for k in range(n):
        mine = kind[own][same] == k
        found[f"value_{k}"] = (before * c + after)[mine]
    return {name: np.bincount(one, minlength=c * max(c, 13)) for name, one in found.items()}


def lessons(domain: EventDomain, made: Cohort, held: Cohort, own: int) -> float:
    """Return the AUC on held-out people of their deaths by aggregates of events, and own columns.

    Aggregates are number, mean, largest and last value of each kind of events.
    """
    tables = []
    for one in (made, held):
        code, n_kinds = one.events.codes[:, 0], len(domain.n_values)
        kind = domain.kind_of[code]
        group, value = one.events.patient * n_kinds + kind, pd.Series(code - domain.starts[kind])
        found = value.groupby(group).agg(["size", "mean", "max", "last"])
        found = found.reindex(range(len(one.codes) * n_kinds)).fillna({"size": 0})
        table = found.to_numpy(float).reshape(len(one.codes), -1)
        tables.append(np.hstack([table, one.codes[:, :own]]))
    steps = SimpleImputer(add_indicator=True), StandardScaler()
    model = make_pipeline(*steps, LogisticRegression(C=0.1, max_iter=300))
    scores = model.fit(tables[0], made.label).predict_proba(tables[1])[:, 1]
    return float(roc_auc_score(held.label, scores))


def figures(domain: EventDomain, made: Cohort, held: Cohort) -> dict[str, float]:
    """Return distances of a release to people who are held out, and the AUC that it teaches."""
    ours, theirs = counted(domain, made), counted(domain, held)
    found = {
        name: float(0.5 * np.abs(one / max(one.sum(), 1) - theirs[name] / theirs[name].sum()).sum())
        for name, one in ours.items()
        if theirs[name].any()
    }
    values = {name: found.pop(name) for name in list(found) if name.startswith("value_")}
    kinds = np.bincount(domain.kind_of[held.events.codes[:, 0]])[[int(name[6:]) for name in values]]
    if values:
        found["value_to_value"] = float(np.average(list(values.values()), weights=kinds))
    for name, some in (("first_to_last", made), ("first_to_last_real", held)):
        first = some.events.only(some.events.codes[:, 0] < domain.n_values[0])
        ends = pd.Series(first.codes[:, 0]).groupby(first.patient).agg(["first", "last", "size"])
        if max(domain.n_values) > 1:
            found[name] = np.corrcoef(ends[ends["size"] > 1][["first", "last"]].T)[0, 1]
    patient, moment = made.events.patient, made.events.moment
    return {
        **found,
        "auc": lessons(domain, made, held, 0),
        "auc_age_sex": lessons(domain, made, held, 2),
        "orphans": float((patient >= len(made.codes)).sum()),
        "disorder": float(((np.diff(moment) < 0) & (np.diff(patient) == 0)).sum()),
    }


def readmission(stays: pd.DataFrame, held: pd.DataFrame) -> float:
    """Return the AUC on held-out stays of a model of released ones, as of the flat release."""
    schema = TableSchema(**site_document(READMISSION)["schema"]).model_dump(mode="json")
    made, real = (table_view(table, schema) for table in (stays, held))
    scores = predicted(fitted(made, TREES), made, real, n_labels=2)[:, 0]
    return float(roc_auc_score(real.label == 0, scores))


def row_of(
    dataset: Literal["nafld", "nafld-diagnoses", "physionet2012-labs", "diabetes130-stays"],
    method: Literal["clustmix", "flat", "real"] = "clustmix",
    epsilon: float = 1.0,
    seed: int = 0,
) -> ResultRow:
    """Make the row of a split; of real people, those that a release reads against the others.

    Flat are as many stays of a release of stays as rows, for their readmission.
    """
    (schema, patients), noisy = declared(dataset), method != "real"
    [table], (people, events) = schema.events, frames(dataset, schema)
    people, key = people.sample(frac=1.0, random_state=seed), table.key
    cut = int(TEST * len(people))
    held, train = (
        (one, events[events[key].isin(one[key])]) for one in (people[:cut], people[cut:])
    )
    made, started, found = train, time.monotonic(), dict[str, float]()
    target: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "patients": patients}
    if method == "flat":
        flat = Schema(**{**site_document(READMISSION)["schema"], "ignore": ["day"]})
        model = ClustMix(flat, patient_column=key, max_rows_per_patient=5, **target)
        made = train[0], model.fit(train[1].merge(train[0])).sample(len(train[1]))
    elif noisy:
        model = ClustMix(schema, patient_column=key, **target)
        model.fit(train[0], events={table.name: train[1]})
        made = tuple(model.sample(len(train[0])).values())
    seconds = round(time.monotonic() - started, 2)
    if method != "flat":
        domain = event_release(schema, schema.events, domain_of(schema)).tables[table.name]
        found = figures(domain, *(coded(schema, domain, *one) for one in (made, held)))
    if dataset == STAYS:
        stays = made[1] if method == "flat" else made[1].merge(made[0])
        found = {name: one for name, one in found.items() if not name.startswith("auc")}
        found["auc_readmission"] = readmission(stays, held[1].merge(held[0]))
    return ResultRow(
        dataset=dataset, method=method, analysis="proven" if noisy else "none",
        epsilon=epsilon if noisy else None, delta=DELTA if noisy else None,
        seed=seed, source=IN_PROCESS, rows=len(train[0]), rows_out=len(made[0]),
        wall_seconds=seconds, peak_rss_mib=getrusage(RUSAGE_SELF).ru_maxrss / 1024,
        figures={name: round(float(value), 5) for name, value in found.items()},
    )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
