"""The first visits of a patient as columns of one row. Private throughout.

Source rows are coded each by itself. Once all rows of a patient are in one shard, the earliest
become one row.
"""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from privacy.arrays import Floats
from storage.schema.columns import number_of
from storage.schema.table import TableSchema
from storage.schema.visit_columns import VisitColumns
from storage.sources.cells import distinct
from tasks.ingest.contributions import hash_names, hash_records
from tasks.ingest.patient_rows import KeyedRows
from tasks.ingest.violations import Rule, Violation
from tasks.measurement.encoded import mixed_bits

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


def first_visits(rows: KeyedRows, schema: TableSchema, visits: VisitColumns) -> KeyedRows:
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
