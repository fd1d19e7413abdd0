"""The Great Expectations suites of the two gates, built from the declared schema alone."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.schema.table import CategoricalColumn, Column, NumericColumn, TableSchema
from tasks.gates.block_checks import block_check

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuite

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A whole number may be spelt 3.0 or 3e2; what an exponent makes of it is left to the encoder.
_WHOLE_NUMBER = r"[+-]?\d+(?:\.0*)?(?:[eE][+-]?\d+)?"
_LARGEST = float(np.finfo(np.float64).max)


@cache
def silent_great_expectations() -> Any:
    """Import Great Expectations (two seconds) with everything that talks switched off."""
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
    """One in-memory source: nothing on disk, no data docs, no progress bars."""
    context = silent_great_expectations().get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("chunk")
    return asset.add_batch_definition_whole_dataframe("whole")


class _SuiteBuilder:
    """Collects expectations, each with the check and the column that it stands for."""

    def __init__(self) -> None:
        self._gx = silent_great_expectations()
        self._expectations: list[Any] = []

    def table(self, check: str, kind: str, **arguments: object) -> None:
        self._add(check, None, kind, arguments)

    def column(self, check: str, column: str, kind: str, **arguments: object) -> None:
        self._add(check, column, kind, {"column": column, **arguments})

    def _add(self, check: str, column: str | None, kind: str, arguments: dict[str, Any]) -> None:
        meta = {"check": check, "column": column, "position": len(self._expectations)}
        expectation = getattr(self._gx.expectations, kind)
        self._expectations.append(expectation(**arguments, meta=meta))

    def build(self, name: str) -> ExpectationSuite:
        suite: ExpectationSuite = self._gx.ExpectationSuite(
            name=name, expectations=self._expectations
        )
        return suite


@lru_cache(maxsize=64)
def input_suite(
    schema_json: str,
    patient_column: str | None,
    native: tuple[str, ...],
    expected: tuple[str, ...],
) -> ExpectationSuite:
    """Return the suite of the input gate, made once per schema and form of the columns.

    Parameters
    ----------
    schema_json
        The public schema as JSON, which can be a cache key.
    patient_column
        Column that names the patient, if there is one.
    native
        Numeric columns that hold numbers rather than text, sorted.
    expected
        All columns that the chunk must have, sorted.
    """
    schema = TableSchema.model_validate_json(schema_json)
    suite = _SuiteBuilder()
    suite.table("columns", "ExpectTableColumnsToMatchSet", column_set=list(expected))
    if patient_column is not None:
        suite.column("patient", patient_column, "ExpectColumnValuesToMatchRegex", regex=".")
    for column in _single_columns(schema):
        if isinstance(column, NumericColumn):
            _expect_numbers(suite, column, column.name in native)
        else:
            _expect_levels(suite, column)
    label = schema.label
    accepted = {*label.level_names, *label.missing}
    accepted.update(value for values in (label.levels or {}).values() for value in values)
    if label.nullable:
        accepted.add("")
    if label.buckets is None:
        suite.column("label", label.name, "ExpectColumnValuesToBeInSet", value_set=sorted(accepted))
    else:
        regex = _one_of(accepted, _NUMBER)
        suite.column("label", label.name, "ExpectColumnValuesToMatchRegex", regex=regex)
    return suite.build("input")


def _single_columns(schema: TableSchema) -> tuple[Column, ...]:
    """Return the columns with expectations of their own; see `tasks.gates.block_checks`."""
    return schema.columns if block_check(schema) is None else ()


def _one_of(texts: Iterable[str], *patterns: str) -> str:
    return f"^(?:{'|'.join([*patterns, *(re.escape(text) for text in sorted(texts))])})$"


def _expect_numbers(suite: _SuiteBuilder, column: NumericColumn, native: bool) -> None:
    if not native:
        accepted = {*column.missing, *([""] if column.nullable else [])}
        number = _WHOLE_NUMBER if column.kind == "integer" else _NUMBER
        regex = _one_of(accepted, number)
        suite.column("number", column.name, "ExpectColumnValuesToMatchRegex", regex=regex)
        return
    suite.column(
        "finite",
        column.name,
        "ExpectColumnValuesToBeBetween",
        min_value=-_LARGEST,
        max_value=_LARGEST,
    )
    if not column.nullable:
        suite.column("not_null", column.name, "ExpectColumnValuesToNotBeNull")


def _expect_levels(suite: _SuiteBuilder, column: CategoricalColumn) -> None:
    blank = column.nullable or "" in column.missing
    if column.other is not None:
        # Every value has a level: only an empty cell that is not declared can be wrong.
        if not blank:
            suite.column("not_null", column.name, "ExpectColumnValuesToMatchRegex", regex=".")
        return
    accepted = {*column.levels, *column.missing, *([""] if blank else [])}
    accepted.update(value for values in column.groups.values() for value in values)
    if not column.prefixes and not column.numeric_ranges:
        suite.column(
            "level", column.name, "ExpectColumnValuesToBeInSet", value_set=sorted(accepted)
        )
        return
    prefixes = [re.escape(text) + ".*" for texts in column.prefixes.values() for text in texts]
    numbers = [_NUMBER] if column.numeric_ranges else []
    regex = _one_of(accepted, *prefixes, *numbers)
    suite.column("level", column.name, "ExpectColumnValuesToMatchRegex", regex=regex)


@lru_cache(maxsize=64)
def output_suite(schema_json: str, rows: int) -> ExpectationSuite:
    """Return the suite of the output gate, for a schema as JSON and a number of rows."""
    schema = TableSchema.model_validate_json(schema_json)
    suite = _SuiteBuilder()
    suite.table(
        "columns", "ExpectTableColumnsToMatchOrderedList", column_list=list(schema.released_columns)
    )
    suite.table("row_count", "ExpectTableRowCountToEqual", value=rows)
    for column in _single_columns(schema):
        if isinstance(column, NumericColumn):
            suite.column(
                "bounds",
                column.name,
                "ExpectColumnValuesToBeBetween",
                min_value=column.lower,
                max_value=column.upper,
            )
            if not column.nullable:
                suite.column("not_null", column.name, "ExpectColumnValuesToNotBeNull")
        else:
            missing = [*column.missing, *([""] if column.nullable else [])]
            suite.column(
                "level",
                column.name,
                "ExpectColumnValuesToBeInSet",
                value_set=[*column.levels, *missing],
            )
    suite.column(
        "label",
        schema.label.name,
        "ExpectColumnValuesToBeInSet",
        value_set=list(schema.label.level_names),
    )
    return suite.build("output")
