"""Released rows distilled to a few points: features that conditions name, and soft labels.

A feature is a condition on a released row, in the words of pandas' ``DataFrame.eval``, such as
```age` >= 25`` and ```work` == 'none'``, by the schema alone; of images, a pixel as part of white.
Points lie between 0 and 1. Post-processing: the digest of the rows seeds all random choices.
"""

import hashlib
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from privacy.arrays import Codes, Floats32
from storage.schema.columns import Column, NumericColumn
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.distillation.inducing_points import best_labels, optimised
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.gates.agreement import CodedTable

DISTILLED_FILE = "distilled.parquet"
MOVING_ROWS, LABEL_ROWS = 20_000, 100_000
"""Most rows along which points move, and most from which their labels follow."""

_POINTS_OF_A_SLICE, _MOST_CELLS, _WHITE = 100, 40_000_000, 255

_Feature = tuple[str, Floats32]
"""Name of a feature, and its value for each code of a column."""


def distilled(
    rows: CodedTable, schema: TableSchema, points: int, executor: Executor = IN_PROCESS
) -> pd.DataFrame:
    """Return so many points, or as many as there are rows, with a soft label for each level.

    Each slice of the rows, of about 100 points, is a task, on a GPU worker where there is one.
    """
    content = rows.codes.astype("<u2").tobytes() + rows.label.astype("<u2").tobytes()
    seed = tuple(hashlib.sha256(content).digest())
    most = max(points, min(LABEL_ROWS, _MOST_CELLS // sum(map(len, _tables(schema)))))
    chosen = np.random.default_rng(seed).permutation(len(rows.label))[:most]
    names, values = encoded(rows.codes[chosen], schema)
    every = np.eye(len(schema.labels.level_names))[rows.label[chosen]]
    share = every.mean(axis=0)
    labels, n_points = every - share, min(points, len(chosen))
    n_slices = max(1, round(n_points / _POINTS_OF_A_SLICE))
    few = max(points, MOVING_ROWS)
    tasks = [
        (values[k:few:n_slices], labels[k:few:n_slices], len(part), (*seed, k))
        for k, part in enumerate(np.array_split(np.arange(n_points), n_slices))
    ]
    moved = np.concatenate(executor.map(optimised, tasks, gpu=True))
    [soft] = executor.map(partial(best_labels, rows=values, labels=labels), [moved], gpu=True)
    found = np.hstack([moved, soft + share]).astype(np.float32)
    return pd.DataFrame(found, columns=[*names, *_label_names(schema)])


def encoded(codes: Codes, schema: TableSchema) -> tuple[list[str], Floats32]:
    """Return the names (d,) of the features, and those (n, d) of rows; each row by itself."""
    tables = _tables(schema)
    values = [table[own] for own, part in zip(codes.T, tables, strict=True) for _, table in part]
    return [name for part in tables for name, _ in part], np.stack(values, axis=1)


def _tables(schema: TableSchema) -> list[list[_Feature]]:
    if schema.image is None:
        return [list(features(column)) for column in schema.columns]
    white = np.array(schema.image.levels, dtype=np.float32) / np.float32(_WHITE)
    return [[(f"`{name}` / {_WHITE}", white)] for name in schema.column_names]


def features(column: Column) -> Iterator[_Feature]:
    """Yield the features of a column, each with its value for every code: levels, bins reached."""
    name = f"`{column.name}`"
    if not isinstance(column, NumericColumn):
        absent = () if column.nullable else column.missing[:1]
        known = np.eye(column.n_codes, dtype=np.float32)
        for level, is_it in zip((*column.levels, *absent), known, strict=False):
            yield f"{name} == {level!r}", is_it
        return
    days = column.is_date and column.base is None
    if column.is_date:
        name += ".astype('datetime64[s]')" if days else f" - `{column.base}`"
        name = name if days else f"({name}).dt.days"

    def at(number: float, form: str) -> str:
        return repr(column.text(number)) if days else format(number, form)

    code = None if column.nullable or not column.missing else column.read(column.missing[0])
    starts = np.array(column.bin_starts)
    absent_value = [np.nan if code is None else code] * column.has_missing
    values = np.array([*starts, *absent_value])
    # True wherever there is a number.
    if code is not None and code > column.upper:
        yield f"{name} <= {at(column.upper, '.10g')}", (values <= column.upper).astype(np.float32)
    elif column.has_missing:
        yield f"{name} >= {at(column.lower, '.10g')}", (values >= column.lower).astype(np.float32)
    form = f".{column.grid_decimals}f"
    for start in starts[1:]:
        yield f"{name} >= {at(start, form)}", (values >= start).astype(np.float32)


def _label_names(schema: TableSchema) -> list[str]:
    parts = schema.labels.parts
    return [
        " and ".join(map(_met, schema.all_labels, levels))
        for levels in zip(*parts.values(), strict=True)
    ]


def _met(label: Label, level: str) -> str:
    if label.number is None:
        return f"`{label.name}` == {level!r}"
    low, _, high = level.removesuffix(" or more").partition("..")
    return f"{low} <= `{label.name}`" + (f" < {high}" if high else "")
