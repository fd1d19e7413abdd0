"""The output gate: rules of the declared schema, of the file that is published.

The encoder holds the source against them, `tasks.gates.suites` against the owner's own rules. A
release reveals that the table kept these rules: one bit that the guarantee does not cover.

One suite of Great Expectations judges the distinct cells of each column, since a rule that they
keep holds for every row: its size does not grow with the rows. Only booleans are returned.
"""

import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats
from privacy.errors import ConfigurationError
from storage.releases.manifest import GateRecord
from storage.schema.columns import CategoricalColumn, Column, NumericColumn
from storage.schema.table import TableSchema
from storage.sources.cells import distinct, number_cells

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


class _Rule(NamedTuple):
    """A named rule as an expectation of cells; without any cells it holds, for None it fails."""

    check: str
    expectation: str
    arguments: Mapping[str, Any]
    cells: Cells | None


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


def output_gate(frame: pd.DataFrame, schema: TableSchema, rows: int) -> list[GateRecord]:
    """Check a synthetic table that was read back from the file to be published.

    ``rows`` is the site file's number. A label level may be absent; other labels are refused.

    Privacy
    -------
    Post-processing: reads synthetic rows and public declarations only.
    """
    if not frame.columns.is_unique or not all(isinstance(name, str) for name in frame.columns):
        return [GateRecord(check="columns", passed=False)]
    rules = _rules(frame, schema, rows)
    return [
        GateRecord(check=rule.check, passed=passed)
        for rule, passed in zip(rules, _judged(rules), strict=True)
    ]


def column_checks(
    columns: Iterable[tuple[pd.DataFrame, CategoricalColumn | NumericColumn, str]],
) -> list[GateRecord]:
    """Check columns of tables of events, each in rows that a text names; see `output_gate`."""
    rules = []
    for frame, column, where in columns:
        own = frame[[column.name]]
        if isinstance(column, NumericColumn) and column.is_date:
            days, _, missing, _ = number_cells(own[column.name], column)
            own = pd.DataFrame({column.name: np.where(missing, column.lower, days)})
        rules += [one._replace(check=f"{one.check} of {where}") for one in _rules_of(column, own)]
    passed = zip(rules, _judged(rules), strict=True)
    return [GateRecord(check=rule.check, passed=holds) for rule, holds in passed]


