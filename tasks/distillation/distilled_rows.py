"""Released rows distilled to a few points: features that conditions name, and soft labels.

A feature is a condition on a row of the release, in the words of ``DataFrame.eval`` of pandas:
```age` >= 25``, ```work` == 'none'``; of images, a pixel as part of white. Conditions come from the
schema alone. Points lie between 0 and 1.

Post-processing: the rows are those of the bundle, and what chance there is comes from their digest.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Codes
from storage.schema.columns import Column, NumericColumn, number_of
from storage.schema.table import TableSchema
from tasks.distillation.inducing_points import Slice, best_labels, optimised, platform
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.gates.agreement import CodedTable

DISTILLED_FILE = "distilled.parquet"

_POINTS_OF_A_SLICE, _MOST_ROWS, _MOST_CELLS = 100, 20_000, 40_000_000
_WHITE = 255

_Feature = tuple[str, NDArray[np.uint8]]
"""Name of a feature, and its value for each code of a column."""


def distilled(
    rows: CodedTable, schema: TableSchema, points: int, executor: Executor = IN_PROCESS
) -> pd.DataFrame:
    """Return so many points, or as many as there are rows, with soft labels; see the module.

    Each slice of the rows, with up to 100 points, is a task, on a GPU worker where there is one.
    """
    content = rows.codes.astype("<u2").tobytes() + rows.label.astype("<u2").tobytes()
    seed = tuple(hashlib.sha256(content).digest())
    # On a processor the convolutional kernel takes hours.
    convolved = schema.image is not None and executor.map(platform, [None], gpu=True) == ["gpu"]
    names, whole = _encoded(rows, schema, points, seed, convolved=convolved)
    share = whole.labels.mean(axis=0)
    centred = replace(whole, labels=whole.labels - share)
    moved = np.concatenate(executor.map(optimised, list(_slices(centred)), gpu=True))
    [labels] = executor.map(partial(best_labels, rows=centred), [moved], gpu=True)
    found = np.hstack([moved, labels + share]).astype(np.float32)
    return pd.DataFrame(found, columns=[*names, *_label_names(schema)])


def features(column: Column, *, pixel: bool = False) -> Iterator[_Feature]:
    """Yield the features of a column: a level, or whether a number has reached a bin."""
    name = f"`{column.name}`"
    if not isinstance(column, NumericColumn):
        absent = () if column.nullable or not column.missing else column.missing[:1]
        known = np.eye(column.n_codes, dtype=np.uint8)
        for level, is_it in zip((*column.levels, *absent), known, strict=False):
            yield f"{name} == {level!r}", is_it
        return
    code = number_of(column.missing[0]) if column.missing and not column.nullable else None
    starts = np.array(column.bin_starts)
    values = np.array([*starts, *([np.nan if code is None else code] * column.has_missing)])
    if column.has_missing:
        # True wherever there is a number.
        above = code is not None and code > column.upper
        kept = values <= column.upper if above else values >= column.lower
        yield f"{name} {'<=' if above else '>='} {column.upper if above else column.lower:.10g}", kept
    for start in starts[1:]:
        yield f"{name} >= {start:.{column.grid_decimals}f}", values >= start


def _encoded(
    rows: CodedTable, schema: TableSchema, points: int, seed: tuple[int, ...], *, convolved: bool
) -> tuple[list[str], Slice]:
    """Return the names of the features, and the values of rows, as many as are looked at."""
    if schema.image is None:
        own = [list(features(column)) for column in schema.columns]
    else:
        levels = np.array(schema.image.levels, dtype=np.uint8)
        own = [[(f"`{name}` / {_WHITE}", levels)] for name in schema.column_names]
    names = [name for of_column in own for name, _ in of_column]
    most = max(points, min(_MOST_ROWS, _MOST_CELLS // len(names)))
    chosen = np.random.default_rng(seed).permutation(len(rows.label))[:most]
    codes = rows.codes[chosen]
    values = [table[codes[:, j]] for j, of_column in enumerate(own) for _, table in of_column]
    return names, Slice(
        rows=np.stack(values, axis=1).astype(np.uint8),
        unit=1.0 if schema.image is None else 1.0 / _WHITE,
        labels=np.eye(len(schema.labels.level_names))[rows.label[chosen]],
        n_points=min(points, len(chosen)),
        seed=seed,
        image=schema.image.shape if schema.image is not None and convolved else None,
    )


def _slices(whole: Slice) -> Iterator[Slice]:
    """Divide rows and points into slices of about as many points as a task is quick with."""
    n_slices = max(1, round(whole.n_points / _POINTS_OF_A_SLICE))
    for k, points in enumerate(np.array_split(np.arange(whole.n_points), n_slices)):
        part = slice(k, None, n_slices)
        yield replace(
            whole,
            rows=whole.rows[part],
            labels=whole.labels[part],
            n_points=len(points),
            seed=(*whole.seed, k),
        )


def _label_names(schema: TableSchema) -> list[str]:
    parts = schema.labels.parts
    return [
        " and ".join(f"`{name}` == {level!r}" for name, level in zip(parts, levels, strict=True))
        for levels in zip(*parts.values(), strict=True)
    ]
