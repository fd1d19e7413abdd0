"""Derived columns of rows: computed for a release, compared in a source, each row by itself."""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from privacy.arrays import Floats
from storage.schema.columns import Column, NumericColumn, number_of
from storage.schema.table import TableSchema
from storage.sources.cells import distinct, number_cells
from tasks.ingest.encoding import level_codes, named, written
from tasks.ingest.violations import EncodedChunk, Violation, rows_of


def with_derived(frame: pd.DataFrame, schema: TableSchema) -> pd.DataFrame:
    """Return released rows with their derived columns behind the features; post-processing."""
    for place, column in enumerate(schema.derived_columns, len(schema.columns)):
        values = _computed(frame, column, schema)
        missing = np.isnan(values)
        if isinstance(column, NumericColumn):
            grid = np.rint(np.where(missing, column.lower, values) * _scale(column))
            frame.insert(place, column.name, written(grid.astype(np.int64), missing, column))
        else:
            codes = np.where(missing, len(column.levels), values).astype(np.uint16)
            frame.insert(place, column.name, named(codes, column))
    return frame


def unlike(
    chunk: EncodedChunk, frame: pd.DataFrame, schema: TableSchema, *, mend: bool
) -> list[Violation]:
    """Return the rules that sound rows of a table break, except for rules that mend them.

    Numbers are compared at the last decimal. A cell without a number or level is missing.
    """
    found, sound = list[Violation](), chunk.valid & ~rows_of(chunk.violations, len(frame))
    for column in (one for one in schema.derived_columns if one.name in frame):
        rule, (index, texts) = schema.derived[column.name], distinct(frame[column.name])
        # The last entry serves index -1, an empty cell.
        own, made = _coded((*texts, None), column)[index], _computed(frame, column, schema)
        same = np.rint((own - made) * _scale(column)) == 0.0
        broken = np.flatnonzero(sound & ~(same | (np.isnan(own) & np.isnan(made))))
        if len(broken) and not (mend and rule.when_broken == "mend"):
            found.append(Violation(rule=rule.title, column=column.name, rows=broken))
    return found


def _computed(frame: pd.DataFrame, column: Column, schema: TableSchema) -> Floats:
    """Return numbers, or codes of levels, by the rule of a derived column; NaN where missing."""
    rule = schema.derived[column.name]
    sources = rule.sources(schema.columns)
    if rule.sum is not None:
        absent = np.nan if rule.missing_as is None else float(rule.missing_as)
        parts = [_numbers(frame, one) for one in sources]
        return np.sum([np.where(np.isnan(part), absent, part) for part in parts], axis=0)
    [source] = sources
    values = _coded(rule.values(source), column)
    if rule.edges is not None:
        numbers = _numbers(frame, source)
        places = np.searchsorted(rule.edges, numbers, side="right")
    elif isinstance(source, NumericColumn):
        numbers = np.clip(_numbers(frame, source), source.lower, source.upper)
        places = np.nan_to_num(numbers - source.lower).astype(np.intp)
    else:
        return values[level_codes(frame[source.name], source, [])]
    return np.where(np.isnan(numbers), values[-1], values[places])


def _numbers(frame: pd.DataFrame, column: Column) -> Floats:
    if isinstance(column, NumericColumn):
        values, empty, missing, _ = number_cells(frame[column.name], column)
        return np.where(empty | missing, np.nan, values)
    codes = level_codes(frame[column.name], column, [])
    return np.array([*map(float, column.levels), np.nan])[codes]


def _coded(texts: Iterable[str | None], column: Column) -> Floats:
    """Return texts as numbers, or as codes of levels; NaN of what is none."""
    known: Callable[[str], float | None] = number_of
    if not isinstance(column, NumericColumn):
        known = {level: float(code) for code, level in enumerate(column.levels)}.get
    return np.array([known(text or "") for text in texts], dtype=np.float64)


def _scale(column: Column) -> int:
    return 10 ** getattr(column, "grid_decimals", 0)
