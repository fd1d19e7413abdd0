"""Tables of the benchmarks: their site files, and their rows in training and held-out files.

Of a site file with the key ``like``, ``label`` and ``more_labels`` are columns, ignored or not, of
the other one, and columns whose names ``left_out``, a regular expression, finds are ignored. The
source key ``joined`` names a table that is made of several published files, by public rules that
read the rows of one person, as a CSV, whose SHA-256 is compared, as are those of the files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from flows.site.site_file import SiteFile, load_site
from storage.public_data.datasets import data_folders, find, keep
from storage.schema.column_blocks import LABEL_NAME
from storage.schema.labels import Label
from storage.settings import load_settings
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource, ParquetSource
from tasks.methods.registry import method_entry

ROOT = Path(__file__).resolve().parents[1]
SITES = (ROOT / "benchmarks" / "sites", ROOT / "deployments" / "sites")
TEST_SHARE = 0.25

DECLARED_PATIENTS = {"adult": 24_000, "mnist": 60_000}
"""Public round numbers, for methods that sample patients at a declared rate; else `patients`."""


def site_names() -> list[str]:
    return sorted(path.stem for folder in SITES for path in folder.glob("*.yaml"))


def site_document(name: str) -> dict[str, Any]:
    """Read a site file by its name, with what it takes from another one."""
    path = next((path for folder in SITES if (path := folder / f"{name}.yaml").is_file()), None)
    if path is None:
        raise ValueError(f"expected a site file of {SITES[0]} or {SITES[1]}, found {name!r}")
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    joined = document.get("source", {}).pop("joined", None)
    if joined is not None:
        document["source"]["path"] = str(joined_table(joined))
    other, labels = document.pop("like", None), document.pop("more_labels", [])
    label = document.pop("label", None)
    left_out = document.pop("left_out", None)
    if other is None:
        return document
    document = {**site_document(other), **document}
    schema, names = document["schema"], [label["name"] for label in labels]
    if label:
        schema["label"] = label
        names += [part["column"] for part in label.values() if isinstance(part, dict)]
    columns = [column for column in schema["columns"] if column["name"] not in names]
    ignore = [name for name in schema.get("ignore", []) if name not in names]
    ignored = [c["name"] for c in columns if left_out and re.search(left_out, c["name"])]
    columns = [column for column in columns if column["name"] not in ignored]
    schema |= {"columns": columns, "ignore": ignore + ignored}
    return {**document, "schema": schema | ({"more_labels": labels} if labels else {})}


def with_method(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a site file with a method: by its own settings, or else by the defaults."""
    if document["method"]["kind"] == kind:
        return document
    method: dict[str, Any] = {"kind": kind}
    if "declared_patients" in method_entry(kind).config.model_fields:
        known = DECLARED_PATIENTS.get(document["dataset"])
        method["declared_patients"] = known or document["patients"]
    return {**document, "method": method}


def write_site(document: dict[str, Any], path: Path) -> SiteFile:
    # The order of label levels is a declaration.
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return load_site(path)


def read_table(site: SiteFile) -> pd.DataFrame:
    """Read the rows of the source that the site file selects, all columns, cells as they are."""
    source = site.source
    if not isinstance(source, CsvSource | ParquetSource):
        return pd.concat(list(CohortReader(source).chunks(site.columns_to_read)))
    # A relative path of a benchmark begins at the root of the repository.
    path = find(source.data or "") if source.path is None else ROOT / source.path
    if isinstance(source, ParquetSource):
        frame = pd.read_parquet(path, dtype_backend="pyarrow")
    else:
        frame = pd.read_csv(
            path, sep=source.delimiter, encoding=source.encoding, dtype=str, keep_default_na=False
        )
    for name, value in source.select.items():
        frame = frame[frame[name].astype(str) == str(value)]
    return frame.reset_index(drop=True)


