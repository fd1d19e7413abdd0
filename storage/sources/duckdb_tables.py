"""Reader of DuckDB: one query over the tables of a database file, or over tables of files.

DuckDB runs in this process. Its database in memory has the declared tables as views; the query
reaches nothing else, and nothing is installed. `storage.sources.cohorts` guards what is raised.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from privacy.errors import ConfigurationError, InputError, extra
from storage.files.private import ensure_private_directory
from storage.settings import load_settings
from storage.sources.declared import ParquetSource
from storage.sources.formats import folded, in_quotes, undeclared_view
from storage.sources.parquet_files import (
    ParquetFolder,
    above_partitions,
    is_shown,
    plain,
    refuse_a_log,
    schemas_differ,
)
from storage.sources.reading import SourceTable

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_S3 = "s3://"
_OFF = ("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions")
_OFF += ("allow_persistent_secrets", "python_enable_replacements")
_SETTINGS = {"memory_limit": "2GB", "threads": "2", **dict.fromkeys(_OFF, "false")}
_EXTENSIONS = {"delta": ("delta",), "iceberg": ("avro", "iceberg")}
_KEYS = {"KEY_ID": "ACCESS_KEY_ID", "SECRET": "SECRET_ACCESS_KEY", "REGION": "DEFAULT_REGION"}
_READ = frozenset(
    "BOOLEAN,TINYINT,SMALLINT,INTEGER,BIGINT,HUGEINT,UTINYINT,USMALLINT,UINTEGER,UBIGINT,FLOAT,"
    'DOUBLE,DECIMAL,VARCHAR,ENUM,UUID,DATE,TIME,TIMESTAMP,TIMESTAMP_S,TIMESTAMP_MS,"NULL",'
    "TIMESTAMP_NS,TIMESTAMP WITH TIME ZONE".split(",")
)


class DuckdbTables(SourceTable):
    """The result of the query of a source of kind ``duckdb``."""

    def files(self) -> list[Path] | None:
        """Return the files of all tables, None if one is in S3."""
        if self._source.database is not None:
            file = _local(str(self._source.database))
            return [one for one in (file, file.with_name(f"{file.name}.wal")) if one.is_file()]
        found = list[Path]()
        for kind, place in self._places.values():
            if place.startswith(_S3):
                return None
            whole = _folder(str(_local(place))) if kind != "parquet" else ""
            inside = Path(whole).rglob("*") if whole else _parquet_files(place)
            found += sorted(file for file in inside if file.is_file())
        return found

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the columns of the query, and the types that are not read."""
        with self._answer() as rows:
            kinds = _kinds(rows).items()
            return tuple(rows.columns), {n: kind for n, kind in kinds if _plain(kind) not in _READ}

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Run the query and read the wanted columns in batches of at most `chunk_rows`."""
        with self._answer() as rows, rows.to_arrow_reader(chunk_rows) as reader:
            for batch in reader:
                columns = [plain(batch.column(name)) for name in needed]
                yield pa.RecordBatch.from_arrays(columns, names=list(needed))

    @property
    def _places(self) -> dict[str, tuple[str, str]]:
        """Kind and place of each declared table."""
        return {name: next(iter(at.items())) for name, at in sorted(self._source.tables.items())}

    @contextmanager
    def _answer(self) -> Iterator["DuckDBPyRelation"]:
        """Yield the result of the query, which is computed while it is read."""
        with extra("hospital"):
            import duckdb
        private = ensure_private_directory(self._scratch or load_settings().private_root)
        with (
            tempfile.TemporaryDirectory(prefix=".duckdb-", dir=private) as spilt,
            duckdb.connect(config=_SETTINGS | {"temp_directory": spilt}) as connection,
        ):
            connection.execute("SET TimeZone = 'UTC'")  # times with a zone become dates by it
            scans = self._of_database(connection) if self._source.database else {}
            scans |= {name: _scan(connection, *at) for name, at in self._places.items()}
            reached = ", ".join(_text(_folder(place)) for _, place in self._places.values())
            connection.execute(
                f"SET allowed_directories = [{reached}]; SET enable_external_access = false; "
                "SET lock_configuration = true"
            )
            types = {name: _define(connection, name, scan) for name, scan in scans.items()}
            self._check_keys(types)
            yield connection.sql(self._source.statement, params=self._source.parameters)

    def _of_database(self, connection: "DuckDBPyConnection") -> dict[str, str]:
        """Attach the database; return each table of the query as a part of FROM."""
        connection.execute(
            f"ATTACH {_text(str(_local(str(self._source.database))))} AS source "
            "(TYPE duckdb, READ_ONLY)"
        )
        stored = connection.execute(
            "SELECT table_schema, table_name, table_type FROM information_schema.tables "
            "WHERE table_catalog = 'source'"
        ).fetchall()
        found = {folded(f"{schema}.{name}"): (schema, name, kind) for schema, name, kind in stored}
        scans = {}
        for name in sorted(self._source.tables_read):
            schema, table, kind = found.get(name if "." in name else f"main.{name}", ("", "", ""))
            if kind != "BASE TABLE" and not (kind == "VIEW" and name in self._source.declared):
                raise undeclared_view(name)
            scans[name] = f"source.{in_quotes(schema)}.{in_quotes(table)}"
        return scans

    def _check_keys(self, types: Mapping[str, Mapping[str, str]]) -> None:
        """Refuse to join tables of patients by columns that are converted to be compared."""
        patients = [columns for name, columns in types.items() if name not in self._source.public]
        for column in sorted(self._source.equated):
            found = {_plain(columns[column]) for columns in patients if column in columns}
            if len({"INT" if kind.endswith(("INT", "INTEGER")) else kind for kind in found}) > 1:
                raise InputError(
                    "JOIN_TYPES",
                    f"expected column {column!r}, which joins tables, to be of one type in all of "
                    "them, so that no two keys are taken for one; write it as text",
                )


def _scan(connection: "DuckDBPyConnection", kind: str, place: str) -> str:
    """Make a table of files readable; return it as a part of FROM."""
    is_remote = place.startswith(_S3)
    if kind != "parquet":
        for name in (*_EXTENSIONS[kind], *(["httpfs"] if is_remote else [])):
            _load(connection, name)
        if is_remote:
            connection.execute(_secret())
        return f"{kind}_scan({_text(place if is_remote else str(_local(place)))})"
    files = _files_of_store(connection, place) if is_remote else _parquet_files(place)
    # DuckDB would convert all files to the types of the first.
    forms = [set(_kinds(connection.sql(f"FROM {_parquet([file])}")).items()) for file in files]
    if differing := set.union(*forms) - set.intersection(*forms):
        raise schemas_differ({name for name, _ in differing})
    return _parquet(files)


def _define(connection: "DuckDBPyConnection", name: str, scan: str) -> dict[str, str]:
    """Make a table visible to the query, its texts compared by bytes; return its types."""
    kinds = _kinds(connection.sql(f"FROM {scan}"))
    binary = ' COLLATE "binary" AS '
    cells = (
        f"{in_quotes(one)}{binary}{in_quotes(one)}" if kind == "VARCHAR" else in_quotes(one)
        for one, kind in kinds.items()
    )
    schema, _, table = name.rpartition(".")
    schema = in_quotes(schema or "main")
    connection.execute(
        f"CREATE SCHEMA IF NOT EXISTS {schema}; "
        f"CREATE VIEW {schema}.{in_quotes(table)} AS SELECT {', '.join(cells)} FROM {scan}"
    )
    return {folded(one): kind for one, kind in kinds.items()}


def _kinds(rows: "DuckDBPyRelation") -> dict[str, str]:
    return dict(zip(rows.columns, map(str, rows.types), strict=True))


def _plain(kind: str) -> str:
    """Return a type without its length or levels; lists keep their form."""
    return kind.partition("(")[0] if kind.endswith(")") else kind


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _parquet(files: Sequence[object]) -> str:
    named = ", ".join(_text(str(file)) for file in files)
    return f"read_parquet([{named}], hive_partitioning = true, hive_types_autocast = false)"


def _local(place: str) -> Path:
    path = Path(place).absolute()
    if not path.exists():
        raise InputError(
            "SOURCE_MISSING",
            f"expected a file or folder at {place}; correct the path in the site file",
        )
    return path


def _folder(place: str) -> str:
    """Return the whole place of a table, which Iceberg may name by its metadata."""
    place = place if place.startswith(_S3) else str(Path(place).absolute())
    return place.rpartition("/metadata/")[0] if place.endswith(".metadata.json") else place


def _parquet_files(place: str) -> list[Path]:
    return ParquetFolder(ParquetSource(kind="parquet", path=_local(place))).files()


def _files_of_store(connection: "DuckDBPyConnection", place: str) -> list[str]:
    """Let DuckDB read from S3; return the Parquet files below a prefix, sorted."""
    with extra("s3"):
        from s3fs import S3FileSystem
    store = S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    if not connection.filesystem_is_registered("s3"):
        connection.register_filesystem(store)
    prefix = PurePosixPath(place.removeprefix(_S3))
    names = [PurePosixPath(name) for name in store.find(str(above_partitions(prefix)))]
    refuse_a_log(names)
    files = sorted(
        f"{_S3}{name}"
        for name in names
        if name.is_relative_to(prefix) and name.suffix == ".parquet" and is_shown(name, prefix)
    )
    if not files:
        raise InputError("SOURCE_MISSING", f"expected objects '*.parquet' below {place}")
    return files


def _load(connection: "DuckDBPyConnection", name: str) -> None:
    import duckdb

    with suppress(duckdb.Error):
        connection.execute(f"LOAD {name}")
        return
    raise ConfigurationError(
        "EXTENSION_MISSING",
        f"expected the extension {name} of DuckDB, found none for this version; nothing is "
        f'downloaded here: install it as this user (python -c "import duckdb; '
        f"duckdb.sql('INSTALL {name}')\"), or write the present rows out as Parquet",
    )


def _secret() -> str:
    """Return the statement that gives an extension the keys and the address of S3."""
    options = ["TYPE s3"]
    for key, name in (_KEYS | {"SESSION_TOKEN": "SESSION_TOKEN"}).items():
        if value := os.environ.get(f"AWS_{name}"):
            options.append(f"{key} {_text(value)}")
    scheme, _, host = os.environ.get("AWS_ENDPOINT_URL", "").partition("://")
    if host:
        options += [f"ENDPOINT {_text(host)}", f"USE_SSL {scheme == 'https'}", "URL_STYLE 'path'"]
    return f"CREATE OR REPLACE SECRET store ({', '.join(options)})"
