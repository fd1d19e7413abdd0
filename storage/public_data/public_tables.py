"""Public datasets by name, as ``tables.toml`` lists them, made from the published files.

Every rule reads the rows of one person. A table of several files is written as CSV, whose bytes do
not depend on the version of a library, so that its SHA-256 can be compared.
"""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from storage.files.documents import listed
from storage.public_data.image_tables import idx_images


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicDataset:
    """A dataset that anybody may read.

    Attributes
    ----------
    relative_path
        Place of a copy under a data folder.
    sha256
        Digest of the copy; without `url` also of the file that `build` makes. None if only members
        are published.
    url
        Address of the publisher's zip archive of the members, or, if it ends with a slash, of the
        folder that holds each of them compressed (``.gz``).
    members
        SHA-256 of each published file, decompressed, by its name.
    build
        Makes the file, not compressed, from the verified members.
    """

    name: str
    relative_path: str
    sha256: str | None = None
    publisher: str
    url: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    build: Callable[[Mapping[str, bytes]], bytes] | None = None

    @property
    def file_name(self) -> str:
        """Name of the file that `build` makes."""
        return Path(self.relative_path).name.removesuffix(".gz")


_ADULT_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income split"
).split()


def _adult(members: Mapping[str, bytes]) -> bytes:
    """Join the two parts: header and `split` added, blanks and the test labels' dot removed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_ADULT_COLUMNS)
    for member, split in (("adult.data", "train"), ("adult.test", "test")):
        for line in members[member].decode("ascii").splitlines():
            if line and not line.startswith("|"):
                cells = [cell.strip() for cell in line.split(",")]
                cells[-1] = cells[-1].removesuffix(".")
                writer.writerow([*cells, split])
    return text.getvalue().encode("ascii")


def _diabetes130(members: Mapping[str, bytes]) -> bytes:
    """Convert to Parquet; the missing code '?' and the category 'None' stay text."""
    frame = pd.read_csv(
        io.BytesIO(members["diabetic_data.csv"]), keep_default_na=False, low_memory=False
    )
    target = io.BytesIO()
    frame.to_parquet(target, index=False)
    return target.getvalue()


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""The files of the heart-disease table."""

TESTS = ("hdl", "sbp", "fib4", "smoke")
"""Laboratory values of `nafld` that are kept; `chol` and `dbp` repeat two of them as published."""

CONDITIONS: Mapping[str, str] = {
    "afib": "afib", "ang/isc": "angina", "cardiac arrest": "cardiac_arrest",
    "diabetes": "diabetes", "dyslipidemia": "dyslipidemia", "heart failure": "heart_failure",
    "htn": "hypertension", "MI": "infarction", "stroke": "stroke",
}  # fmt: skip
"""Columns for earlier events, by the published name of the event in `nafld`."""


def _heart_disease(members: Mapping[str, bytes]) -> bytes:
    """Concatenate the four files; the column ``hospital`` names the file of a row."""
    frames = []
    for hospital in HOSPITALS:
        frame = pd.read_parquet(io.BytesIO(members[f"{hospital}.parquet"]))
        # A column with a "?" is text in one file and a number in another: one spelling for all.
        frame = frame.map(lambda cell: cell if cell == "?" else f"{float(cell):g}")
        frame.insert(0, "hospital", hospital)
        frames.append(frame)
    return _csv(pd.concat(frames))


def _nafld(members: Mapping[str, bytes]) -> bytes:
    """Return one row for each person: facts known on the index date (day 0) and the final state.

    The last laboratory value up to day 0 is kept; on equal days, the last one in the file.
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


_BUILDS: Mapping[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "adult": _adult,
    "diabetes130": _diabetes130,
    **dict.fromkeys(("mnist", "mnist_test", "fashion_mnist", "fashion_mnist_test"), idx_images),
    "heart_disease_uci": _heart_disease,
    "nafld": _nafld,
}


DATASETS = {
    name: PublicDataset(name=name, build=_BUILDS.get(name), **facts)
    for name, facts in listed(__package__, "tables.toml").items()
}
