"""The first visits of a patient as columns of one row. Private throughout.

Which place a visit has is known only where all rows of a patient have met. So each row is coded
with its cells at every place, and a patient's row takes of each visit the codes at its own place.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats
from storage.schema.columns import number_of
from storage.schema.table import TableSchema
from storage.schema.visits import VisitColumns
from storage.sources.cells import distinct
from tasks.ingest.contributions import hash_records
from tasks.ingest.patient_rows import KeyedRows
from tasks.ingest.violations import Rule, Violation

_MICROSECONDS = 1e6


def at_every_place(frame: pd.DataFrame, visits: VisitColumns) -> pd.DataFrame:
    """Return the rows as the schema declares them: each has its own cells at every place."""
    copies = {name: frame[column] for column in visits.columns for name in visits.places(column)}
    return frame.drop(columns=list(visits.columns)).assign(**copies)


def moments_of(cells: pd.Series) -> Floats:
    """Read numbers, or dates as microseconds since 1970, each cell by itself; NaN for others."""
    index, texts = distinct(cells)
    return np.array([*(_moment(text) for text in texts), np.nan])[index]


def unordered(cells: pd.Series) -> tuple[Violation, ...]:
    """Return the rows that cannot be put in order."""
    broken = np.flatnonzero(np.isnan(moments_of(cells)))
    found = Violation(rule=Rule.MOMENT, column=str(cells.name), rows=broken)
    return (found,) if len(broken) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the columns of each visit stand among the codes, and their codes of no visit.

    Both have the shape (visits, columns of a visit).
    """

    columns: NDArray[np.intp]
    missing: Codes

    @classmethod
    def of(cls, schema: TableSchema, visits: VisitColumns) -> "Places":
        """Return the places of a schema; public."""
        names = {column.name: place for place, column in enumerate(schema.columns)}
        columns = [[names[name] for name in visits.places(column)] for column in visits.columns]
        missing = [[schema.columns[place].n_codes - 1 for place in own] for own in columns]
        return cls(columns=np.array(columns).T, missing=np.array(missing, dtype=np.uint16).T)


def first_visits(rows: KeyedRows, places: Places) -> KeyedRows:
    """Make one row of each patient in a shard, by moment, and of one moment by a digest.

    Privacy
    -------
    A patient's row is a function of that patient's rows, as a set. There is one for each patient,
    so its weight is one.
    """
    patient = np.unique(rows.keys, return_inverse=True)[1]
    order = np.lexsort((hash_records(rows.codes, rows.label), rows.moments, patient))
    firsts = np.flatnonzero(np.diff(patient[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(firsts, np.diff(firsts, append=len(order)))
    first = order[firsts]
    codes = rows.codes[first]
    for visit in range(1, len(places.columns)):
        own, at = places.columns[visit], order[rank == visit]
        codes[:, own] = places.missing[visit]
        codes[np.ix_(patient[at], own)] = rows.codes[np.ix_(at, own)]
    kept = {name: getattr(rows, name)[first] for name in ("label", "fold", "keys", "moments")}
    return replace(rows, codes=codes, **kept)


def _moment(text: str) -> float:
    number = number_of(text)
    if number is not None:
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return np.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * _MICROSECONDS
