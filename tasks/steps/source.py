"""What is asked of a source before a row of it is read or paid for."""

import os

from privacy.errors import InputError
from storage.schema.table import TableSchema, in_short
from storage.sources.cohorts import CohortReader
from tasks.execution.executor import Executor


def check_source(columns: tuple[str, ...], schema: TableSchema, reader: CohortReader) -> None:
    """Refuse (InputError) a source that lacks a needed column, or has one not declared or read."""
    header = reader.header()
    clash = [name for name in schema.released_columns if name in header and name not in columns]
    if clash:
        raise InputError(
            "HEADER_MISMATCH",
            f"expected no column {in_short(clash)}, as visits make one of this name; rename it at "
            "the source",
        )
    schema.check_header(header, columns)
    reader.check_types(columns)


def content_of(reader: CohortReader, executor: Executor) -> str:
    """Return a private digest of the table; one of its own for each release of a database."""
    return reader.content_sha256(map=executor.map) or os.urandom(32).hex()
