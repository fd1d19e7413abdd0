"""Encoding and decoding of rows by the public schema alone.

Each rule reads one row and the declared schema, no statistic of other rows such as an observed
range. Encoding is therefore a per-record map, decoding post-processing: neither costs budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Indices, Integers
from privacy.errors import refusals
from storage.schema.column_blocks import ImageColumns
from storage.schema.columns import CategoricalColumn, Column, NumericColumn, number_of
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from storage.sources.cells import distinct, number_cells
from tasks.ingest.constraint_rules import grid_bins, held, rules_of, since_zero
from tasks.ingest.violations import EncodedChunk, Rule, Violation
from tasks.measurement.encoded import EncodingDomain

refusal = refusals(__package__)

_REFUSED, _DERIVED = -1, "tasks.ingest.derived_columns"
NO_LABEL = -2
"""Code of a missing label."""


def domain_of(schema: TableSchema) -> EncodingDomain:
    """Return the public shape of the encoded table, with black and white pixels as levels."""
    black_and_white = schema.image is not None and schema.image.gray_levels == 2
    return EncodingDomain(
        column_names=schema.column_names,
        n_codes=tuple(column.n_codes for column in schema.columns),
        has_missing=tuple(column.has_missing for column in schema.columns),
        numeric=tuple(
            isinstance(column, NumericColumn) and not black_and_white for column in schema.columns
        ),
        label_levels=schema.labels.level_names,
        image=None if schema.image is None else schema.image.shape,
        rules=rules_of(schema),
    )


def encode_chunk(frame: pd.DataFrame, schema: TableSchema, *, mend: bool = True) -> EncodedChunk:
    """Encode the rows of a chunk, each by itself.

    Numbers are clipped to the bounds and rounded to the declared decimals. An undeclared category
    becomes the level of other values, a missing code or allowed empty cell the missing code. A row
    that then breaks a constraint is repaired as declared if `mend`. Any other fault is a violation.

    Privacy
    -------
    A per-record map that depends on the schema alone; the result is private.
    """
    absent = [name for name in schema.measured_columns if name not in frame.columns]
    if absent:
        raise refusal("COLUMN_MISSING", absent=", ".join(absent))
    violations: list[Violation] = []
    numbers: dict[int, Integers] = {}
    pixels = None if schema.image is None else _whole_numbers(frame[list(schema.column_names)])
    if schema.image is not None and pixels is not None:
        codes = _pixel_codes(pixels, schema.image)
    else:
        codes = _column_codes(frame, schema, violations, numbers)
    labels = schema.labels.joined(
        [label_codes(frame[one.name], one, violations) for one in schema.all_labels]
    )
    label, valid = np.maximum(labels, 0).astype(np.uint16), labels >= 0
    chunk = EncodedChunk(
        codes=codes, label=label, valid=valid, violations=tuple(violations), numbers=numbers
    )
    broken = held(chunk, schema, mend=mend)
    if schema.derived:
        broken += import_module(_DERIVED).unlike(chunk, frame, schema, mend=mend)
    return replace(chunk, violations=(*chunk.violations, *broken), numbers={})


def decode(
    codes: Codes, label: Codes, schema: TableSchema, *, rng: np.random.Generator
) -> pd.DataFrame:
    """Convert codes (n, d) to valid records, which encode to the same codes again.

    ``rng``, no source of privacy noise, draws values in a bin, uniformly on the grid of declared
    decimals or its values that keep the constraints between numbers. Pixels need no draws.

    Privacy
    -------
    Post-processing of released codes.
    """
    if schema.image is not None:
        return _images(codes, label, schema, schema.image)
    columns: dict[str, pd.Series] = {}
    rules = rules_of(schema)
    related = {} if rules is None else rules.numbers(codes, rng)
    by_column = np.ascontiguousarray(codes.T)
    drawn = {
        j: related[j] if j in related else _draw(own, column, rng)
        for j, (own, column) in enumerate(zip(by_column, schema.columns, strict=True))
        if isinstance(column, NumericColumn)
    }
    drawn = since_zero(drawn, schema, related)
    for j, (own, column) in enumerate(zip(by_column, schema.columns, strict=True)):
        if isinstance(column, NumericColumn):
            columns[column.name] = written(drawn.pop(j), own == column.n_bins, column)
        else:
            columns[column.name] = named(own, column)
    for one, own in zip(schema.all_labels, schema.labels.apart(label), strict=True):
        if one.number is None:
            columns[one.name] = pd.Series(np.array(one.level_names, dtype=object)[own], dtype="str")
        else:
            columns[one.name] = _times(own, one.number, rng)
    frame = pd.DataFrame(columns, copy=False)
    return import_module(_DERIVED).with_derived(frame, schema) if schema.derived else frame


def _column_codes(
    frame: pd.DataFrame,
    schema: TableSchema,
    violations: list[Violation],
    numbers: dict[int, Integers],
) -> Codes:
    codes = np.zeros((len(frame), len(schema.columns)), dtype=np.uint16)
    has_rules = bool(schema.rules)
    for j, column in enumerate(schema.columns):
        codes[:, j], grid = cell_codes(frame, column, violations, schema)
        if has_rules and grid is not None:
            numbers[j] = grid
    return codes


def cell_codes(
    frame: pd.DataFrame, column: Column, violations: list[Violation], schema: TableSchema | None
) -> tuple[Indices | Codes, Integers | None]:
    """Return the codes of a column, and its numbers on their grid; broken rules are noted."""
    if not isinstance(column, NumericColumn):
        return level_codes(frame[column.name], column, violations), None
    values, missing = numbers_of(frame, column, schema, violations)
    grid = _to_grid(values, missing, column)
    return np.where(missing, column.n_bins, _bin(grid, column)), grid


def decoded_cells(codes: Integers, column: Column, rng: np.random.Generator) -> pd.Series:
    """Return released cells of a column's codes, by themselves; see `decode`."""
    if not isinstance(column, NumericColumn):
        return named(codes, column)
    return written(_draw(codes, column, rng), codes == column.n_bins, column)


