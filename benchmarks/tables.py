"""Public tables of the site files: read, split into training and test records, coded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from flows.site import SiteFile, load_site
from storage.cohorts import CohortReader
from storage.schema import CategoricalColumn, TableSchema
from tasks import contributions, encoding
from tasks.synthesizers.encoded import EncodedRows
from tasks.violations import refuse_violations

SITES = Path(__file__).resolve().parents[1] / "deployments" / "sites"
TEST_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Records of one split seed.

    Parameters
    ----------
    site
        The site file; the method and the number of synthetic rows are its own.
    rows
        Coded training records with bounded contributions: what a synthesizer measures.
    train
        The same records in the vocabulary of a release.
    test
        Held-out records in the vocabulary of a release.
    """

    site: SiteFile
    rows: EncodedRows
    train: pd.DataFrame
    test: pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A table as a classifier and a marginal distance see it.

    Parameters
    ----------
    features : DataFrame of shape (n, d)
        Numbers as they are (NaN where missing); categories as codes of a categorical dtype that
        has every declared level and the missing code.
    labels : uint16 array of shape (n,)
    codes : uint16 array of shape (n, d + 1)
        Public codes of the features, then of the label.
    """

    features: pd.DataFrame
    labels: NDArray[np.uint16]
    codes: NDArray[np.uint16]


def split(dataset: str, seed: int) -> Split:
    """Read a table and hold out a quarter of its patients.

    Where a column names the patient, all rows of a patient are on one side. Elsewhere the split
    is stratified by the label.
    """
    site = load_site(SITES / f"{dataset}.yaml")
    schema = site.table_schema
    chunks = CohortReader(site.source).chunks(site.columns_to_read)
    frame = pd.concat(list(chunks), ignore_index=True)
    labelled = encoding.encode_chunk(frame, schema)
    frame = frame[labelled.valid].reset_index(drop=True)
    if site.unit.column is None:
        in_train, in_test = train_test_split(
            np.arange(len(frame)),
            test_size=TEST_SHARE,
            random_state=seed,
            stratify=labelled.label[labelled.valid],
        )
        train, test = frame.iloc[in_train], frame.iloc[in_test]
    else:
        patients = frame[site.unit.column]
        keys = np.random.default_rng(seed).permutation(patients.unique())
        held_out = patients.isin(keys[: int(TEST_SHARE * len(keys))])
        train, test = frame[~held_out], frame[held_out]
    rows, train = encode(train.reset_index(drop=True), site)
    return Split(
        site=site,
        rows=rows,
        train=encoding.conform(train, schema),
        test=encoding.conform(test.reset_index(drop=True), schema),
    )


def encode(frame: pd.DataFrame, site: SiteFile) -> tuple[EncodedRows, pd.DataFrame]:
    """Encode labelled records and bound what each patient contributes, as a release does."""
    chunk = encoding.encode_chunk(frame, site.table_schema)
    refuse_violations(chunk.violations)
    if site.unit.column is None:
        keep, weight = np.ones(len(frame), dtype=np.bool_), np.ones(len(frame))
        hashes = contributions.hash_records(chunk.codes, chunk.label)
        patient = np.arange(len(frame))
    else:
        keys = frame[site.unit.column]
        records = np.column_stack([chunk.codes, chunk.label])
        keep, weight = contributions.bound_contributions(keys, records, site.unit.max_rows)
        hashes = contributions.hash_patients(keys)
        patient = pd.factorize(keys)[0]
    rows = EncodedRows(
        codes=chunk.codes[keep],
        label=chunk.label[keep],
        weight=weight[keep],
        fold=contributions.fold_of(hashes)[keep],
        patient=patient[keep].astype(np.uint32),
    )
    return rows, frame[keep].reset_index(drop=True)


def design(frame: pd.DataFrame, schema: TableSchema) -> Design:
    """Turn records in the vocabulary of a release into arrays."""
    chunk = encoding.encode_chunk(frame, schema)
    refuse_violations(chunk.violations)
    features: dict[str, Any] = {}
    for j, column in enumerate(schema.columns):
        if isinstance(column, CategoricalColumn):
            features[column.name] = pd.Categorical.from_codes(
                chunk.codes[:, j].astype(np.int64), categories=pd.RangeIndex(column.n_codes)
            )
        else:
            numbers = pd.to_numeric(frame[column.name], errors="coerce")
            features[column.name] = numbers.astype("float64")
    return Design(
        features=pd.DataFrame(features),
        labels=chunk.label,
        codes=np.column_stack([chunk.codes, chunk.label]),
    )
