"""A table in memory, of whatever library, as the rows that a source of the pipeline gives."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from privacy.errors import ConfigurationError
from storage.schema.table import TableSchema, check_names
from storage.sources.cells import arrow_frame, arrow_is_read, type_refused


def declared_columns(
    frame: Any, schema: TableSchema, patient_column: str | None
) -> pd.DataFrame | pa.Table:
    """Return the declared columns of a table, by their names and types; no cell is looked at.

    The table is a pandas DataFrame, or one that speaks the Arrow PyCapsule interface (polars,
    pyarrow, DuckDB) or the dataframe interchange protocol, else it is a ConfigurationError. It is
    an InputError if its columns are not the declared ones and the one that names the patient, if
    any, or one has a type that is not read.
    """
    also = () if patient_column is None else (patient_column,)
    needed = [*schema.released_columns, *also]
    if isinstance(frame, pd.DataFrame):
        _check_header([str(name) for name in frame.columns], schema, needed)
        return frame[needed]
    table = _arrow_table(frame)
    _check_header(table.column_names, schema, needed)
    table = table.select(needed)
    for name, kind in zip(needed, table.schema.types, strict=True):
        if not arrow_is_read(kind):
            raise type_refused(name, str(kind))
    return table


def rows_of(table: pd.DataFrame | pa.Table) -> pd.DataFrame:
    """Return the rows of `declared_columns` as text and numbers, by their types alone."""
    if isinstance(table, pd.DataFrame):
        return table.reset_index(drop=True)
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(place, name, column.cast(column.type.value_type))
    return arrow_frame(table)


def _check_header(names: Sequence[str], schema: TableSchema, needed: Sequence[str]) -> None:
    check_names(names)
    schema.check_header(names, needed)


def _arrow_table(frame: Any) -> pa.Table:
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    if hasattr(frame, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        return from_dataframe(frame)
    raise ConfigurationError(
        "FRAME_TYPE",
        "expected a pandas DataFrame, or a table that speaks the Arrow PyCapsule interface or the "
        f"dataframe interchange protocol, found {type(frame).__name__}",
    )
