"""Reader of DuckDB: one query over the tables of a database file, or over tables of files.

DuckDB runs in this process. Its database in memory has the declared tables as views; the query
reaches nothing else, and nothing is installed. `storage.sources.cohorts` guards what is raised.
"""

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from privacy.errors import extra, refusals
from storage.files.documents import listed
from storage.files.workspace import PrivateWorkspace
from storage.settings import load_settings
from storage.sources.formats import folded, in_quotes
from storage.sources.reading import SourceTable
from storage.sources.sql_queries import DUCKDB_TYPES, equated_of, parse_query, printed
from storage.sources.tables.parquet_files import above_partitions, is_part, plain, refuse_a_log

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

refusal = refusals("storage.sources")
_S3 = "s3://"
_LISTED = listed(__package__, "duckdb.toml")
_METADATA = re.compile(r"/metadata/[^/]*\.metadata\.json$")  # a version of an Iceberg table


class DuckdbTables(SourceTable):
    """The result of the query of a source of kind ``duckdb``."""

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the columns of the query, and the types that are not read."""
        with self._answer() as rows:
            kinds = _kinds(rows)
            return tuple(rows.columns), {
                name: kind
                for name, kind in kinds.items()
                # A length in brackets ends a type; a list, which is refused, ends in [].
                if (kind.partition("(")[0] if kind.endswith(")") else kind) not in DUCKDB_TYPES
            }

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Run the query and read the wanted columns in batches of at most `chunk_rows`."""
        with self._answer() as rows, rows.to_arrow_reader(chunk_rows) as reader:
            for batch in reader:
                columns = [plain(batch.column(name)) for name in needed]
                yield pa.RecordBatch.from_arrays(columns, names=list(needed))

    @contextmanager
    def _answer(self) -> Iterator["DuckDBPyRelation"]:
        """Yield the result of the query, which is computed while it is read."""
        with extra("hospital"):
            import duckdb
        root = self._scratch or load_settings().private_root
        places = {
            name: (kind, place if place.startswith(_S3) else str(Path(place).absolute()))
            for name, declared in self._source.tables.items()
            for kind, place in declared.items()
        }
        with (
            # A locked folder, which a clean-up leaves alone until this process ends.
            PrivateWorkspace.create(root, f"duckdb-{secrets.token_hex(8)}") as spilt,
            duckdb.connect(
                config=_LISTED["settings"] | {"temp_directory": str(spilt.folder)}
            ) as connection,
        ):
            connection.execute("SET TimeZone = 'UTC'")  # times with a zone become dates by it
            scans = self._of_database(connection) if self._source.database else {}
            scans |= {name: _scan(connection, *at) for name, at in places.items()}
            reached = ", ".join(_text(_METADATA.sub("", place)) for _, place in places.values())
            connection.execute(
                f"SET allowed_directories = [{reached}]; SET allowed_paths = [{reached}]; "
                "SET enable_external_access = false; SET lock_configuration = true"
            )
            self._check_keys(
                {name: _define(connection, name, scan) for name, scan in scans.items()}
            )
            statement = printed(self._source.query, "duckdb")
            yield connection.sql(statement, params=self._source.parameters)

    def _of_database(self, connection: "DuckDBPyConnection") -> dict[str, str]:
        """Attach the database; return each table of the query as a part of FROM."""
        file = _text(str(self._source.database.absolute()))
        connection.execute(f"ATTACH {file} AS source (TYPE duckdb, READ_ONLY)")
        stored = connection.execute(
            "SELECT table_schema, table_name, table_type FROM information_schema.tables "
            "WHERE table_catalog = 'source'"
        ).fetchall()
        found = {folded(f"{schema}.{name}"): (schema, name, kind) for schema, name, kind in stored}
        scans = {}
        for name in sorted(self._source.tables_read):
            schema, table, kind = found.get(name if "." in name else f"main.{name}", ("", "", ""))
            if kind != "BASE TABLE" and not (kind == "VIEW" and name in self._source.declared):
                raise refusal("UNDECLARED_VIEW", name=name)
            scans[name] = f"source.{in_quotes(schema)}.{in_quotes(table)}"
        return scans

    def _check_keys(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Refuse a join of patients' tables by columns whose types DuckDB would convert."""
        patients = [columns for name, columns in tables.items() if name not in self._source.public]
        for column in sorted(equated_of(parse_query(self._source.query, "duckdb"))):
            kinds = {columns[column] for columns in patients if column in columns}
            if len(kinds) > 1 and not all(kind.endswith(("INT", "INTEGER")) for kind in kinds):
                raise refusal("JOIN_TYPES", column=column)


def _scan(connection: "DuckDBPyConnection", kind: str, place: str) -> str:
    """Make a table of files readable; return it as a part of FROM."""
    is_remote = place.startswith(_S3)
    remote = ["httpfs"] if is_remote and kind != "parquet" else []
    for name in (*_LISTED["extensions"][kind], *remote):
        known = "SELECT 1 FROM duckdb_extensions() WHERE installed AND extension_name = ?"
        if connection.execute(known, [name]).fetchone() is None:
            raise refusal("EXTENSION_MISSING", name=name)
        connection.execute(f"LOAD {name}")
    if kind != "parquet":
        if is_remote:
            connection.execute(_secret())
        return f"{kind}_scan({_text(place)})"
    scan = "read_parquet([{}], hive_partitioning = true, hive_types_autocast = false)".format
    files = [_text(file) for file in _parquet_files(connection, place)]
    # DuckDB would convert all files to the types of the first.
    forms = {frozenset(_kinds(connection.sql(f"FROM {scan(one)}")).items()) for one in files}
    if len(forms) > 1:
        raise refusal("PARQUET_SCHEMA files", place=place)
    return scan(", ".join(files))


def _parquet_files(connection: "DuckDBPyConnection", place: str) -> list[str]:
    """Return the Parquet files at a place, sorted; DuckDB can then read those of S3."""
    is_remote = place.startswith(_S3)
    with extra("s3"):
        from fsspec.core import url_to_fs

        if is_remote:
            import_module("s3fs")  # named by its extra if it is missing
    store, root = url_to_fs(place, use_listings_cache=False, skip_instance_cache=True)
    if is_remote and not connection.filesystem_is_registered("s3"):
        connection.register_filesystem(store)
    folder = PurePosixPath(root)
    names = [PurePosixPath(name) for name in store.find(str(above_partitions(folder)))]
    refuse_a_log(names)
    found = [name for name in names if name == folder or is_part(name, folder)]
    if not found or any(set("*?[") & set(str(name)) for name in found):
        raise refusal("SOURCE_MISSING parquet", place=place)
    return [f"{_S3 if is_remote else ''}{name}" for name in sorted(found)]


def _define(connection: "DuckDBPyConnection", name: str, scan: str) -> dict[str, str]:
    """Make a table visible to the query, its texts compared by bytes; return its types."""
    kinds = _kinds(connection.sql(f"FROM {scan}"))
    cells = (
        in_quotes(one) + (f' COLLATE "binary" AS {in_quotes(one)}' if kind == "VARCHAR" else "")
        for one, kind in kinds.items()
    )
    schema, _, table = name.rpartition(".")
    view = f"{in_quotes(schema or 'main')}.{in_quotes(table)}"
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {in_quotes(schema or 'main')}")
    connection.execute(f"CREATE VIEW {view} AS SELECT {', '.join(cells)} FROM {scan}")
    return {folded(one): kind for one, kind in kinds.items()}


def _kinds(rows: "DuckDBPyRelation") -> dict[str, str]:
    return dict(zip(rows.columns, map(str, rows.types), strict=True))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _secret() -> str:
    """Return the statement that gives the extensions the keys and the address of S3."""
    options = ["TYPE s3"]
    options += [
        f"{key} {_text(value)}"
        for key, name in _LISTED["keys"].items()
        if (value := os.environ.get(f"AWS_{name}"))
    ]
    scheme, _, host = os.environ.get("AWS_ENDPOINT_URL", "").partition("://")
    if host:
        options += [f"ENDPOINT {_text(host)}", f"USE_SSL {scheme == 'https'}", "URL_STYLE 'path'"]
    return f"CREATE OR REPLACE SECRET store ({', '.join(options)})"