def _judged(rules: Sequence[_Rule]) -> list[bool]:
    gx, passed = silent_great_expectations(), [rule.cells is not None for rule in rules]
    # Columns of similar length share a frame, in which shorter ones repeat their cells.
    batches: dict[int, tuple[dict[str, Cells], list[Any]]] = {}
    for place, (_, expectation, arguments, cells) in enumerate(rules):
        if cells is not None and len(cells):
            columns, expectations = batches.setdefault(len(cells).bit_length() // 8, ({}, []))
            columns[str(place)] = cells
            kind = getattr(gx.expectations, expectation)
            expectations.append(kind(column=str(place), **arguments))
    for columns, expectations in batches.values():
        height = max(map(len, columns.values()))
        frame = pd.DataFrame({name: np.resize(cells, height) for name, cells in columns.items()})
        results = validated(frame, gx.ExpectationSuite(name="rules", expectations=expectations))
        if any(result.result for result in results):
            raise ConfigurationError(
                "RESULT_FORMAT",
                "expected a result without values from Great Expectations; "
                "use the version of the lock file",
            )
        for result in results:
            passed[int(result.expectation_config.kwargs["column"])] = bool(result.success)
    return passed


def validated(frame: pd.DataFrame, suite: Any, result_format: Any = None) -> list[Any]:
    """Return the results of a suite on rows: booleans alone by default."""
    batch = batch_definition().get_batch({"dataframe": frame})
    with warnings.catch_warnings():
        # A warning may quote a value; nothing about the rows leaves by this way.
        warnings.simplefilter("ignore")
        results = batch.validate(suite, result_format=result_format or RESULT_FORMAT).results
    return list(results)


def _rules(frame: pd.DataFrame, schema: TableSchema, rows: int) -> list[_Rule]:
    frame = _with_days(frame, schema)
    names, header = [*map(str, enumerate(schema.released_columns))], [*map(str, enumerate(frame))]
    number, count = np.array([float(len(frame))]), {"min_value": rows, "max_value": rows}
    asked = [
        _Rule("columns", _SAME_SET, {"value_set": names}, _array(header)),
        _Rule("row_count", _BETWEEN, count, number),
    ]
    if schema.image is None and schema.items is None:
        asked += [rule for column in schema.columns for rule in _rules_of(column, frame)]
    else:  # pixels or items, which share a declaration
        levels = ["0", "1"] if schema.image is None else [*map(str, schema.image.levels)]
        types = {frame[name].dtype.kind for name in schema.column_names if name in frame}
        whole = schema.image is None or types <= {"i", "u"}
        texts, block = _texts(frame, schema.column_names), "items" if schema.items else "pixels"
        asked.append(_Rule(block, _IN_SET, {"value_set": levels}, texts if whole else None))
    asked += [rule for column in schema.derived_columns for rule in _rules_of(column, frame)]
    for label in schema.all_labels:
        if label.number is not None:
            asked += _rules_of(label.number, frame)
            continue
        rule, levels = f"label: {label.name}", [*label.level_names]
        asked.append(_Rule(rule, _IN_SET, {"value_set": levels}, _texts(frame, [label.name])))
    return asked


def _with_days(frame: pd.DataFrame, schema: TableSchema) -> pd.DataFrame:
    """Return the rows with a number of days in the place of a date, NaN for what is none."""
    found = {}
    for column in (one for one in schema.columns if isinstance(one, NumericColumn)):
        base = schema.base_of(column)
        if column.is_date and {column.name, column.base or column.name} <= {*frame}:
            days, _, missing, _ = number_cells(frame[column.name], column)
            zero = 0.0 if base is None else number_cells(frame[base.name], base)[0]
            found[column.name] = np.where(missing, column.lower, days - zero)
    return frame.assign(**found)


def _rules_of(column: Column, frame: pd.DataFrame) -> list[_Rule]:
    """Return the rules of a released column: its levels, or numbers in bounds and on the grid."""
    name, missing = column.name, [*column.missing, *([""] if column.nullable else [])]
    if isinstance(column, CategoricalColumn):
        levels = {"value_set": [*column.levels, *missing]}
        return [_Rule(f"level: {name}", _IN_SET, levels, _texts(frame, [name]))]
    numbers, off_grid = numbers_of(frame, name), None
    texts = _array([]) if numbers is not None else _texts(frame, [name])  # [] is numbers by type
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
    forms = [_NUMBER, *map(re.escape, sorted(missing))]
    asked = [
        _Rule(f"number: {name}", _MATCHES, {"regex": f"^(?:{'|'.join(forms)})$"}, texts),
        _Rule(f"grid: {name}", _BETWEEN, {"min_value": 0.0, "max_value": 0.0}, off_grid),
        _Rule(f"bounds: {name}", _BETWEEN, bounds, numbers),
    ]
    return asked + [_Rule(f"not_null: {name}", _NOT_NULL, {}, numbers)] * (not column.nullable)


def _array(texts: Iterable[str]) -> Cells:
    return np.array([*texts], dtype=object)


def _texts(frame: pd.DataFrame, names: Sequence[str]) -> Cells | None:
    """Return the distinct texts of columns as the schema compares them; nulls are empty."""
    if not set(names) <= set(frame.columns):
        return None
    kinds = {*frame[list(names)].dtypes}
    if len(names) > 1 and all(isinstance(k, np.dtype) and k.kind in "iu" for k in kinds):
        return _array({*map(str, pd.unique(frame[list(names)].to_numpy().ravel()).tolist())})
    texts: set[str] = set()
    for name in names:
        index, found = distinct(frame[name])
        texts.update(found, [""] if (index < 0).any() else [])
    return _array(texts)


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