def split(frame: pd.DataFrame, site: SiteFile, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Hold out a quarter of the patients, or of the rows of each label where none is named."""
    if site.unit.column is None:
        first = site.table_schema.first_label
        label = _strata(frame[first.name].astype(str), first)
        train, test = train_test_split(
            np.arange(len(frame)), test_size=TEST_SHARE, random_state=seed, stratify=label
        )
        return frame.iloc[train], frame.iloc[test]
    patients = frame[site.unit.column]
    keys = np.random.default_rng(seed).permutation(patients.unique())
    held_out = patients.isin(keys[: int(TEST_SHARE * len(keys))])
    return frame[~held_out], frame[held_out]


def _strata(raw: pd.Series, label: Label) -> NDArray[Any]:
    if label.buckets is not None:
        # NaN, where there is no label, sorts last: a stratum of its own.
        edges = (*label.buckets.edges, np.inf)
        return np.searchsorted(edges, pd.to_numeric(raw, errors="coerce"), side="right")
    firsts = {value: values[0] for values in (label.levels or {}).values() for value in values}
    return raw.map(lambda text: firsts.get(text, text)).to_numpy()


def images_of(dataset: str) -> Any:
    """Return pixels (n, pixels) and labels (n,) of images to learn from, and of test images."""
    name = dataset.replace("-", "_")
    both = [pd.read_parquet(find(name + part)) for part in ("", "_test")]
    labels = [rows.pop(LABEL_NAME).to_numpy(np.int64) for rows in both]
    return [(rows.to_numpy(np.uint8), own) for rows, own in zip(both, labels, strict=True)]


def data_place(name: str) -> Path:
    for base in data_folders(load_settings().data_places):
        if (base / name).exists():
            return base / name
    raise ValueError(f"expected {name} below CLUSTMIX_DATA_DIR, found none")


def divided(
    document: dict[str, Any], seed: int | None, folder: Path, *, rows: int | None = None
) -> tuple[dict[str, Any], Path, int]:
    """Write the training and the held-out rows of a site file into files of a folder.

    The seed is that of the split, of no use for images; ``rows``, all if left out, are taken of a
    table at random by a public seed. Returns the site file with the training rows as its source,
    the file of the held-out rows, and the number of training rows.
    """
    site = write_site(document, folder / "whole.yaml")
    if isinstance(site.source, ParquetSource) and site.table_schema.image is not None:
        train_file, test_file = (find(f"{site.source.data}{part}") for part in ("", "_test"))
        source: dict[str, Any] = {"kind": "parquet", "path": str(train_file)}
        rows = pq.read_metadata(train_file).num_rows
        return {**document, "source": source}, test_file, rows
    frame = read_table(site)
    frame = frame if rows is None else frame.sample(min(rows, len(frame)), random_state=0)
    train, test = split(frame, site, seed or 0)
    kind = "parquet" if site.source.kind == "parquet" else "csv"
    path, held_out = folder / f"train.{kind}", folder / "test.parquet"
    (train.to_parquet if kind == "parquet" else train.to_csv)(path, index=False)
    test.to_parquet(held_out, index=False)
    source = {"kind": kind, "path": str(path), "select": dict(site.source.select)}
    return {**document, "source": source}, held_out, len(train)


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


_Build = Callable[[Mapping[str, pd.DataFrame]], pd.DataFrame]
JOINED: Mapping[str, tuple[_Build, tuple[str, ...], str]] = {
    "heart_disease_uci": (_heart_disease, HOSPITALS,
        "31b4ec541342ebe55571a88fd75ce5805693ffb172a9138d3c510e658379da31"),
    "nafld": (_nafld, ("nafld1", "nafld2", "nafld3"),
        "a8e7b2aaee60e26ae88814934b2771bcc6c3e0df19e8601bc0a7a558c0aa89c2"),
    "creditcard_subset": (
        lambda of: of["creditcard_subset"].drop(columns=["Time", "source"]), ("creditcard_subset",),
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
