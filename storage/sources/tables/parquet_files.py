"""Parquet files, with hive partitions; `storage.sources.cohorts` guards what is raised here."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from privacy.errors import InputError, refusals
from storage.sources.cells import arrow_is_read, arrow_is_text
from storage.sources.declared import ParquetSource
from storage.sources.reading import SourceTable, check_form

refusal = refusals("storage.sources")
ROWS_WORTH_A_FRAGMENT = 50_000
"""Least rows of a fragment, as the checks of a batch have a fixed cost."""

_BUFFER_BYTES = 1 << 20
_LOGS = {"Delta Lake": "_delta_log", "Hudi": ".hoodie", "Iceberg": ".metadata.json"}
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

AnyPath = TypeVar("AnyPath", bound=PurePath)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ParquetPart:
    """Consecutive row groups of one file. Private, so it has no repr.

    `row_groups` are the first and the one after the last; None for all. The value of a partition
    key is text, the name of the folder.
    """

    file: Path
    row_groups: tuple[int, int] | None
    first_row: int
    partition: dict[str, str | None]

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns, dictionaries decoded, in batches of at most `chunk_rows`."""
        stored = [name for name in needed if name not in self.partition]
        groups = None if self.row_groups is None else list(range(*self.row_groups))
        # Decodes pages on demand; pyarrow's dataset scanner would hold a row group, maybe all rows.
        with pq.ParquetFile(self.file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet:
            for batch in parquet.iter_batches(
                batch_size=chunk_rows, columns=stored, row_groups=groups
            ):
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(pa.scalar(self.partition[name], pa.large_string()), len(batch))
                        if name in self.partition
                        else plain(batch.column(name))
                        for name in needed
                    ],
                    names=list(needed),
                )


class ParquetFolder(SourceTable):
    """The files of a source and their partition keys, one schema for all (else InputError)."""

    divisible = True

    def __init__(self, source: ParquetSource, scratch: Path | None = None) -> None:
        path = source.path or Path()
        around = above_partitions(path if path.is_dir() else path.parent)
        beside = around.parent.glob("metadata/*.metadata.json")
        refuse_a_log([*around.rglob("*"), *beside])
        below = (file for file in path.rglob("*") if file.is_file() and is_part(file, path))
        self._files = [path] if path.is_file() else sorted(below)
        if not self._files:
            raise InputError("SOURCE_MISSING", f"expected files '*.parquet' in folder {path}")
        self._partitions = [_hive_values(file.relative_to(path)) for file in self._files]

    def files(self) -> list[Path]:
        """Return the files, sorted."""
        return self._files

    def cells_of_folders(self) -> list[list[tuple[str, str | None]]]:
        """Return the partition keys of each file with their values."""
        return [list(keys.items()) for keys in self._partitions] if any(self._partitions) else []

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Compare the schemas of all files; return names, folders last, and refused types."""
        keys = list(self._partitions[0])
        for file in self._files:
            check_form(file, "parquet")
        stored = pq.read_schema(self._files[0])
        types = _decoded(stored)
        schemas = [types, *(_decoded(pq.read_schema(file)) for file in self._files[1:])]
        for schema, values in zip(schemas, self._partitions, strict=True):
            if sorted(schema) != sorted(types) or list(values) != keys:
                differing = sorted({name for name, _ in {*types} ^ {*schema}})
                raise refusal("PARQUET_SCHEMA", names=", ".join(differing) or "partition keys")
        refused = {item.name: str(item.type) for item in stored if not arrow_is_read(item.type)}
        return (*(name for name, _ in types), *keys), refused

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns of all files in sorted order, in batches of one schema."""
        for place in range(len(self._files)):
            yield from self._part(place, None, 0).batches(needed, chunk_rows)

    def fragments(self, n_fragments: int) -> list[tuple[ParquetPart, ...]]:
        """Divide row groups in order, by footers alone; with few rows the last parts are empty."""
        groups = [
            (place, number, n_rows)
            for place, file in enumerate(self._files)
            for footer in [pq.read_metadata(file)]
            for number in range(footer.num_row_groups)
            for n_rows in [footer.row_group(number).num_rows]
        ]
        n_rows_in_all = max(sum(n_rows for *_, n_rows in groups), 1)
        n_used = min(n_fragments, -(-n_rows_in_all // ROWS_WORTH_A_FRAGMENT))
        found: list[list[ParquetPart]] = [[] for _ in range(n_fragments)]
        last, first_row = (-1, -1), 0
        for place, number, n_rows in groups:
            # A row group goes to the fragment of its middle; middles increase from group to group.
            middle = (2 * first_row + n_rows) * n_used // (2 * n_rows_in_all)
            fragment = min(middle, n_used - 1)
            parts = found[fragment]
            if last == (place, fragment):
                begin, _ = parts[-1].row_groups or (0, 0)
                parts[-1] = replace(parts[-1], row_groups=(begin, number + 1))
            else:
                parts.append(self._part(place, (number, number + 1), first_row))
            last, first_row = (place, fragment), first_row + n_rows
        return [tuple(parts) for parts in found]

    def _part(self, place: int, row_groups: tuple[int, int] | None, first_row: int) -> ParquetPart:
        return ParquetPart(
            file=self._files[place].absolute(),  # a worker may be in another directory
            row_groups=row_groups,
            first_row=first_row,
            partition=self._partitions[place],
        )


def above_partitions(folder: AnyPath) -> AnyPath:
    """Return the folder of a table, given that or one of its partitions."""
    while "=" in folder.name:
        folder = folder.parent
    return folder


def refuse_a_log(names: Iterable[PurePath]) -> None:
    """Refuse (InputError) a table with a log of deleted rows, by its names of files and folders."""
    found = {part for name in names for part in name.parts}
    for table, mark in _LOGS.items():
        if any(part.endswith(mark) for part in found):
            by_log = "" if table == "Hudi" else "read it with source.kind: duckdb, or "
            raise refusal("TABLE_LOG", table=table, instead=by_log)


def is_part(file: PurePath, folder: PurePath) -> bool:
    """Return true for a Parquet file below a folder; ``.`` and ``_`` hide a name."""
    inside = file.relative_to(folder).parts if file.is_relative_to(folder) else (".",)
    return file.suffix == ".parquet" and not any(part.startswith((".", "_")) for part in inside)


def _hive_values(relative: Path) -> dict[str, str | None]:
    """Return the partition keys and values that are in a path relative to the folder."""
    pairs = (part.split("=", maxsplit=1) for part in relative.parent.parts if "=" in part)
    return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs}


def _decoded(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return names and type names with dictionaries decoded and both string widths alike."""
    pairs = []
    for item in schema:
        plain = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
        pairs.append((item.name, "string" if arrow_is_text(plain) else str(plain)))
    return pairs


def plain(column: pa.Array) -> pa.Array:
    """Return a column without dictionary, its texts of one type."""
    found = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    is_other_text = arrow_is_text(found.type) and not pa.types.is_large_string(found.type)
    return found.cast(pa.large_string()) if is_other_text else found
