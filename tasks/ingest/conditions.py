"""Rows of a finished measurement that meet conditions on declared levels and bins.

Post-processing of released values: free, as often as wanted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Records
from privacy.errors import ConfigurationError
from storage.schema.columns import NumericColumn, number_of
from storage.schema.table import TableSchema
from tasks.gates.agreement import CodedTable
from tasks.measurement.synthesizer import Released, Synthesizer

_NAMED = 12
"""Most names of a list that a message gives."""

MAX_OVERSAMPLING = 200
"""Most rows that are sampled for each row that has to meet the conditions."""


def sample_rows(
    synthesizer: Synthesizer,
    schema: TableSchema,
    released: Released,
    rng: np.random.Generator,
    conditions: Mapping[str, str],
    *,
    n_rows: int,
    all_of_them: bool = True,
) -> CodedTable:
    """Sample coded rows that meet conditions, or fewer, at least one, where not all are needed.

    A method that can is asked for rows that meet those on columns; rows that do not meet the others
    are thrown away.
    """
    allowed = allowed_codes(schema, conditions)
    parts: list[CodedTable] = []
    n_kept, n_sampled = 0, 0
    while n_kept < n_rows:
        if n_sampled >= MAX_OVERSAMPLING * n_rows:
            if n_kept and not all_of_them:
                break
            raise ConfigurationError(
                "CONDITION_RARE",
                f"expected one of {MAX_OVERSAMPLING} sampled rows to meet "
                f"{_in_words(conditions)}, found fewer; ask for fewer conditions",
            )
        if allowed.columns and isinstance(synthesizer, Conditional):
            codes, label = synthesizer.sample_where(
                released, allowed.columns, n_rows=n_rows, rng=rng
            )
        else:
            codes, label = synthesizer.sample(released, n_rows=n_rows, rng=rng)
        n_sampled += len(label)
        keep = allowed.met_by(codes, label)
        parts.append(CodedTable(codes=codes[keep], label=label[keep]))
        n_kept += int(keep.sum())
    return CodedTable(
        codes=np.concatenate([part.codes for part in parts])[:n_rows],
        label=np.concatenate([part.label for part in parts])[:n_rows],
    )


@runtime_checkable
class Conditional(Protocol):
    """A method that samples what columns are asked to be, without throwing rows away."""

    def sample_where(
        self,
        released: Released,
        allowed: Mapping[int, NDArray[np.bool_]],
        *,
        n_rows: int,
        rng: np.random.Generator,
    ) -> Records:
        """As `Synthesizer.sample`, of records with an allowed code in each of these columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Which codes rows may have, by the number of the column, and which labels; None: all."""

    columns: Mapping[int, NDArray[np.bool_]]
    labels: NDArray[np.bool_] | None

    def met_by(self, codes: Codes, label: Codes) -> NDArray[np.bool_]:
        """Which rows have them."""
        keep = np.ones(len(label), dtype=np.bool_)
        for column, allowed in self.columns.items():
            keep &= allowed[codes[:, column]]
        return keep if self.labels is None else keep & self.labels[label]


def allowed_codes(schema: TableSchema, conditions: Mapping[str, str]) -> Allowed:
    """Return the codes that conditions allow.

    A condition is a declared level of a column or of the label, or a range ``LOW..HIGH`` of whole
    bins of numbers: from the start of one up to the start of another, which is left out, or up to
    the upper bound. It is a ConfigurationError if it is anything else.
    """
    columns: dict[int, NDArray[np.bool_]] = {}
    labels = None
    for name, asked in conditions.items():
        if name == schema.label.name:
            labels = _one_of(name, asked, schema.label.level_names)
            continue
        if name not in schema.column_names or schema.image is not None:
            known = _some((*schema.column_names, schema.label.name))
            raise ConfigurationError(
                "CONDITION_UNKNOWN", f"expected a column ({known}), found {name}={asked}"
            )
        index = schema.column_names.index(name)
        column = schema.columns[index]
        within = (
            _in_range(column, asked)
            if isinstance(column, NumericColumn)
            else _one_of(name, asked, column.levels)
        )
        # A missing cell is not asked for.
        columns[index] = np.pad(within, (0, column.n_codes - len(within)))
    return Allowed(columns=columns, labels=labels)


def _one_of(name: str, asked: str, levels: Sequence[str]) -> NDArray[np.bool_]:
    if asked not in levels:
        raise ConfigurationError(
            "CONDITION_UNKNOWN",
            f"expected a declared level of {name} ({_some(levels)}), found {name}={asked}",
        )
    return np.array([level == asked for level in levels])


def _in_range(column: NumericColumn, asked: str) -> NDArray[np.bool_]:
    low, _, high = (part.strip() for part in asked.partition(".."))
    starts = [*column.bin_starts, column.upper]
    first, end = (math.nan if value is None else value for value in map(number_of, (low, high)))
    if end == column.upper:
        end = math.inf  # the bound belongs to the last bin, also where that begins with it
    is_known = first in column.bin_starts and end in (*column.bin_starts, math.inf)
    if not is_known or first >= end:
        places = _some(f"{start:.{column.grid_decimals}f}" for start in starts)
        raise ConfigurationError(
            "CONDITION_UNKNOWN",
            f"expected LOW..HIGH of {column.name}, each of them the start of a bin or the upper "
            f"bound ({places}), found {column.name}={asked}",
        )
    found = np.asarray(column.bin_starts)
    return np.asarray((found >= first) & (found < end))


def _some(names: Iterable[str]) -> str:
    """Name the first few of what was declared."""
    first = list(islice(names, _NAMED + 1))
    return ", ".join([*first[:_NAMED], "..."] if len(first) > _NAMED else first)


def _in_words(conditions: Mapping[str, str]) -> str:
    return ", ".join(f"{column}={level}" for column, level in conditions.items())
