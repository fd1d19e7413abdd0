"""Conditions on a column: a declared level, a range of whole bins, or a missing cell.

The language of `constraints:` in the site file and of ``clustmix publish --where``.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from storage.schema.columns import Column, NumericColumn, did_you_mean, number_of

_NAMED = 20
"""Most names of a list that a message gives."""


def codes_asked(column: Column, asked: str | None) -> NDArray[np.bool_]:
    """Return a mask (k,) of the codes of a column that meet a condition.

    A condition is a declared level, a range ``LOW..HIGH`` of whole bins (from the start of one bin
    up to the start of another, excluded, or up to the upper bound), a number with a bin of its own,
    or None for a missing cell. Anything else is a ValueError.
    """
    found = np.zeros(column.n_codes, dtype=np.bool_)
    if asked is None:
        if not column.has_missing:
            raise ValueError(f"expected missing codes or nullable: true of {column.name}")
        found[-1] = True
        return found
    within = (
        _in_range(column, asked)
        if isinstance(column, NumericColumn)
        else levels_asked(column.name, asked, column.levels)
    )
    found[: len(within)] = within
    return found


def levels_asked(name: str, asked: str | None, levels: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the requested level of a column or label; ValueError if it is unknown."""
    if asked not in levels:
        raise ValueError(
            f"expected a declared level of {name} ({in_short(levels)}), found {name}={asked}"
            f"{did_you_mean(asked, levels)}"
        )
    return np.array([level == asked for level in levels])


def _in_range(column: NumericColumn, asked: str) -> NDArray[np.bool_]:
    low, dots, high = (part.strip() for part in asked.partition(".."))
    starts = [*column.bin_starts, column.upper]
    first, end = (math.nan if value is None else value for value in map(number_of, (low, high)))
    if not dots:
        # One number with a bin of its own.
        end = round(first + 10.0**-column.grid_decimals, column.grid_decimals)
        end = math.inf if end > column.upper else end
    elif end in (column.upper, column.upper + (column.kind == "integer")):
        end = math.inf  # the bound belongs to the last bin, even if the bin starts there
    is_known = first in column.bin_starts and end in (*column.bin_starts, math.inf)
    if not is_known or first >= end:
        places = in_short([f"{start:.{column.grid_decimals}f}" for start in starts])
        raise ValueError(
            f"expected LOW..HIGH of {column.name}, each of them the start of a bin or the upper "
            f"bound ({places}), found {column.name}={asked}"
        )
    found = np.asarray(column.bin_starts)
    return np.asarray((found >= first) & (found < end))


def in_short(names: Sequence[str]) -> str:
    """Return names as a list in words, shortened if there are many."""
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown
