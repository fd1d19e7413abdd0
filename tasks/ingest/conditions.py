"""Rows of a finished measurement that meet conditions on declared levels, by rejection.

Post-processing of released values: free, as often as wanted.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes
from privacy.errors import ConfigurationError
from storage.schema.columns import NumericColumn
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
    """Sample coded rows that meet conditions, or fewer, at least one, where not all are needed."""
    check_conditions(schema, conditions)
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
        codes, label = synthesizer.sample(released, n_rows=n_rows, rng=rng)
        n_sampled += len(label)
        keep = _meets(schema, conditions, codes, label)
        parts.append(CodedTable(codes=codes[keep], label=label[keep]))
        n_kept += int(keep.sum())
    return CodedTable(
        codes=np.concatenate([part.codes for part in parts])[:n_rows],
        label=np.concatenate([part.label for part in parts])[:n_rows],
    )


def _meets(
    schema: TableSchema, conditions: Mapping[str, str], codes: Codes, label: Codes
) -> NDArray[np.bool_]:
    keep = np.ones(len(label), dtype=np.bool_)
    levels = _levels_of(schema)
    for column, level in conditions.items():
        cells = (
            label if column == schema.label.name else codes[:, schema.column_names.index(column)]
        )
        keep &= cells == levels[column].index(level)
    return keep


def check_conditions(schema: TableSchema, conditions: Mapping[str, str]) -> None:
    """Refuse a condition on anything but a declared level of a column with levels."""
    levels = _levels_of(schema)
    for column, level in conditions.items():
        known = levels.get(column)
        if known is None:
            raise ConfigurationError(
                "CONDITION_UNKNOWN",
                f"expected a column with levels ({_some(levels)}), found {column}={level}",
            )
        if level not in known:
            raise ConfigurationError(
                "CONDITION_UNKNOWN",
                f"expected a declared level of {column} ({_some(known)}), found {column}={level}",
            )


def _some(names: Iterable[str]) -> str:
    """Name the first few of what was declared."""
    first = list(islice(names, _NAMED + 1))
    return ", ".join([*first[:_NAMED], "..."] if len(first) > _NAMED else first)


def _levels_of(schema: TableSchema) -> dict[str, tuple[str, ...]]:
    levels = {
        column.name: column.levels
        for column in schema.columns
        if not isinstance(column, NumericColumn)
    }
    return {**levels, schema.label.name: schema.label.level_names}


def _in_words(conditions: Mapping[str, str]) -> str:
    return ", ".join(f"{column}={level}" for column, level in conditions.items())
