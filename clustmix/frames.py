"""Conversion of a table in memory, of any library, to the rows that a pipeline source yields."""

import re
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd
import pyarrow as pa

from clustmix.schema import Schema
from privacy.errors import refusals
from storage.schema.event_tables import PATIENTS, EventDeclaration
from storage.schema.table import TableSchema, check_names
from storage.sources.cells import (
    arrow_frame,
    arrow_is_read,
    arrow_is_text,
    arrow_kind,
    check_cells,
    dated,
    type_refused,
)

refusal = refusals(__package__)

_INDEX = re.compile(r"__index_level_\d+__")
_Kind = Literal["integer", "real", "date", "categorical", "ignore"]


def declared_columns(
    frame: Any, schema: TableSchema | EventDeclaration, patient_column: str | None
) -> pd.DataFrame | pa.Table:
    """Return the declared columns of a table, by their names and types; no cell is looked at.

    The table is a pandas DataFrame, or speaks the Arrow PyCapsule interface (polars, pyarrow,
    DuckDB) or the dataframe interchange protocol, else it is a ConfigurationError. It is an
    InputError if the columns are not the declared ones and the patient's, or a type is not read.
    """
    also = () if patient_column is None else (patient_column,)
    needed = [*schema.measured_columns, *also]
    of_pandas = isinstance(frame, pd.DataFrame)
    table: Any = frame if of_pandas else _arrow_table(frame)
    names = [*map(str, table.columns)] if of_pandas else table.column_names
    check_names(names)
    needed += [name for name in schema.derived if name in names]
    schema.check_header(names, needed)
    table = table.set_axis(names, axis=1)[needed] if of_pandas else table.select(needed)
    is_read = _pandas_is_read if of_pandas else arrow_is_read
    for name, kind in zip(needed, table.dtypes if of_pandas else table.schema.types, strict=True):
        if not is_read(kind):
            raise type_refused(name, str(kind))
    rows: pd.DataFrame | pa.Table = table
    return rows


def declared_tables(
    frame: Any, events: Mapping[str, Any], schema: Schema, patient_column: str | None
) -> dict[str, Any]:
    """Return the `declared_columns` of the patients and of each table of events, by name."""
    declared = {table.name: table for table in schema.events}
    if {*events} != {*declared}:
        raise refusal(
            "EVENTS_DIFFER",
            declared=", ".join(declared) or "no table",
            found=", ".join(map(str, events)) or "none",
        )
    people = declared_columns(frame, schema, patient_column)
    own = {name: declared_columns(events[name], one, one.key) for name, one in declared.items()}
    return {PATIENTS: people, **own}


def rows_of(table: pd.DataFrame | pa.Table) -> pd.DataFrame:
    """Return the rows as text and numbers, by type; InputError for an object of an unread type."""
    if isinstance(table, pd.DataFrame):
        frame = table.reset_index(drop=True)
        for name, column in table.items():
            _check_objects(column)
            if isinstance(column.dtype, pd.ArrowDtype):
                cells = pa.table({"cells": column.array.__arrow_array__()})
                frame[name] = rows_of(cells)["cells"]
        return frame
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(place, name, _decoded(column))
    return arrow_frame(table)


def _check_objects(column: pd.Series) -> None:
    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    if values.dtype == object:
        check_cells(str(column.name), values)


def _pandas_is_read(kind: Any) -> bool:
    if isinstance(kind, pd.CategoricalDtype):
        own = kind.categories.dtype
        return isinstance(own, pd.IntervalDtype) or _pandas_is_read(own)
    if isinstance(kind, pd.ArrowDtype):
        return arrow_is_read(kind.pyarrow_dtype)
    kind = kind.subtype if isinstance(kind, pd.SparseDtype) else kind
    return kind.kind in "biufMO" and not isinstance(kind, pd.PeriodDtype | pd.IntervalDtype)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a dictionary column; Arrow has no `take` for string views, which polars stores."""
    kind = column.type.value_type
    kind = pa.large_string() if arrow_is_text(kind) else kind
    chunks = (chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks)
    return pa.chunked_array(list(chunks), kind)


def types_of(frame: Any) -> dict[str, tuple[_Kind, tuple[Any, ...]]]:
    """Return the kind of each column by its type, and the levels of that type. No cell is read.

    A polars Categorical has no levels: its type collects values of rows, also of other tables.
    """
    if isinstance(frame, pd.DataFrame):
        check_names([str(name) for name in frame.columns])
        return {str(name): _pandas_kind(kind) for name, kind in frame.dtypes.items()}
    table = _arrow_table(frame)
    check_names(table.column_names)
    own = frame.schema if _library(frame) == "polars" else {}
    kinds = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind, levels = arrow_kind(column.type), ()
        is_open = own.get(name).__class__.__name__ == "Categorical"
        if pa.types.is_dictionary(column.type) and column.num_chunks and not is_open:
            levels = tuple(column.chunk(0).dictionary.to_pylist())
        kinds[name] = (kind, levels or _levels_of(column.type))
    return kinds


def as_of(frame: pd.DataFrame, library: Any, *, notice: str) -> Any:
    """Convert rows to the class of the measured table, with the notice in its metadata if any."""
    frame.attrs["guarantee"] = notice
    if library is pd.DataFrame:
        return frame
    table = pa.Table.from_pandas(dated(frame), preserve_index=False)
    table = table.replace_schema_metadata({"guarantee": notice})
    return table if library is pa.Table else library(table)


def library_of(frame: Any) -> Any:
    """Return the class of table that rows are given back as: of pandas, polars or Arrow."""
    if _library(frame) == "polars":
        return frame.__class__
    return pa.Table if isinstance(frame, pa.Table) else pd.DataFrame


def _library(frame: Any) -> str:
    return str(frame.__class__.__module__).partition(".")[0]


def _pandas_kind(kind: Any) -> tuple[_Kind, tuple[Any, ...]]:
    if isinstance(kind, pd.CategoricalDtype):
        return "categorical", tuple(kind.categories)
    if isinstance(kind, pd.StringDtype) or pd.api.types.is_object_dtype(kind):
        return "categorical", ()
    try:
        arrow = pa.array(pd.array([], dtype=kind)).type
    except (pa.ArrowException, TypeError):
        return "ignore", ()
    return arrow_kind(arrow), _levels_of(arrow)


def _levels_of(kind: pa.DataType) -> tuple[str, ...]:
    return ("False", "True") if pa.types.is_boolean(kind) else ()


def _arrow_table(frame: Any) -> pa.Table:
    if hasattr(frame, "__arrow_c_stream__"):
        try:
            table = pa.table(frame)
        except Exception:  # its text, and its type, may come from the cells
            table = None
        if table is None:
            raise refusal("FRAME_TYPE cells")
        # An index without a name is no column, as it is none in pandas.
        return table.drop_columns(list(filter(_INDEX.fullmatch, table.column_names)))
    if hasattr(frame, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        return from_dataframe(frame)
    raise refusal("FRAME_TYPE", kind=frame.__class__.__name__)
