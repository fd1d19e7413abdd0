"""Tables of the benchmarks that are made of several published files, by public rules.

Every rule reads the rows of one person. A table is written as CSV, whose bytes do not depend on the
version of a library, so that its SHA-256 is compared, as are those of the published files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from storage.public_data.datasets import data_folders, keep
from storage.settings import load_settings

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""The files of the heart-disease table: UCI, dataset 45 (Detrano et al., 1989)."""

TESTS = ("hdl", "sbp", "fib4", "smoke")
"""Laboratory values of `nafld` that are kept; `chol` and `dbp` repeat two of them as published."""

CONDITIONS: Mapping[str, str] = {
    "afib": "afib", "ang/isc": "angina", "cardiac arrest": "cardiac_arrest",
    "diabetes": "diabetes", "dyslipidemia": "dyslipidemia", "heart failure": "heart_failure",
    "htn": "hypertension", "MI": "infarction", "stroke": "stroke",
}  # fmt: skip
"""Columns for earlier events, by the published name of the event in `nafld`."""


def _heart_disease(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the four files; the column ``hospital`` names the file of a row."""
    frames = []
    for hospital in HOSPITALS:
        # A column with a "?" is text in one file and a number in another: one spelling for all.
        frame = parts[hospital].map(lambda cell: cell if cell == "?" else f"{float(cell):g}")
        frame.insert(0, "hospital", hospital)
        frames.append(frame)
    return pd.concat(frames)


def _nafld(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row for each person: facts known on the index date (day 0) and the final state.

    The last laboratory value up to day 0 is kept; on equal days, the last one in the file.
    ``case`` is 1 for a case of fatty liver disease, who is their own case, and 0 for a person
    matched to one; the key of that case is left out. ``futime`` is the time of follow-up in days.
    """
    people, values, events = (parts[f"nafld{part}"] for part in (1, 2, 3))
    known = values[values["days"] <= 0].sort_values("days", kind="stable")
    table = people[["id", "age", "male", "weight", "height", "bmi"]].copy()
    matched = people["case.id"].isna()
    table["case"] = (people["case.id"] == people["id"]).astype("Int64").mask(matched)
    for test in TESTS:
        last = known[known["test"] == test].groupby("id")["value"].last()
        column = people["id"].map(last)
        table[test] = column.round().astype("Int64") if test == "smoke" else column
    for event, name in CONDITIONS.items():
        had = events.loc[(events["event"] == event) & (events["days"] <= 0), "id"]
        table[name] = people["id"].isin(had).astype(int)
    table["status"], table["futime"] = people["status"], people["futime"]
    return table


def _creditcard_subset(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return parts["creditcard_subset"].drop(columns=["Time", "source"])


_Build = Callable[[Mapping[str, pd.DataFrame]], pd.DataFrame]
JOINED: Mapping[str, tuple[_Build, tuple[str, ...], str]] = {
    "heart_disease_uci": (_heart_disease, HOSPITALS,
        "31b4ec541342ebe55571a88fd75ce5805693ffb172a9138d3c510e658379da31"),
    "nafld": (_nafld, ("nafld1", "nafld2", "nafld3"),
        "a8e7b2aaee60e26ae88814934b2771bcc6c3e0df19e8601bc0a7a558c0aa89c2"),
    "creditcard_subset": (_creditcard_subset, ("creditcard_subset",),
        "4384d9c97b3f65c573caea8268bf87e5b5bbb4aeffee64b0525edfa8c6402a2c"),
}  # fmt: skip
"""Recipes of the tables: the Parquet files below a folder, and the SHA-256 of the resulting CSV."""


def joined_table(name: str) -> Path:
    """Return the file of a table, made where the published files are in ``CLUSTMIX_DATA_DIR``.

    The file does not exist if they are absent. It is a ValueError if it is not the expected table.
    """
    build, parts, expected = JOINED[name]
    places = load_settings().data_places
    target = places.downloads / name / f"{name}-{expected[:8]}.csv"
    for folder in data_folders(places):
        paths = {part: folder / name / f"{part}.parquet" for part in parts}
        if target.is_file() or not all(path.is_file() for path in paths.values()):
            continue
        table = build({part: pd.read_parquet(path) for part, path in paths.items()})
        content = table.to_csv(index=False, lineterminator="\n").encode("ascii")
        keep(content, target)
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() != expected:
        raise ValueError(f"expected the table {name} of its published files, found another")
    return target
