"""Tables of shares of a bundle: measured cells with the interval of their noise.

For many readers these are the release: the share of every code, of every code by label, and of
pairs of columns, each with an interval if it was measured. Post-processing of released values.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from storage.releases.measurements import Measurement
from storage.schema.columns import in_short
from storage.schema.labels import Labels
from storage.schema.table import TableSchema
from storage.schema.vocabulary import Vocabulary
from tasks.measurement.method import Noisy, Released, Synthesizer, Table
from tasks.measurement.record_rules import LABEL
from tasks.reporting.tables import parquet_of, text_of

TABLES_PARQUET_FILE = "tables.parquet"
TABLES_CSV_FILE = "tables.csv"

DEVIATIONS = 1.96
"""Half the width of an interval in standard deviations: 95 % of the noise."""

MAX_CELLS = 500_000
"""Most cells of a bundle's tables with pairs that were not measured; else these are left out."""


@runtime_checkable
class _ReleasesTables(Protocol):
    """A method that releases tables of shares: ClustMix of tables."""

    def tables(self, released: Released, noisy: Noisy) -> tuple[float, Iterator[Table]]:
        """Return the noisy number of patients, and the tables."""


def released_tables(
    measurement: Measurement, schema: TableSchema, synthesizer: Synthesizer | _ReleasesTables
) -> dict[str, bytes]:
    """Return the tables as files; none for a method without them."""
    synthesizer = getattr(synthesizer, "of_patients", synthesizer)
    if not isinstance(synthesizer, _ReleasesTables):
        return {}
    patients, tables = synthesizer.tables(measurement.released, measurement.noisy)
    # Hidden columns of tables of events stand behind the declared ones.
    shown = (table for table in tables if max(table.columns) < len(schema.columns))
    frame = frame_of(shown, schema, noisy_patients=patients)
    return {TABLES_PARQUET_FILE: parquet_of(frame), TABLES_CSV_FILE: text_of(frame)}


def expected_errors(tables: bytes) -> dict[str, float]:
    """Return the widest half interval of a share of a column, in patients and in points of percent.

    Added are the number of codes whose interval is above zero, and that of all codes.
    """
    cells = pd.read_parquet(io.BytesIO(tables), filters=[("by", "==", "")])
    inside = cells[(cells["low"] > 0.0) & (cells["high"] < 1.0)]
    return {
        "patients": DEVIATIONS * cells["noise_patients"].max(),
        "points": 50.0 * (inside["high"] - inside["low"]).max(),
        "seen": int((cells["low"] > 0.0).sum()),
        "codes": len(cells),
    }


def hidden_levels(tables: bytes | None, schema: TableSchema) -> str:
    """Return the label levels whose interval begins at zero, in short; empty without tables."""
    if tables is None:
        return ""
    cells = pd.read_parquet(io.BytesIO(tables), filters=[("by", "==", "")])
    hidden = cells[cells["column"].isin(schema.label_names) & (cells["low"] <= 0.0)]
    named = zip(hidden["column"], hidden["level"], strict=True)
    return in_short([f"{column} = {level}" for column, level in named])


def unmeasured_pairs(tables: bytes | None) -> str:
    """Return the pairs of columns that have no table of their own, in short."""
    if tables is None:
        return ""
    pairs, implied = ["column", "by"], [("by", "!=", ""), ("known", "==", "implied")]
    cells = pd.read_parquet(io.BytesIO(tables), filters=implied)[pairs].drop_duplicates()
    return in_short([f"{one} with {other}" for one, other in cells.to_numpy()])


def frame_of(
    tables: Iterable[Table], schema: TableSchema, *, noisy_patients: float
) -> pd.DataFrame:
    """Return tables with one row per cell: columns, levels, origin, share and interval.

    ``noise_patients`` is the standard deviation of the noise of a cell, in patients. Codes that
    were measured as one are joined by ``; ``. The second column is empty in a table of one column,
    and interval and noise are empty for cells that were not measured.
    """
    columns = Vocabulary.of(schema)
    names = [name for coded in columns.columns for name in coded.names]
    codes = [coded.codes for coded in columns.columns for _ in coded.names]
    if len(schema.all_labels) > 1:
        tables = _with_each_label(tables, schema.labels, first=len(names))
        names += schema.label_names
        codes += [tuple(dict.fromkeys(levels)) for levels in schema.labels.parts.values()]
    names, codes = [*names, columns.label.names[0]], [*codes, columns.label.codes]
    parts = [_cells(table, names, codes, noisy_patients) for table in _within_limit(tables)]
    return pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _with_each_label(tables: Iterable[Table], labels: Labels, *, first: int) -> Iterator[Table]:
    """Append a table of each of several labels to that of all labels together.

    A share ``a / n`` of noisy counts, of which ``k`` of C add up to ``a``, has the variance
    ``(k (1 - a / n)^2 + (C - k) (a / n)^2) s^2 / n^2`` with s of one count.
    """
    for table in tables:
        yield table
        if table.columns != (LABEL,) or table.estimates is None or table.stddevs is None:
            continue
        share, own = table.estimates[:, 0], table.stddevs[:, 0]
        n_labels = len(share)
        unit = own[0] / np.hypot(1.0 - share[0], np.sqrt(n_labels - 1.0) * share[0])
        for place, levels in enumerate(labels.parts.values()):
            every = tuple(dict.fromkeys(levels))
            has = np.array([[level == one for level in levels] for one in every])
            shares, estimates = has @ table.shares, has @ table.estimates
            k = has.sum(axis=1, keepdims=True)
            yield Table(
                columns=(first + place,),
                groups=(tuple((code,) for code in range(len(every))),),
                origin=table.origin,
                shares=shares,
                estimates=estimates,
                stddevs=unit * np.sqrt(k * (1.0 - estimates) ** 2 + (n_labels - k) * estimates**2),
            )


def _within_limit(tables: Iterable[Table]) -> Iterator[Table]:
    n_cells = 0
    for table in tables:
        if table.origin == "implied" and n_cells + table.shares.size > MAX_CELLS:
            continue
        n_cells += table.shares.size
        yield table


def _cells(
    table: Table, names: list[str], codes: list[tuple[str, ...]], noisy_patients: float
) -> dict[str, NDArray[Any]]:
    levels = [
        ["; ".join(codes[column][code] for code in group) for group in groups]
        for column, groups in zip(table.columns, table.groups, strict=True)
    ]
    shape = table.shares.shape
    first = np.repeat(np.array(levels[0], dtype=object), shape[1])
    second = np.array(levels[1] if len(levels) > 1 else [""], dtype=object)
    low = high = noise = np.full(shape, np.nan)
    if table.estimates is not None and table.stddevs is not None:
        low = np.clip(table.estimates - DEVIATIONS * table.stddevs, 0.0, 1.0)
        high = np.clip(table.estimates + DEVIATIONS * table.stddevs, 0.0, 1.0)
        noise = table.stddevs * noisy_patients

    def same(text: str) -> NDArray[Any]:
        return np.full(len(first), text, dtype=object)

    return {
        "column": same(names[table.columns[0]]),
        "level": first,
        "by": same(names[table.columns[1]] if len(table.columns) > 1 else ""),
        "by_level": np.tile(second, shape[0]),
        "known": same(table.origin),
        "share": table.shares.ravel().round(6),
        "low": low.ravel().round(6),
        "high": high.ravel().round(6),
        "noise_patients": noise.ravel().round(2),
    }
