"""What the gates ask of a table, made of the declared schema alone.

Pixels of images and items of sets are hundreds of columns of one declaration: the cells of all of
them together are asked its rule, as one check.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from storage.schema.table import CategoricalColumn, Column, NumericColumn, TableSchema
from storage.sources.cells import distinct
from tasks.gates.expectation_suites import Cells, Rules

_BETWEEN = "ExpectColumnValuesToBeBetween"
_IN_SET = "ExpectColumnValuesToBeInSet"
_MATCHES = "ExpectColumnValuesToMatchRegex"
_NOT_NULL = "ExpectColumnValuesToNotBeNull"

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A whole number may be spelt 3.0 or 3e2; what an exponent makes of it is left to the encoder.
_WHOLE_NUMBER = r"[+-]?(?:\d+(?:\.0*)?|(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+)"
_LARGEST = float(np.finfo(np.float64).max)


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
    label = schema.label
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
    label, levels = schema.label.name, list(schema.label.level_names)
    rules.of_cells("label", label, _texts(frame, [label]), _IN_SET, value_set=levels)
    return rules


def _texts(frame: pd.DataFrame, names: Sequence[str]) -> Cells | None:
    """Return the different texts of columns, as the schema compares them; empty ones for nulls."""
    if not set(names) <= set(frame.columns):
        return None
    texts: set[str] = set()
    for name in names:
        index, found = distinct(frame[name])
        texts.update(found, [""] if (index < 0).any() else [])
    return np.array([*texts], dtype=object)


def _numbers(frame: pd.DataFrame, name: str) -> NDArray[np.float64] | None:
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