def _whole_numbers(frame: pd.DataFrame) -> NDArray[np.integer] | None:
    """Return the cells if all columns have one integer type without missing cells, else None."""
    types = set(frame.dtypes)
    if len(types) == 1 and all(isinstance(t, np.dtype) and t.kind in "iu" for t in types):
        return frame.to_numpy()
    return None


def _pixel_codes(pixels: NDArray[np.integer], image: ImageColumns) -> Codes:
    """Encode all pixels at once; equal to `_column_codes`."""
    column = image.columns[0]
    table = _bin(np.arange(int(column.upper) + 1), column).astype(np.uint16)
    return table[pixels if pixels.dtype == np.uint8 else np.clip(pixels, 0, int(column.upper))]


def _images(codes: Codes, label: Codes, schema: TableSchema, image: ImageColumns) -> pd.DataFrame:
    levels = np.array(image.levels, dtype=np.uint8)
    frame = pd.DataFrame(levels[codes], columns=list(schema.column_names))
    names = np.array(schema.first_label.level_names, dtype=object)
    frame[schema.first_label.name] = pd.Series(names[label], dtype="str")
    return frame


def numbers_of(
    frame: pd.DataFrame,
    column: NumericColumn,
    schema: TableSchema | None,
    violations: list[Violation],
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return numbers and a mask of missing ones, such as a date counted from a missing one."""
    values, null, missing, refused = number_cells(frame[column.name], column)
    _note(violations, Rule.DAY if column.is_date else Rule.NUMBER, column.name, refused)
    _note(violations, Rule.FINITE, column.name, np.isinf(values))
    if column.nullable:
        missing = missing | null
    else:
        _note(violations, Rule.NOT_NULL, column.name, null)
    if column.kind == "integer":
        fractional = np.isfinite(values) & (values != np.rint(values)) & ~missing
        _note(violations, Rule.INTEGER, column.name, fractional)
    base = None if schema is None else schema.base_of(column)
    if base is not None:
        zero, empty, absent, _ = number_cells(frame[base.name], base)
        values, missing = values - zero, missing | empty | absent
    return values, missing


def _to_grid(values: Floats, missing: NDArray[np.bool_], column: NumericColumn) -> Integers:
    """Clip and round to units of the last declared decimal; ``lower`` for a missing number."""
    usable = ~missing & np.isfinite(values)
    clipped = np.clip(np.where(usable, values, column.lower), column.lower, column.upper)
    return np.rint(clipped * 10**column.grid_decimals).astype(np.int64)


def _bin(grid: Integers, column: NumericColumn) -> Indices:
    starts, _ = grid_bins(column)
    width = round(column.upper * 10**column.grid_decimals) - int(starts[0]) + 1
    if width < len(grid):
        # The column has fewer numbers than cells, so each number is searched once.
        return _bin(np.arange(starts[0], starts[0] + width), column)[grid - starts[0]]
    return np.searchsorted(starts, grid, side="right") - 1


def level_codes(series: pd.Series, column: CategoricalColumn, violations: list[Violation]) -> Codes:
    """Return the codes of a categorical column, 0 where a cell breaks a rule; these are noted."""
    codes, empty, torn = _looked_up(
        series, column, column.levels, groups=column.groups, absent=len(column.levels)
    )
    refused = codes == _REFUSED
    _note(violations, Rule.NOT_NULL, column.name, refused & empty)
    _note(violations, Rule.TEXT, column.name, torn)
    _note(violations, Rule.LEVEL, column.name, refused & ~empty & ~torn)
    return np.maximum(codes, 0).astype(np.uint16)


def label_codes(series: pd.Series, label: Label, violations: list[Violation]) -> NDArray[np.int32]:
    """Return the codes of a label, `NO_LABEL` where it is missing; broken rules are noted."""
    codes, _, torn = _looked_up(
        series, label, label.level_names, groups=label.levels or {}, absent=NO_LABEL
    )
    _note(violations, Rule.TEXT, label.name, torn)
    _note(violations, Rule.LABEL, label.name, (codes == _REFUSED) & ~torn)
    return codes


def _looked_up(
    series: pd.Series,
    declared: CategoricalColumn | Label,
    levels: Sequence[str],
    *,
    groups: Mapping[str, Sequence[str]],
    absent: int,
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the code of each cell, and masks of empty cells and of those with a NUL."""
    exact = {level: code for code, level in enumerate(levels)}
    for level, values in groups.items():
        exact.update(dict.fromkeys(values, exact[level]))
    exact.update(dict.fromkeys(declared.missing, absent))
    exact.setdefault("", absent if declared.nullable else _REFUSED)
    index, texts = distinct(series)
    # The last entry of each table serves index -1, an empty cell.
    codes = np.array([*(_code_of(t, declared, exact) for t in texts), exact[""]], dtype=np.int32)
    empty = np.array([*(text == "" for text in texts), True])
    torn = np.array([*("\0" in text for text in texts), False])
    return codes[index], empty[index], torn[index]


def _code_of(text: str, declared: CategoricalColumn | Label, exact: dict[str, int]) -> int:
    if text in exact:
        return exact[text]
    for level, prefixes in declared.prefixes.items():
        if text.startswith(prefixes):
            return exact[level]
    number = number_of(text)
    if number is not None:
        if isinstance(declared, CategoricalColumn):
            for level, ranges in declared.numeric_ranges.items():
                if any(lower <= number < upper for lower, upper in ranges):
                    return exact[level]
        elif declared.buckets is not None and (
            declared.number is None or number >= declared.number.lower
        ):
            return int(np.searchsorted(declared.buckets.edges, number, side="right"))
    return _REFUSED if declared.other is None else exact[declared.other]


def _note(violations: list[Violation], rule: Rule, column: str, broken: NDArray[np.bool_]) -> None:
    if broken.any():
        violations.append(Violation(rule=rule, column=column, rows=np.flatnonzero(broken)))


def _draw(codes: Codes | Integers, column: NumericColumn, rng: np.random.Generator) -> Integers:
    """Draw values inside the bin of each code, in units of the last declared decimal."""
    first, last = grid_bins(column)
    codes = np.where(codes == column.n_bins, 0, codes)  # a missing one is replaced later
    return rng.integers(first[codes], last[codes], endpoint=True)


def _times(codes: Indices, column: NumericColumn, rng: np.random.Generator) -> pd.Series:
    """Draw times in the interval of each code, below its end; the last code is the last edge."""
    ends = np.rint(np.array(column.bins) * 10**column.grid_decimals).astype(np.int64)
    grid = rng.integers(ends[codes], np.append(ends[1:], ends[-1] + 1)[codes])
    return written(grid, np.zeros(len(codes), dtype=np.bool_), column)


def written(grid: Integers, missing: NDArray[np.bool_], column: NumericColumn) -> pd.Series:
    """Return a released column; missing values are empty cells or the first missing code."""
    integer = column.is_whole
    values = grid if integer else grid / 10**column.grid_decimals
    if column.is_date:
        values = values.astype("datetime64[D]").astype("datetime64[s]")
    if not column.has_missing:
        return pd.Series(values)
    if column.nullable:
        dtype = values.dtype if column.is_date else "Int64" if integer else "float64"
        return pd.Series(values, dtype=dtype).mask(missing)
    code = column.read(column.missing[0])
    if code is None:
        # A text such as "?" among numbers: the column is text, as it is in the source.
        return pd.Series(values).astype("str").mask(missing, column.missing[0])
    if column.is_date:
        return pd.Series(np.where(missing, np.datetime64(int(code), "D"), values))
    return pd.Series(
        np.where(missing, int(code) if integer and code.is_integer() else code, values)
    )


def named(codes: Codes | Integers, column: CategoricalColumn) -> pd.Series:
    """Return a released column of levels, as `written` one of numbers."""
    absent = None if column.nullable or not column.missing else column.missing[0]
    return pd.Series(np.array([*column.levels, absent], dtype=object)[codes], dtype="str")
