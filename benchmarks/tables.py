"""Tables of the benchmarks: their site files, and their rows in training and held-out files.

The site files are those of ``deployments/sites`` and ``benchmarks/sites``. One of the latter with
the key ``like`` is the site file of that name with other values for the keys that it has; its
``label`` and ``more_labels`` are those of the schema, whose columns or ignored columns they are in
the other one, and columns whose names its ``left_out``, a regular expression, finds are ignored.
The source key ``joined`` names one of `benchmarks.joined_tables`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from benchmarks.joined_tables import joined_table
from flows.site.site_file import SiteFile, load_site
from storage.files.workspace import read_npz
from storage.public_data.datasets import data_folders, find
from storage.public_data.public_tables import images_parquet
from storage.schema.column_blocks import LABEL_NAME
from storage.schema.labels import Label
from storage.settings import load_settings
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource, ParquetSource
from tasks.methods.registry import method_entry

ROOT = Path(__file__).resolve().parents[1]
DEPLOYED = ROOT / "deployments" / "sites"
SITES = (ROOT / "benchmarks" / "sites", DEPLOYED)
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
    method: dict[str, Any] = {"kind": kind}
    if document["method"]["kind"] == kind:
        return document
    if "declared_patients" in method_entry(kind).config.model_fields:
        known = DECLARED_PATIENTS.get(document["dataset"])
        method["declared_patients"] = known or document["patients"]
    return {**document, "method": method}


def write_site(document: dict[str, Any], path: Path) -> SiteFile:
    """Write a site file, keys in their order, and read it as the program does."""
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
    """Return the label level of each raw value, by its bucket or by the first of its raw values."""
    if label.buckets is not None:
        # NaN, where there is no label, sorts last: a stratum of its own.
        edges = (*label.buckets.edges, np.inf)
        return np.searchsorted(edges, pd.to_numeric(raw, errors="coerce"), side="right")
    firsts = {value: values[0] for values in (label.levels or {}).values() for value in values}
    return raw.map(lambda text: firsts.get(text, text)).to_numpy()


def read_images(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the pixels (n, pixels) and the labels (n,) of a table of images."""
    table = pq.read_table(path)
    pixels = table.drop_columns([LABEL_NAME]).to_pandas().to_numpy(dtype=np.uint8)
    return pixels, table[LABEL_NAME].to_numpy().astype(np.int64)


def data_place(name: str) -> Path:
    for base in data_folders(load_settings().data_places):
        if (base / name).exists():
            return base / name
    raise ValueError(f"expected {name} below CLUSTMIX_DATA_DIR, found none")


def _image_files(source: ParquetSource, folder: Path) -> tuple[Path, Path]:
    """Return the published training and test images; those of MedMNIST are converted."""
    if source.path is None:
        return find(source.data or ""), find(f"{source.data}_test")
    path = data_place(f"medmnist/{source.path.stem}.npz")
    arrays, files = read_npz(path), (folder / "train.parquet", folder / "test.parquet")
    for file in files:
        pixels, label = (arrays[f"{file.stem}_{kind}"] for kind in ("images", "labels"))
        file.write_bytes(images_parquet(pixels, label.ravel()))
    return files


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
        train_file, test_file = _image_files(site.source, folder)
        found = pq.read_metadata(train_file).num_rows
        images = {"kind": "parquet", "path": str(train_file)}
        return {**document, "source": images}, test_file, found
    frame = read_table(site)
    frame = frame if rows is None else frame.sample(min(rows, len(frame)), random_state=0)
    train, test = split(frame, site, seed or 0)
    kind = "parquet" if site.source.kind == "parquet" else "csv"
    path, held_out = folder / f"train.{kind}", folder / "test.parquet"
    (train.to_parquet if kind == "parquet" else train.to_csv)(path, index=False)
    test.to_parquet(held_out, index=False)
    source = {"kind": kind, "path": str(path), "select": dict(site.source.select)}
    return {**document, "source": source}, held_out, len(train)
