"""Rules of a table: one suite of Great Expectations over the distinct cells of each column.

A rule that holds for each distinct cell holds for every row, so the suite has the same size for a
thousand rows and for ten million. Only booleans are returned.
"""

import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats
from privacy.errors import ConfigurationError
from storage.schema.columns import CategoricalColumn, Column
from storage.schema.table import TableSchema
from storage.sources.cells import distinct

RESULT_FORMAT = "BOOLEAN_ONLY"
"""The one result format of Great Expectations that carries no value, no count and no bound."""

Cells: TypeAlias = NDArray[Any]
"""Distinct cells of a column."""

_BETWEEN = "ExpectColumnValuesToBeBetween"
_IN_SET = "ExpectColumnValuesToBeInSet"
_SAME_SET = "ExpectColumnDistinctValuesToEqualSet"
_MATCHES = "ExpectColumnValuesToMatchRegex"
_NOT_NULL = "ExpectColumnValuesToNotBeNull"

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"


@dataclass(frozen=True, slots=True)
class _TableRule:
    """A named rule of a column, or with None of the table, as an expectation of its cells."""

    check: str
    column: str | None
    expectation: str
    arguments: Mapping[str, Any]


@cache
def silent_great_expectations() -> Any:
    """Import Great Expectations (two seconds) with analytics, progress bars and logs off."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations
        import great_expectations.expectations
    # Its log lines quote expectation arguments and exception texts.
    logger = logging.getLogger("great_expectations")
    logger.setLevel(logging.CRITICAL + 1)
    logger.propagate = False
    return great_expectations


@cache
def batch_definition() -> Any:
    """Return one in-memory source: nothing on disk, no data docs, no progress bars."""
    context = silent_great_expectations().get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("chunk")
    return asset.add_batch_definition_whole_dataframe("whole")


def judged(
    rules: Sequence[tuple[_TableRule, Cells | None]],
) -> list[tuple[str, str | None, bool]]:
    """Return check and column of each rule, and true if it holds.

    A rule holds for no cells, and fails for None.
    """
    gx, passed = silent_great_expectations(), list[bool]()
    # Columns of similar length share a frame, in which shorter ones repeat their cells.
    batches: dict[int, tuple[dict[str, Cells], list[Any]]] = {}
    for place, (rule, cells) in enumerate(rules):
        passed.append(cells is not None)
        if cells is not None and len(cells):
            columns, expectations = batches.setdefault(len(cells).bit_length() // 8, ({}, []))
            columns[str(place)] = cells
            kind = getattr(gx.expectations, rule.expectation)
            expectations.append(kind(column=str(place), **rule.arguments))
    for columns, expectations in batches.values():
        height = max(map(len, columns.values()))
        frame = pd.DataFrame({name: np.resize(cells, height) for name, cells in columns.items()})
        suite = gx.ExpectationSuite(name="rules", expectations=expectations)
        with warnings.catch_warnings():
            # A warning may quote a value; nothing about the rows leaves by this way.
            warnings.simplefilter("ignore")
            batch = batch_definition().get_batch({"dataframe": frame})
            results = batch.validate(suite, result_format=RESULT_FORMAT).results
        if any(result.result for result in results):
            raise ConfigurationError(
                "RESULT_FORMAT",
                "expected a result without values from Great Expectations; "
                "use the version of the lock file",
            )
        for result in results:
            passed[int(result.expectation_config.kwargs["column"])] = bool(result.success)
    return [
        (rule.check, rule.column, holds) for (rule, _), holds in zip(rules, passed, strict=True)
    ]


def release_rules(
    frame: pd.DataFrame, schema: TableSchema, rows: int
) -> list[tuple[_TableRule, Cells | None]]:
    """Return the rules of the output gate with the cells of the synthetic rows."""
    names = [*map(str, enumerate(schema.released_columns))]
    header, number = [*map(str, enumerate(frame))], np.array([float(len(frame))])
    asked: list[tuple[_TableRule, Cells | None]] = [
        (_TableRule("columns", None, _SAME_SET, {"value_set": names}), _array(header)),
        (_TableRule("row_count", None, _BETWEEN, {"min_value": rows, "max_value": rows}), number),
    ]
    block = _block_of(schema)
    if block is None:
        for column in schema.columns:
            asked += _release_rules(column, frame)
    else:
        levels = ["0", "1"] if schema.image is None else [*map(str, schema.image.levels)]
        types = {frame[name].dtype.kind for name in schema.column_names if name in frame}
        whole = schema.image is None or types <= {"i", "u"}
        texts = _texts(frame, schema.column_names) if whole else None
        asked.append((_TableRule(block, None, _IN_SET, {"value_set": levels}), _array(texts)))
    for label in schema.all_labels:
        if label.number is not None:
            asked += _release_rules(label.number, frame)
            continue
        rule = _TableRule("label", label.name, _IN_SET, {"value_set": [*label.level_names]})
        asked.append((rule, _array(_texts(frame, [label.name]))))
    return asked


def _release_rules(column: Column, frame: pd.DataFrame) -> list[tuple[_TableRule, Cells | None]]:
    """Return the rules of a released column: its levels, or numbers in bounds and on the grid."""
    name, missing = column.name, [*column.missing, *([""] if column.nullable else [])]
    if isinstance(column, CategoricalColumn):
        levels = {"value_set": [*column.levels, *missing]}
        return [(_TableRule("level", name, _IN_SET, levels), _array(_texts(frame, [name])))]
    numbers, off_grid = numbers_of(frame, name), None
    texts = _array([] if numbers is not None else _texts(frame, [name]))  # [] is numbers by type
    if numbers is None and texts is not None:
        numbers = np.array(pd.to_numeric(texts, errors="coerce"), dtype=np.float64)
        numbers[np.isin(texts, missing)] = column.lower
    if numbers is not None:
        # A missing code is no number of the column; NaN is an empty cell.
        numbers = np.where(np.isin(numbers, column.missing_numbers), column.lower, numbers)
        finite = numbers[np.isfinite(numbers)]
        apart = np.round(finite, column.grid_decimals) - finite
        off_grid = _ends(apart[apart != 0.0])
        numbers = _ends(numbers)
    bounds = {"min_value": column.lower, "max_value": column.upper}
    asked = [
        (_TableRule("number", name, _MATCHES, _one_of(missing, _NUMBER)), texts),
        (_TableRule("grid", name, _BETWEEN, {"min_value": 0.0, "max_value": 0.0}), off_grid),
        (_TableRule("bounds", name, _BETWEEN, bounds), numbers),
    ]
    return asked + [(_TableRule("not_null", name, _NOT_NULL, {}), numbers)] * (not column.nullable)


def _block_of(schema: TableSchema) -> str | None:
    """Return the name of the one check of all pixels or items, which share a declaration."""
    return "pixels" if schema.image is not None else "items" if schema.items is not None else None


def _one_of(texts: Iterable[str], *patterns: str) -> dict[str, str]:
    return {"regex": f"^(?:{'|'.join([*patterns, *map(re.escape, sorted(texts))])})$"}


def _array(texts: Iterable[str] | None) -> Cells | None:
    return None if texts is None else np.array([*texts], dtype=object)


def _texts(frame: pd.DataFrame, names: Sequence[str]) -> set[str] | None:
    """Return the distinct texts of columns as the schema compares them; nulls are empty."""
    if not set(names) <= set(frame.columns):
        return None
    kinds = {*frame[list(names)].dtypes}
    if len(names) > 1 and all(isinstance(k, np.dtype) and k.kind in "iu" for k in kinds):
        return {*map(str, pd.unique(frame[list(names)].to_numpy().ravel()).tolist())}
    texts: set[str] = set()
    for name in names:
        index, found = distinct(frame[name])
        texts.update(found, [""] if (index < 0).any() else [])
    return texts


def numbers_of(frame: pd.DataFrame, name: str) -> Floats | None:
    """Return the numbers of a column of a numeric type, NaN for nulls; else None."""
    if name not in frame or not pd.api.types.is_numeric_dtype(frame[name]):
        return None
    if pd.api.types.is_bool_dtype(frame[name]):
        return None
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)


def _ends(numbers: Floats) -> Floats:
    """Return the smallest and the largest number, and NaN if one occurs."""
    known = numbers[~np.isnan(numbers)]
    ends = [known.min(), known.max()] if len(known) else []
    return np.array([*ends, *([np.nan] if len(known) < len(numbers) else [])])
