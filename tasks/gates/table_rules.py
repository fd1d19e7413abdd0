"""What the gates ask of a table, made of the declared schema alone.

Pixels of images and items of sets are hundreds of columns of one declaration: the cells of all of
them together are asked its rule, as one check.

Great Expectations judges a rule in a hundredth of a second, and more for many rows. A rule of
single cells holds for all cells of a column if it holds for its different texts, or for its
smallest and its largest number: those are what it is asked about. Booleans alone come back.
"""

import logging
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats
from privacy.errors import ConfigurationError
from storage.schema.columns import CategoricalColumn, Column, NumericColumn
from storage.schema.table import TableSchema
from storage.sources.cells import distinct

RESULT_FORMAT = "BOOLEAN_ONLY"
"""The one result format of Great Expectations that carries no value, no count and no bound."""

Cells: TypeAlias = NDArray[Any]
"""Different texts of a column, or its numbers. Private where the rows are."""


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


class Rules:
    """Rules of a gate in their order, each with its check, column and expectation."""

    def __init__(self) -> None:
        self._checks: list[tuple[str, str | None]] = []
        self._batches: dict[int, tuple[dict[str, Cells], list[Any]]] = {}
        self._passed: dict[int, bool] = {}

    def of_header(
        self, check: str, table: pd.DataFrame, expectation: str, **values: object
    ) -> None:
        """Ask something of the names of the columns."""
        self._passed |= _validate(table.head(0), [self._made(check, None, expectation, values)])

    def of_cells(
        self,
        check: str,
        column: str | None,
        cells: Cells | None,
        expectation: str,
        **values: object,
    ) -> None:
        """Ask something of each text or number; a column that is not there breaks the rule."""
        if cells is not None and cells.dtype == np.float64:
            cells = _ends(cells)
        # With columns of about as many cells, as shorter ones are filled up.
        size = 0 if cells is None else len(cells).bit_length() // 8
        columns, expectations = self._batches.setdefault(size, ({}, []))
        place = str(len(self._checks))
        if cells is not None:
            columns[place] = cells
        expectations.append(self._made(check, column, expectation, {**values, "column": place}))

    def found(self, check: str, column: str | None, passed: bool) -> None:
        """Note a rule that needs no expectation: of a type, or of all numbers together."""
        self._passed[len(self._checks)] = passed
        self._checks.append((check, column))

    def judge(self) -> list[tuple[str, str | None, bool]]:
        """Return check, column and whether it holds, for each rule in order."""
        for columns, expectations in self._batches.values():
            height = max(map(len, columns.values()), default=0)
            filled = {place: np.resize(cells, height) for place, cells in columns.items()}
            self._passed |= _validate(pd.DataFrame(filled), expectations)
        return [(*check, self._passed[place]) for place, check in enumerate(self._checks)]

    def _made(
        self, check: str, column: str | None, expectation: str, values: dict[str, Any]
    ) -> Any:
        kind = getattr(silent_great_expectations().expectations, expectation)
        made = kind(**values, meta={"place": len(self._checks)})
        self._checks.append((check, column))
        return made


def _ends(numbers: Floats) -> Floats:
    """Return the smallest and the largest number, and NaN if there is one."""
    known = numbers[~np.isnan(numbers)]
    ends = [known.min(), known.max()] if len(known) else []
    return np.array([*ends, *([np.nan] if len(known) < len(numbers) else [])])


def _validate(frame: pd.DataFrame, expectations: list[Any]) -> dict[int, bool]:
    suite = silent_great_expectations().ExpectationSuite(name="rules", expectations=expectations)
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
    return {r.expectation_config.meta["place"]: bool(r.success) for r in results}


_BETWEEN = "ExpectColumnValuesToBeBetween"
_IN_SET = "ExpectColumnValuesToBeInSet"
_MATCHES = "ExpectColumnValuesToMatchRegex"
_NOT_NULL = "ExpectColumnValuesToNotBeNull"

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A whole number may be spelt 3.0 or 3e2; what an exponent makes of it is left to the encoder.
_WHOLE_NUMBER = r"[+-]?(?:\d+(?:\.0*)?|(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+)"
_LARGEST = float(np.finfo(np.float64).max)


