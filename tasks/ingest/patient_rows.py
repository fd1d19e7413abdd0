"""Coded rows of whole patients, divided into shards and bounded.

The only path from an encoded batch to the rows that a method reads, for the files of a private
workspace (`tasks.ingest.pieces`) and for a table in memory (`encoded_shards`). Private throughout.
Declared visits are coded each by itself; in its shard a patient's earliest become one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats
from privacy.errors import refusals
from privacy.parameters import PrivacyUnit
from storage.schema.columns import number_of
from storage.schema.table import TableSchema
from storage.schema.visit_columns import VisitColumns
from storage.sources.cells import distinct
from tasks.ingest.contributions import (
    bound_contributions,
    fold_of,
    hash_names,
    hash_records,
    named_patients,
    shard_of,
)
from tasks.ingest.encoding import encode_chunk
from tasks.ingest.violations import EncodedChunk, Rule, Violation, refuse_violations
from tasks.measurement.encoded import EncodedRows, mixed_bits

refusal = refusals(__package__)

N_SHARDS = 16
"""Shards of a table. A constant, so that their number does not depend on the rows."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _KeyedRows:
    """Coded rows (n, d) of one shard with patient keys, which are empty if each row is a patient.

    Moments (n,) order the visits of a patient that become columns; otherwise they are empty.
    """

    codes: Codes
    label: Codes
    fold: NDArray[np.uint8]
    keys: NDArray[np.str_]
    moments: Floats


def encoded_shards(
    frame: pd.DataFrame, schema: TableSchema, unit: PrivacyUnit, chunk: EncodedChunk | None = None
) -> tuple[EncodedRows, ...]:
    """Check, encode and bound a table in memory; returns the shards that a flow would make.

    `chunk` has the encoded rows, if they exist already, with further codes.
    """
    chunk = encode_chunk(frame, schema) if chunk is None else chunk
    refuse_violations((*chunk.violations, *unnamed_patients(frame, unit)))
    shards = tuple(bounded_rows(rows, unit) for rows in rows_by_shard(frame, chunk, unit, N_SHARDS))
    require_levels([levels_of(rows, schema) for rows in shards], schema)
    return shards


def rows_by_shard(
    frame: pd.DataFrame,
    chunk: EncodedChunk,
    unit: PrivacyUnit,
    n_shards: int,
    *,
    moments: Floats | None = None,
) -> tuple[_KeyedRows, ...]:
    """Divide the labelled rows of a batch by a hash of the patient."""
    moments = np.empty(0) if moments is None else moments[chunk.valid]
    codes, label = chunk.codes[chunk.valid], chunk.label[chunk.valid]
    index, names = np.zeros(len(label), dtype=np.intp), [""]
    if unit.column is None:
        hashes = hash_records(codes, label)
    else:
        # One spelling for all: a source that stores 5 and 5.0 must not split a patient.
        index, names = named_patients(frame[unit.column][chunk.valid], unit)
        hashes = hash_names(names)[index]
    folds, keys = fold_of(hashes), np.array(names or [""], dtype=np.str_)
    shards = shard_of(hashes, n_shards).astype(np.uint16)  # small numbers are sorted in one go
    ends = np.cumsum(np.bincount(shards, minlength=n_shards))[:-1]
    return tuple(
        _KeyedRows(
            codes=codes[member],
            label=label[member],
            fold=folds[member],
            keys=keys[index[member]],
            moments=moments[member] if len(moments) else moments,
        )
        for member in np.split(np.argsort(shards, kind="stable"), ends)
    )


def joined(parts: list[dict[str, NDArray[Any]]]) -> _KeyedRows:
    """Join the parts of a shard in order and empty them to free memory."""
    names = [field.name for field in fields(_KeyedRows)]
    return _KeyedRows(**{name: np.concatenate([p.pop(name) for p in parts]) for name in names})


def bounded_rows(rows: _KeyedRows, unit: PrivacyUnit) -> EncodedRows:
    """Bound what each patient of a shard contributes."""
    keep = np.ones(len(rows.label), dtype=np.bool_)
    weight: Floats = np.ones(len(keep))
    if unit.column is not None:
        records = np.column_stack([rows.codes, rows.label])
        patient, names = pd.factorize(rows.keys.astype(object))  # names already: `rows_by_shard`
        keep, weight = bound_contributions(patient, list(names), records, unit.max_rows)
    return EncodedRows(
        codes=rows.codes[keep], label=rows.label[keep], weight=weight[keep], fold=rows.fold[keep]
    )


