"""Cells as text and numbers, each converted by itself.

A reader of private rows returns columns of text, whole numbers or floating-point numbers, by the
declared type of the column; a database may mix types in a column, so its cells are all text.
Nothing is inferred from values, and equal cells are not merged: 1.1 and 1.10 are two texts.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Literal, NamedTuple
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from privacy.arrays import Floats, Indices
from privacy.errors import ClustMixError, refusals
from storage.schema.columns import NumericColumn, number_of, raw_text

refusal = refusals(__package__)
_SQL_CELLS = (type(None), str, int, float, Decimal, date, time, UUID)  # bool is int, datetime date
_PANDAS_CELLS = (np.bool_, np.integer, np.floating, np.datetime64, type(pd.NA))
_ARROW_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_ARROW_KINDS = (
    *_ARROW_TEXTS,
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_boolean, pa.types.is_null),
    *(pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
    lambda kind: isinstance(kind, pa.UuidType),
)
# As psycopg names them; other drivers do not name the types of a result.
_SQL_REFUSED = frozenset({"bytea", "cidr", "inet", "interval", "json", "jsonb", "record"})


def distinct(cells: pd.Series) -> tuple[Indices, list[str]]:
    """Return the index (n,) of the text of each cell, -1 for an empty cell, and the texts.

    Texts are those of `storage.schema.columns.raw_text`; a text may occur twice, as of ``" a"`` and
    ``"a"``. Objects are compared by their texts, since equal objects may have different ones.

    Privacy
    -------
    A cell's text is a function of that cell. Order and number of texts are not: for lookups only.
    """
    if cells.dtype == object:
        cells = pd.Series(_texts(cells), dtype=object)
    index, uniques = pd.factorize(cells, use_na_sentinel=True)
    values = uniques.tolist()
    kinds = set(map(type, values))
    # Equals `raw_text` for texts and whole numbers, and is many times faster.
    written = str.strip if kinds == {str} else str if kinds == {int} else raw_text
    return index, list(map(written, values))


def number_cells(
    cells: pd.Series, column: NumericColumn
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return numbers, or days since 1970, and masks of empty, missing and refused cells."""
    is_number = pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_bool_dtype(cells)
    if is_number and not column.is_date:
        values = cells.to_numpy(dtype=np.float64, na_value=np.nan)
        refused = np.zeros(len(values), dtype=np.bool_)
        return values, np.isnan(values), np.isin(values, column.missing_numbers), refused
    index, texts = distinct(cells)
    # The last entry of each table serves index -1, an empty cell.
    empty = np.array([text == "" for text in texts] + [True])
    declared = np.array([text in column.missing for text in texts] + [False])
    if column.is_date:
        table = np.array([*map(column.read, texts), None], dtype=np.float64)
    else:
        # The empty text makes pandas read every number as floating point, whatever the others.
        numbers = pd.to_numeric(pd.Series([*texts, ""], dtype=object), errors="coerce")
        table = numbers.to_numpy(dtype=np.float64)
    refused = np.isnan(table) & ~empty & ~declared
    missing = declared | np.isin(table, column.missing_numbers)
    return table[index], (empty & ~declared)[index], missing[index], refused[index]


class NumberMarks(NamedTuple):
    """Declared marks of a source: between units and decimals, and between groups of digits."""

    decimal: str = "."
    thousands: str | None = None

    def plain(self, text: str) -> str:
        """Return a number as Python writes it, and any other text as it is.

        A number with other marks that Python could read is turned into a text that is no number:
        under a decimal comma, ``1.5`` may mean three halves or fifteen.
        """
        groups = (
            r"\d+"
            if self.thousands is None
            else rf"\d{{1,3}}(?:{re.escape(self.thousands)}\d{{3}})+|\d+"
        )
        number = rf"[+-]?(?:{groups})?(?:{re.escape(self.decimal)}\d*)?(?:[eE][+-]?\d+)?"
        if re.fullmatch(number, text) and any(digit.isdigit() for digit in text):
            return text.replace(self.thousands or "", "").replace(self.decimal, ".")
        return text if number_of(text) is None else f"{text} (marks of another place)"


