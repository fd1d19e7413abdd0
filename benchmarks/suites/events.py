"""Histories of patients: ClustMix with a table of events, against people who are held out.

``python -m benchmarks.suites.events --dataset D --method M --epsilon E --draw N`` prints one row.
Laboratory values of the fatty liver cohort (`nafld`), and its diagnoses (`nafld-diagnoses`): steps
of the method were chosen on split 0 of both. Everything runs in this process with the noise of the
operating system.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from typing import Any, Literal

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.jobs import run
from benchmarks.results import IN_PROCESS, ResultRow
from privacy.calibration import release_mu
from privacy.parameters import Adjacency, PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from storage.public_data.datasets import data_folders
from storage.settings import load_settings
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.method import measure
from tasks.methods.clustmix.events.event_domain import (
    EventDomain,
    Events,
    first_events,
    hidden_codes,
)
from tasks.methods.clustmix.events.event_release import EventRelease

DELTA, TEST = 1e-6, 0.25
LIPIDS, PRESSURES = (30, 35, 40, 45, 50, 55, 60, 70), (100, 110, 120, 130, 140, 150, 160)
TESTS = {"hdl": LIPIDS, "chol": LIPIDS, "sbp": PRESSURES, "dbp": PRESSURES, "smoke": (0.5,),
         "fib4": (0.7, 1.0, 1.3, 1.8, 2.67, 3.25)}  # fmt: skip
DIAGNOSES = ("dyslipidemia", "htn", "nafld", "diabetes", "ang/isc", "stroke", "afib",
             "heart failure", "MI", "cardiac arrest")  # fmt: skip
AGES, WEIGHTS = range(25, 81, 5), (18.5, 22, 25, 27.5, 30, 32.5, 35, 40)
YEARS = (-25, -20, -15, -10, -7, -5, -3, -1, 0, 3, 20)
_TIMES: dict[str, Any] = {"gaps": (0, 1, 31, 91, 181, 366, 731),
                          "offsets": tuple(365.25 * year for year in YEARS)}  # fmt: skip
TABLES = {
    "nafld": EventDomain(n_values=tuple(len(e) + 1 for e in TESTS.values()), most=40, **_TIMES),
    "nafld-diagnoses": EventDomain(n_values=(1,) * len(DIAGNOSES), most=10, **_TIMES),
}
PEOPLE = EncodingDomain(
    column_names=("age", "male", "bmi"), n_codes=(13, 2, 10), has_missing=(False, False, True),
    numeric=(True, False, True), label_levels=("alive", "dead"), patients=13_000,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Codes of people (n, 3), their labels, and their events."""

    codes: Any
    label: Any
    events: Events


def cohort(name: str, people: pd.DataFrame, table: pd.DataFrame) -> Cohort:
    """Code people and their events by public edges."""
    bmi = np.where(people["bmi"].isna(), 9, np.searchsorted(WEIGHTS, people["bmi"], side="right"))
    age = np.searchsorted(AGES, people["age"], side="right")
    place = pd.Series(np.arange(len(people)), index=people["id"])
    table, domain = table[table["id"].isin(people["id"])], TABLES[name]
    kinds = list(TESTS) if name == "nafld" else list(DIAGNOSES)
    kind = table["test" if name == "nafld" else "event"].map(kinds.index).to_numpy()
    value = np.zeros(len(table), dtype=np.int64)
    for index, edges in enumerate(TESTS.values() if name == "nafld" else ()):
        own = kind == index
        value[own] = np.searchsorted(edges, table["value"].to_numpy()[own], side="right")
    own = (domain.starts[kind] + value)[:, None]
    events = Events(place[table["id"]].to_numpy(), table["days"].to_numpy(float), own)
    ties = pd.util.hash_array(value).astype(np.uint64)
    codes = np.stack([age, people["male"], bmi], axis=1).astype(np.uint16)
    kept = first_events(domain, events, ties)
    return Cohort(codes=codes, label=people["status"].to_numpy(np.uint16), events=kept)


def released(domain: EventDomain, real: Cohort, epsilon: float) -> Cohort:
    """Measure a cohort, half of ``mu**2`` for the events, and sample as many people."""
    parameters, n = PrivacyParameters(epsilon=epsilon, delta=DELTA), len(real.codes)
    release = EventRelease(patients=PEOPLE, tables={"events": domain}, shares=[None])
    hidden = hidden_codes(domain, real.events, n_patients=n)
    rows = EncodedRows(
        codes=np.concatenate([real.codes, hidden], axis=1), label=real.label,
        weight=np.ones(n), fold=np.zeros(n, dtype=np.uint8),
    )  # fmt: skip
    records = release.tables_at(1.0)["events"].records(real.events, real.codes)
    plan = release.plan(mu=release_mu(parameters, adjacency=Adjacency.ADD_REMOVE))
    noise, rng = OperatingSystemNoise(), np.random.default_rng()
    beside = {"events": [records]}
    found = measure(release, Curator(plan=plan, shards=[rows], noise_source=noise, beside=beside))
    made = release.of_patients.sample(found, n_rows=n, rng=rng)
    bounds = {"events": np.tile([-np.inf, np.inf], (n, 1))}
    events, label = release.histories(found, made, bounds, rng)
    codes = made[0][:, : PEOPLE.n_columns]
    return Cohort(codes=codes, label=label, events=events["events"])


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


def row_of(
    dataset: Literal["nafld", "nafld-diagnoses"],
    method: Literal["clustmix", "real"] = "clustmix",
    epsilon: float = 1.0,
    seed: int = 0,
) -> ResultRow:
    """Make the row of a split; of real people, those that a release reads against the others."""
    folder, domain = data_folders(load_settings().data_places)[0] / "nafld", TABLES[dataset]
    people = pd.read_parquet(folder / "nafld1.parquet").sample(frac=1.0, random_state=seed)
    table = pd.read_parquet(folder / f"nafld{2 if dataset == 'nafld' else 3}.parquet")
    cut, noisy = int(TEST * len(people)), method != "real"
    held, train = (cohort(dataset, part, table) for part in (people[:cut], people[cut:]))
    started = time.monotonic()
    made = released(domain, train, epsilon) if noisy else train
    seconds = round(time.monotonic() - started, 2)
    return ResultRow(
        dataset=dataset, method=method, analysis="proven" if noisy else "none",
        epsilon=epsilon if noisy else None, delta=DELTA if noisy else None,
        seed=seed, source=IN_PROCESS, rows=len(train.codes), rows_out=len(made.codes),
        wall_seconds=seconds, peak_rss_mib=getrusage(RUSAGE_SELF).ru_maxrss / 1024,
        figures={name: round(value, 5) for name, value in figures(domain, made, held).items()},
    )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
