"""Patients of whom some are canaries: each has a level, which releases by entry count."""

import io
from collections import Counter

import numpy as np
import pandas as pd

from storage.public_data import datasets
from storage.releases.measurements import MeasurementStore, sealed_file
from storage.settings import load_settings
from tasks.measurement.centred import counts_of
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.naive_bayes import HISTOGRAMS

N_CANARIES = 30
LEVELS = ["none", *(f"c{number}" for number in range(N_CANARIES))]
SCHEMA = {
    "columns": [{"name": "who", "kind": "categorical", "levels": LEVELS}],
    "label": {"name": "died", "levels": {"no": ["n"], "yes": ["y"]}, "positive": "yes"},
    "ignore": [],
}
MONTHS = [f"{2023 + place // 12}-{place % 12 + 1:02d}" for place in range(24)]
N_DAYS = 14


def two_years():
    """Return the stays of Diabetes-130 in generated months, and their schema.

    Patients come back, and those who do most often are the canaries.
    """
    table = datasets.find("diabetes130", places=load_settings().data_places)
    stays = pd.read_parquet(table, columns=["patient_nbr", "time_in_hospital", "readmitted"])
    stays = stays.rename(columns={"patient_nbr": "patient", "readmitted": "died"})
    number, names = pd.factorize(stays["patient"])
    often = np.argsort(-np.bincount(number))[:N_CANARIES]
    who = dict(zip(often.tolist(), LEVELS[1:], strict=True))
    month = np.random.default_rng().integers(0, 24, len(names))[number]
    month = np.minimum(23, month + stays.groupby("patient").cumcount())
    stays["admitted"] = [f"{MONTHS[place]}-15" for place in month]
    stays["who"] = [who.get(one, "none") for one in number]
    days = {"name": "time_in_hospital", "kind": "integer", "lower": 1, "upper": N_DAYS}
    levels = {"no": ["NO"], "yes": ["<30", ">30"]}
    label, columns = {**SCHEMA["label"], "levels": levels}, [*SCHEMA["columns"]]
    return stays, {**SCHEMA, "columns": [*columns, {**days, "bins": N_DAYS}], "label": label}


def times_read(entries, measurements, others=()):
    """Return how often each canary is in the sealed sums of all releases together."""
    store, times = MeasurementStore(measurements), Counter()
    for entry in entries:
        if entry.state.value not in ("void", "burned"):
            files = store.open(entry.release_id).files
            with np.load(io.BytesIO(files[sealed_file(HISTOGRAMS)])) as arrays:
                _, counts = counts_of(arrays["values"] / SUM_SCALE, [len(LEVELS), *others])
            counts = np.rint(counts.sum(axis=0)[1 : len(LEVELS)]).astype(int).tolist()
            times.update({level: n for level, n in zip(LEVELS[1:], counts, strict=True) if n})
    return times
