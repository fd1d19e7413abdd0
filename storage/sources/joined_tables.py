"""Public tables that are published in several files, as one table each, by public rules.

Every rule looks at the rows of one person. The tables are written as CSV, whose bytes do not depend
on the version of a library, so that their SHA-256 can be compared.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import pandas as pd

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""The files of the heart-disease table."""

TESTS = ("hdl", "sbp", "fib4", "smoke")
"""Laboratory values of `nafld` that are kept; `chol` and `dbp` repeat two of them as published."""

CONDITIONS: Mapping[str, str] = {
    "afib": "afib", "ang/isc": "angina", "cardiac arrest": "cardiac_arrest",
    "diabetes": "diabetes", "dyslipidemia": "dyslipidemia", "heart failure": "heart_failure",
    "htn": "hypertension", "MI": "infarction", "stroke": "stroke",
}  # fmt: skip
"""Events of `nafld` by their published names, and the columns that say whether one had happened."""


def heart_disease(members: Mapping[str, bytes]) -> bytes:
    """Put the four files below each other; the column ``hospital`` names the file of a row."""
    frames = []
    for hospital in HOSPITALS:
        frame = pd.read_parquet(io.BytesIO(members[f"{hospital}.parquet"]))
        # A column with a "?" is text in one file and a number in another: one spelling for all.
        frame = frame.map(lambda cell: cell if cell == "?" else f"{float(cell):g}")
        frame.insert(0, "hospital", hospital)
        frames.append(frame)
    return _csv(pd.concat(frames))


def nafld(members: Mapping[str, bytes]) -> bytes:
    """One row a person, with what was known on the index date (day 0) and the state at the end.

    Of a laboratory value the last one up to day 0 is kept, of equal days the one that comes last.
    ``case`` is 1 for a case of fatty liver disease, who is their own case, and 0 for a person
    matched to one. The key of that case and the time of follow-up are left out.
    """
    people, values, events = (
        pd.read_parquet(io.BytesIO(members[f"nafld{part}.parquet"])) for part in (1, 2, 3)
    )
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
    table["status"] = people["status"]
    return _csv(table)


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n").encode("ascii")