def with_plain_numbers(
    frame: pd.DataFrame, columns: Sequence[object], marks: NumberMarks
) -> pd.DataFrame:
    """Return the rows with plain numbers in `columns`, by cell; missing codes stay as written."""
    plain = {}
    for column in columns:
        if isinstance(column, NumericColumn) and not column.is_date and column.name in frame:
            index, texts = distinct(frame[column.name])
            plain_texts = (t if t in column.missing else marks.plain(t) for t in texts)
            cells = np.array([*plain_texts, None], dtype=object)
            plain[column.name] = pd.Series(cells[index], index=frame.index, dtype=object)
    return frame.assign(**plain)


def sql_text(name: str, cells: Sequence[object]) -> pa.Array:
    """Write the cells of a column of a query as text; a type that has no text is an InputError."""
    check_cells(name, cells)
    is_text = set(map(type, cells)) <= {str, type(None)}
    return pa.array(cells if is_text else _texts(pd.Series(cells, dtype=object)), pa.large_string())


def check_cells(name: str, cells: Iterable[object]) -> None:
    """Refuse a column of objects (InputError) if a cell has a type whose text is not its value."""
    for kind in set(map(type, cells)):
        if not is_read(kind):
            raise type_refused(name, kind.__name__)


def is_read(kind: type) -> bool:
    """Return true if the text of a cell of this type is its value."""
    return issubclass(kind, (*_SQL_CELLS, *_PANDAS_CELLS)) and not issubclass(kind, np.timedelta64)


def arrow_frame(table: pa.Table) -> pd.DataFrame:
    """Convert columns to text and numbers by their type alone; whole numbers stay exact."""
    with_nulls = []
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_integer(column.type):
            if column.null_count:
                with_nulls.append(name)
        elif pa.types.is_floating(column.type):
            table = table.set_column(place, name, column.cast(pa.float64()))
        elif not arrow_is_text(column.type):
            table = table.set_column(place, name, _arrow_text(column))
    # Without the names of columns and index that pandas has left in a file or table.
    frame: pd.DataFrame = table.replace_schema_metadata(None).to_pandas()
    for name in with_nulls:  # pandas makes them floating-point numbers, which are not exact
        masked = pd.UInt64Dtype() if table[name].type == pa.uint64() else pd.Int64Dtype()
        frame[name] = table[name].to_pandas(types_mapper=lambda _, kind=masked: kind)
    return frame


def arrow_is_text(kind: pa.DataType) -> bool:
    """Return true for an Arrow type of text."""
    return any(is_kind(kind) for is_kind in _ARROW_TEXTS)


def dated(frame: pd.DataFrame) -> pd.DataFrame:
    """Return released rows with their columns of moments converted to dates of Arrow."""
    days = {name: pd.ArrowDtype(pa.date32()) for name in frame.select_dtypes("datetime")}
    return frame.astype(days) if days else frame


def arrow_kind(kind: pa.DataType) -> Literal["integer", "real", "date", "categorical", "ignore"]:
    """Return the kind of a column of an Arrow type, as a schema declares it."""
    if pa.types.is_dictionary(kind) or pa.types.is_boolean(kind) or arrow_is_text(kind):
        return "categorical"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "real" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "ignore"


def arrow_is_read(kind: pa.DataType) -> bool:
    """Return true for an Arrow type whose cells are numbers or can be written as text."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(is_kind(plain) for is_kind in _ARROW_KINDS)


def sql_is_read(kind: str) -> bool:
    """Return true for the name of a database type whose cells can be written as text."""
    return not (kind in _SQL_REFUSED or kind.endswith(("[]", "range")))


def type_refused(column: str, kind: str) -> ClustMixError:
    """Return the error for an unread type, cut at brackets, which may list levels of the rows."""
    return refusal("COLUMN_TYPE", column=column, kind=re.split(r"[(\[<]", kind)[0] or kind[:1])


def _texts(cells: pd.Series) -> list[str | None]:
    empty = pd.isna(cells).tolist()
    return [
        None if is_empty else cell if type(cell) is str else raw_text(cell)
        for cell, is_empty in zip(cells.tolist(), empty, strict=True)
    ]


def _arrow_text(column: pa.ChunkedArray) -> pa.Array:
    # Equal values of one Arrow type have one text.
    kind = column.type
    is_uuid = isinstance(kind, pa.UuidType)
    if is_uuid:
        column = column.cast(pa.binary(16))
    elif pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        column = column.cast(pa.decimal128(kind.precision, kind.scale))
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    texts = [raw_text(UUID(bytes=value) if is_uuid else value) for value in values]
    return pa.array(texts, pa.large_string()).take(encoded.indices)