def condensed(frame: pd.DataFrame, schema: TableSchema, patient_column: str | None) -> pd.DataFrame:
    """Return few private rows of which `source_rules` are as true as of these, which are not few.

    They hold the different texts of a column, or the smallest and the largest number; of patients,
    who must only have names, the shortest text.
    """
    numeric = set[str]()
    if schema.image is None and schema.items is None:
        numeric = {column.name for column in schema.columns if isinstance(column, NumericColumn)}
    found = dict[str, Cells]()
    # Pixels and items are asked together: each different number stands in one of the columns.
    block = schema.column_names if schema.image is not None or schema.items is not None else ()
    values = _whole_numbers(frame, block)
    if values is not None:
        spread = np.resize(values, (-(-len(values) // len(block)), len(block)))
        found |= dict(zip(block, spread.T, strict=True))
    for name in (name for name in frame.columns if name not in found):
        numbers = _numbers(frame, name) if name in numeric else None
        texts = _texts(frame, [name]) if numbers is None else None
        if texts is not None and name == patient_column:
            texts = texts[[np.argmin([*map(len, texts)])]]
        found[name] = _ends(numbers) if numbers is not None else np.asarray(texts)
    height = max(map(len, found.values()))
    return pd.DataFrame({name: np.resize(cells, height) for name, cells in found.items()})


def source_rules(frame: pd.DataFrame, schema: TableSchema, patient_column: str | None) -> Rules:
    """Return the rules of the input gate: what the encoder takes or mends of private rows."""
    rules, patient = Rules(), [] if patient_column is None else [patient_column]
    names = [*schema.released_columns, *patient]
    rules.of_header("columns", frame, "ExpectTableColumnsToMatchSet", column_set=names)
    for name in patient:
        rules.of_cells("patient", name, _texts(frame, [name]), _MATCHES, regex=".")
    if schema.image is not None or schema.items is not None:
        block = "items" if schema.image is None else "pixels"
        _ask_of_texts(rules, schema.columns[0], _texts(frame, schema.column_names), block)
    else:
        for column in schema.columns:
            _ask_of_source(rules, column, frame)
    for label in (schema.label, *schema.more_labels):
        texts = _texts(frame, [label.name])
        accepted = {*label.level_names, *label.missing, *([""] if label.nullable else [])}
        if label.buckets is None:
            accepted.update(*(label.levels or {}).values())
            rules.of_cells("label", label.name, texts, _IN_SET, value_set=sorted(accepted))
        else:
            regex = _one_of(accepted, _NUMBER)
            rules.of_cells("label", label.name, texts, _MATCHES, regex=regex)
    return rules


def release_rules(frame: pd.DataFrame, schema: TableSchema, rows: int) -> Rules:
    """Return the rules of the output gate, for synthetic rows and their declared number."""
    rules, names = Rules(), list(schema.released_columns)
    rules.of_header("columns", frame, "ExpectTableColumnsToMatchOrderedList", column_list=names)
    n_rows = np.array([float(len(frame))])
    rules.of_cells("row_count", None, n_rows, _BETWEEN, min_value=rows, max_value=rows)
    if schema.image is not None:
        types = {frame[name].dtype.kind for name in schema.column_names if name in frame}
        pixels = _texts(frame, schema.column_names) if types <= {"i", "u"} else None
        levels = [str(level) for level in schema.image.levels]
        rules.of_cells("pixels", None, pixels, _IN_SET, value_set=levels)
    elif schema.items is not None:
        items = _texts(frame, schema.column_names)
        rules.of_cells("items", None, items, _IN_SET, value_set=["0", "1"])
    else:
        for column in schema.columns:
            _ask_of_release(rules, column, frame)
    for label in (schema.label, *schema.more_labels):
        levels, texts = list(label.level_names), _texts(frame, [label.name])
        rules.of_cells("label", label.name, texts, _IN_SET, value_set=levels)
    return rules


def _texts(frame: pd.DataFrame, names: Sequence[str]) -> Cells | None:
    """Return the different texts of columns, as the schema compares them; empty ones for nulls."""
    if not set(names) <= set(frame.columns):
        return None
    values = _whole_numbers(frame, names)
    if values is not None:
        return np.array([*map(str, values.tolist())], dtype=object)
    texts: set[str] = set()
    for name in names:
        index, found = distinct(frame[name])
        texts.update(found, [""] if (index < 0).any() else [])
    return np.array([*texts], dtype=object)


def _whole_numbers(frame: pd.DataFrame, names: Sequence[str]) -> Cells | None:
    """Return the different numbers of several columns if all are of one type of whole numbers."""
    if len(names) < 2 or not set(names) <= set(frame.columns):
        return None
    kinds = set(frame[list(names)].dtypes)
    if len(kinds) > 1 or not all(isinstance(k, np.dtype) and k.kind in "iu" for k in kinds):
        return None
    return np.asarray(pd.unique(frame[list(names)].to_numpy().ravel()))


def _numbers(frame: pd.DataFrame, name: str) -> Floats | None:
    """Return the numbers of a column that holds nothing else by its type; NaN for nulls."""
    if name not in frame or not pd.api.types.is_numeric_dtype(frame[name]):
        return None
    if pd.api.types.is_bool_dtype(frame[name]):
        return None
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)


def _ask_of_source(rules: Rules, column: Column, frame: pd.DataFrame) -> None:
    """Ask a column of a source, as numbers where it has a type of numbers."""
    numbers = _numbers(frame, column.name) if isinstance(column, NumericColumn) else None
    if numbers is None:
        _ask_of_texts(rules, column, _texts(frame, [column.name]))
        return
    ends = {"min_value": -_LARGEST, "max_value": _LARGEST}
    rules.of_cells("finite", column.name, numbers, _BETWEEN, **ends)
    if not column.nullable:
        rules.of_cells("not_null", column.name, numbers, _NOT_NULL)


def _ask_of_texts(
    rules: Rules, column: Column, texts: Cells | None, block: str | None = None
) -> None:
    """Ask for what the encoder takes or mends; all columns of a block have one declaration."""

    def ask(check: str, expectation: str, **values: object) -> None:
        name = None if block else column.name
        rules.of_cells(block or check, name, texts, expectation, **values)

    accepted = {*column.missing, *([""] if column.nullable else [])}
    if isinstance(column, NumericColumn):
        number = _WHOLE_NUMBER if column.kind == "integer" else _NUMBER
        ask("number", _MATCHES, regex=_one_of(accepted, number))
        return
    if column.other is not None:
        # Every value has a level: only an empty cell that is not declared can be wrong.
        if "" not in accepted:
            ask("not_null", _MATCHES, regex=".")
        return
    accepted.update(column.levels, *column.groups.values())
    patterns = [re.escape(start) + ".*" for starts in column.prefixes.values() for start in starts]
    patterns += [_NUMBER] if column.numeric_ranges else []
    if patterns:
        ask("level", _MATCHES, regex=_one_of(accepted, *patterns))
    else:
        ask("level", _IN_SET, value_set=sorted(accepted))


def _one_of(texts: Iterable[str], *patterns: str) -> str:
    return f"^(?:{'|'.join([*patterns, *(re.escape(text) for text in sorted(texts))])})$"


def _ask_of_release(rules: Rules, column: Column, frame: pd.DataFrame) -> None:
    """Ask a column of a release for levels, or for numbers inside the bounds and on the grid."""
    name, missing = column.name, [*column.missing, *([""] if column.nullable else [])]
    if isinstance(column, CategoricalColumn):
        levels = [*column.levels, *missing]
        rules.of_cells("level", name, _texts(frame, [name]), _IN_SET, value_set=levels)
        return
    numbers = _numbers(frame, name)
    if numbers is not None:
        rules.found("number", name, True)
    else:
        texts = _texts(frame, [name])
        rules.of_cells("number", name, texts, _MATCHES, regex=_one_of(missing, _NUMBER))
        if texts is not None:
            numbers = np.array(pd.to_numeric(texts, errors="coerce"), dtype=np.float64)
            numbers[np.isin(texts, missing)] = column.lower
    on_grid = False
    if numbers is not None:
        # A missing code is no number of the column; NaN stands for an empty cell alone.
        numbers = np.where(np.isin(numbers, column.missing_numbers), column.lower, numbers)
        finite = numbers[np.isfinite(numbers)]
        on_grid = bool((np.round(finite, column.grid_decimals) == finite).all())
    rules.found("grid", name, on_grid)
    ends = {"min_value": column.lower, "max_value": column.upper}
    rules.of_cells("bounds", name, numbers, _BETWEEN, **ends)
    if not column.nullable:
        rules.of_cells("not_null", name, numbers, _NOT_NULL)
