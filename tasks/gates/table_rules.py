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
from storage.schema.columns import CategoricalColumn, Column, NumericColumn, raw_text
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from storage.sources.cells import distinct

RESULT_FORMAT = "BOOLEAN_ONLY"
"""The one result format of Great Expectations that carries no value, no count and no bound."""

Cells: TypeAlias = NDArray[Any]
"""Distinct cells of a column; private if the rows are."""

_BETWEEN = "ExpectColumnValuesToBeBetween"
_IN_SET = "ExpectColumnValuesToBeInSet"
_SAME_SET = "ExpectColumnDistinctValuesToEqualSet"
_MATCHES = "ExpectColumnValuesToMatchRegex"
_NOT_NULL = "ExpectColumnValuesToNotBeNull"

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
# A whole number may be spelt 3.0 or 3e2; the encoder refuses an exponent that makes a fraction.
_WHOLE_NUMBER = r"[+-]?(?:[0-9]+(?:\.0*)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+)"


@dataclass(frozen=True, slots=True)
class _TableRule:
    """A named rule of a column, or with None of the table, as an expectation of its cells.

    ``number`` is the pattern of accepted numbers, if numbers of any digits are accepted.
    """

    check: str
    column: str | None
    expectation: str
    arguments: Mapping[str, Any]
    number: str | None = None

    @property
    def title(self) -> str:
        """Name of the check, with its column where it has one."""
        return self.check if self.column is None else f"{self.check}: {self.column}"


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


def source_rules(schema: TableSchema, patient_column: str | None) -> list[_TableRule]:
    """Return the rules of the input gate: cells that the encoder accepts or mends."""
    names = sorted({*schema.released_columns, *([patient_column] if patient_column else [])})
    block = _block_of(schema)
    columns = schema.columns[:1] if block else schema.columns
    return [
        _TableRule("columns", None, _SAME_SET, {"value_set": names}),
        *(rule for column in columns if (rule := _source_rule(column, block)) is not None),
        *(
            _label_rule(label)
            for label in (schema.label, *schema.more_labels)
            if label.other is None
        ),
    ]


def source_cells(
    frame: pd.DataFrame, schema: TableSchema, patient_column: str | None
) -> dict[str, set[str]]:
    """Return the distinct cells for each rule of `source_rules`, by its title.

    Numbers of one shape count as one cell, so cells stay few for any number of rows.
    """
    found = {}
    for rule in source_rules(schema, patient_column):
        if rule.check == "columns":
            found[rule.title] = set(frame.columns)
            continue
        names = schema.column_names if rule.column is None else (rule.column,)
        numbers = _numbers(frame, names[0]) if rule.check == "number" else None
        texts = _texts(frame, names) if numbers is None else set(map(_number_text, _ends(numbers)))
        if texts is not None:
            pattern = rule.number
            found[rule.title] = {_shape(text, pattern) for text in texts} if pattern else texts
    return found


def _source_rule(column: Column, block: str | None) -> _TableRule | None:
    """Return the rule of a source column or block; None if the encoder accepts every value."""
    name = None if block else column.name
    number: str | None
    accepted = {*column.missing, *([""] if column.nullable else [])}
    if isinstance(column, NumericColumn):
        number = _WHOLE_NUMBER if column.kind == "integer" else _NUMBER
        return _TableRule(block or "number", name, _MATCHES, _one_of(accepted, number), number)
    if column.other is not None:
        return None
    accepted.update(column.levels, *column.groups.values())
    patterns = _beginnings(column)
    if not column.numeric_ranges:
        return _TableRule(block or "level", name, _MATCHES, _one_of(accepted, *patterns))
    regex = _one_of(accepted, *patterns, _NUMBER)
    return _TableRule(block or "level", name, _MATCHES, regex, _NUMBER)


def _label_rule(label: Label) -> _TableRule:
    accepted = {*label.level_names, *label.missing, *([""] if label.nullable else [])}
    accepted.update(*(label.levels or {}).values())
    number = None if label.buckets is None else _NUMBER
    regex = _one_of(accepted, *_beginnings(label), *([number] if number else []))
    return _TableRule("label", label.name, _MATCHES, regex, number)


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
    for label in (schema.label, *schema.more_labels):
        rule = _TableRule("label", label.name, _IN_SET, {"value_set": [*label.level_names]})
        asked.append((rule, _array(_texts(frame, [label.name]))))
    return asked


def _release_rules(column: Column, frame: pd.DataFrame) -> list[tuple[_TableRule, Cells | None]]:
    """Return the rules of a released column: its levels, or numbers in bounds and on the grid."""
    name, missing = column.name, [*column.missing, *([""] if column.nullable else [])]
    if isinstance(column, CategoricalColumn):
        levels = {"value_set": [*column.levels, *missing]}
        return [(_TableRule("level", name, _IN_SET, levels), _array(_texts(frame, [name])))]
    numbers, off_grid = _numbers(frame, name), None
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


def _beginnings(column: CategoricalColumn | Label) -> list[str]:
    return [re.escape(start) + ".*" for starts in column.prefixes.values() for start in starts]


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


def _numbers(frame: pd.DataFrame, name: str) -> Floats | None:
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


def _number_text(number: float) -> str:
    return "" if np.isnan(number) else raw_text(float(number))


def _shape(text: str, pattern: str) -> str:
    """Replace each run of digits in a number by 9, or by 0 if all are 0; keep other texts."""
    if re.fullmatch(pattern, text) is None:
        return text
    return re.sub("[0-9]+", lambda run: "9" if run[0].strip("0") else "0", text)
