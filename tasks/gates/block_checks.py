"""One check for all pixels of a table, and one for all items.

Great Expectations takes a hundredth of a second and more for each rule of each column, and a small
image has hundreds of columns of one kind. What the rules of these columns would ask of every cell
is asked here of all cells at once, and counts as one check of the gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from storage.schema.table import CategoricalColumn, TableSchema, raw_text
from storage.sources.cells import distinct

PIXELS, ITEMS = "pixels", "items"
"""Names of the checks."""


def block_check(schema: TableSchema) -> str | None:
    """Return the name of the check that stands for those of all feature columns, if there is one.

    Parameters
    ----------
    schema
        The public schema.

    Returns
    -------
    str or None
        `PIXELS` or `ITEMS`; None where every column has checks of its own.
    """
    if schema.image is not None:
        return PIXELS
    return ITEMS if schema.items is not None else None


def block_is_readable(frame: pd.DataFrame, schema: TableSchema) -> bool:
    """Return whether the encoder can read every cell of a block of a source.

    Parameters
    ----------
    frame
        Private rows, as text or as native types. A column that is absent is another check's.
    schema
        The public schema, with ``image`` or ``items``.

    Returns
    -------
    bool
        Pixels: every cell is a finite number; one outside of 0 to 255 is clipped. Items: every cell
        is 0 or 1, or false or true.

    Privacy
    -------
    Private, as the rows are.
    """
    if schema.image is None:
        accepted = _accepted(schema)
        return all(texts.isin(accepted).all() for texts in _texts(frame, schema))
    cells = frame[[name for name in schema.column_names if name in frame]]
    if all(isinstance(dtype, np.dtype) and dtype.kind in "iu" for dtype in set(cells.dtypes)):
        return True
    return all(np.isfinite(_numbers(cells[name])).all() for name in cells)


def undeclared_values(frame: pd.DataFrame, schema: TableSchema, *, limit: int) -> list[str]:
    """Return values of a block of a release that are not declared, as text.

    Parameters
    ----------
    frame
        Synthetic rows. A column that is absent is another check's.
    schema
        The public schema, with ``image`` or ``items``.
    limit
        Most values that are returned.

    Returns
    -------
    list of str
        Distinct values, sorted; empty where every pixel is a declared gray level, or every item 0
        or 1. An empty cell is "nothing".
    """
    if schema.image is None:
        wrong: set[str] = set()
        for texts in _texts(frame, schema):
            wrong.update(texts[~texts.isin(["0", "1"])].unique())
        return sorted(text or "nothing" for text in wrong)[:limit]
    levels = schema.image.levels
    names = [name for name in schema.column_names if name in frame]
    found: set[Any] = set()
    if all(dtype == np.uint8 for dtype in set(frame[names].dtypes)):
        found.update(np.flatnonzero(np.bincount(frame[names].to_numpy().ravel(), minlength=256)))
    else:
        for name in names:
            found.update(frame[name].unique().tolist())
    return sorted({_shown(value) for value in found if not _is_level(value, levels)})[:limit]


def _is_level(value: Any, levels: tuple[int, ...]) -> bool:
    return isinstance(value, int | float | np.integer) and value in levels


def _shown(value: Any) -> str:
    return "nothing" if pd.isna(value) else raw_text(value)


def _numbers(series: pd.Series) -> NDArray[np.float64]:
    """Read the numbers of a column; NaN for everything else."""
    numbers = pd.to_numeric(series, errors="coerce")
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def _texts(frame: pd.DataFrame, schema: TableSchema) -> Iterator[pd.Series]:
    """Yield the text of each item column that is there; an empty cell is the empty text."""
    for name in schema.column_names:
        if name in frame:
            index, texts = distinct(frame[name])
            yield pd.Series(np.array([*texts, ""], dtype=object)[index], dtype="str")


def _accepted(schema: TableSchema) -> list[str]:
    column = schema.columns[0]
    if not isinstance(column, CategoricalColumn):
        raise ValueError("expected a schema with items")
    return [*column.levels, *(value for values in column.groups.values() for value in values)]