def levels_of(rows: EncodedRows, schema: TableSchema) -> tuple[bool, ...]:
    """Return for each label level true if a kept row has it."""
    levels = set(np.unique(rows.label).tolist())
    return tuple(level in levels for level in range(len(schema.labels.level_names)))


def require_levels(levels: Sequence[tuple[bool, ...]], schema: TableSchema) -> None:
    """Refuse a table without labels, or with a single label level."""
    together = np.flatnonzero(np.any(levels, axis=0))
    for name, own in schema.labels.columns(together).items():
        if len(own) == 0:
            raise refusal("EMPTY_TABLE", names=schema.labels.name)
        if len(set(own)) < 2:
            raise refusal("ONE_LABEL_LEVEL", name=name)


def unnamed_patients(frame: pd.DataFrame, unit: PrivacyUnit) -> tuple[Violation, ...]:
    """Return violations for rows that name no patient, whose contribution has no bound."""
    column = unit.column
    if column is None:
        return ()
    index, texts = distinct(frame[column])
    no_key = [text != "" and unit.spelled(text) is None for text in texts]
    # The last entry serves index -1, a null. An array of keys drops a NUL at the end of a key.
    broken = {
        Rule.NOT_NULL: np.array([*(text == "" for text in texts), True])[index],
        Rule.TEXT: np.array([*("\0" in text for text in texts), False])[index],
        Rule.KEY: np.array([*no_key, False])[index],
    }
    return tuple(
        Violation(rule=rule, column=column, rows=np.flatnonzero(rows))
        for rule, rows in broken.items()
        if rows.any()
    )


_MICROSECONDS, _LARGEST = 1e6, 2.0**53


def moments_of(cells: pd.Series, visits: VisitColumns) -> Floats:
    """Return the moment of each visit; NaN if a cell does not have the declared form."""
    index, texts = distinct(cells)
    is_date = visits.order_by == "dates"
    read = _date if is_date else number_of
    found = np.array([*(read(text) for text in texts), np.nan], dtype=np.float64)[index]
    # Dates end with the year 9999, where a float64 has steps of 32 microseconds.
    return found if is_date else np.where(np.abs(found) < _LARGEST, found, np.nan)


def unordered(moments: Floats, visits: VisitColumns) -> tuple[Violation, ...]:
    """Return violations for rows whose moment cannot be read."""
    rule = Rule.DATE if visits.order_by == "dates" else Rule.ORDER
    rows = np.flatnonzero(np.isnan(moments))
    return (Violation(rule=rule, column=visits.order, rows=rows),) if len(rows) else ()


def first_visits(rows: _KeyedRows, schema: TableSchema, visits: VisitColumns) -> _KeyedRows:
    """Make one row by the schema of a release of each patient in a shard, coded as the source.

    Privacy
    -------
    A patient's row is a function of that patient's rows, in whatever order the source has them; a
    row that stands twice is two visits. There is one for each patient, so its weight is one.
    """
    names, patient = np.unique(rows.keys, return_inverse=True)
    ties = hash_records(rows.codes, rows.label) ^ hash_names(names.tolist())[patient]
    order = np.lexsort((mixed_bits(ties), rows.moments, patient))
    firsts = np.flatnonzero(np.diff(patient[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(firsts, np.diff(firsts, append=len(order)))
    at = [order[rank == visit] for visit in range(visits.first)]
    own = {
        name: (column, visit)
        for column in visits.columns
        for visit, name in enumerate(visits.places(column))
    }
    places = {name: place for place, name in enumerate(visits.row_schema(schema).column_names)}
    codes = np.empty((len(firsts), len(schema.columns)), dtype=np.uint16)
    for j, column in enumerate(schema.columns):
        name, visit = own.get(column.name, (column.name, 0))
        codes[:, j] = column.n_codes - 1  # missing, where there is no such visit
        codes[patient[at[visit]], j] = rows.codes[at[visit], places[name]]
    kept = {name: getattr(rows, name)[at[0]] for name in ("label", "fold", "keys", "moments")}
    return replace(rows, codes=codes, **kept)


def _date(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return np.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * _MICROSECONDS
