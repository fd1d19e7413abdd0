"""The `source` section of a site file. Nothing here opens a file or a connection."""

import codecs
import re
from contextlib import suppress
from datetime import date
from typing import Annotated, Literal, Self

import sqlalchemy as sa
from pydantic import (
    Field,
    FiniteFloat,
    PrivateAttr,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from storage.files.documents import KEPT
from storage.schema.columns import left_out
from storage.sources.declared_fhir import PATIENT, FhirSource
from storage.sources.declared_images import PATIENT_TAG, DicomSource, PngSource
from storage.sources.omop import PERSON, OmopSource
from storage.sources.places import DatabasePlace, PrintablePath, SourcePlace, TablePlace

_StrictFinite = Annotated[FiniteFloat, Field(strict=True)]
_TableName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")]
_TableKind = Literal["parquet", "delta", "iceberg"]
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_REFUSED_MARKS = ("--", "/*", "*/", "#", "\\", "$", "{", "}", "`", "%", ";", "[")


class _FileSource(SourcePlace):
    """A file or folder of your own (`path`), or a public dataset by name (`data`)."""

    path: PrintablePath | None = None
    """Relative paths start at the current directory."""
    data: str | None = None
    """Name from `storage.public_data.public_tables.DATASETS`."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.data is None):
            raise ValueError("give exactly one of 'path' and 'data'")
        return self


class CsvSource(_FileSource):
    """A text file with a header line, plain or compressed (``.gz``)."""

    kind: Literal["csv"]
    delimiter: str = ","
    """One character."""
    encoding: str = "utf-8"
    """Name of a text encoding."""
    decimal: Literal[".", ","] = left_out(".")
    """Decimal mark of the columns of numbers."""
    thousands: Literal[".", ",", " ", "'"] | None = left_out()
    """Mark of thousands."""

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, delimiter: str) -> str:
        if len(delimiter) != 1 or delimiter in '"\r\n\0' or not delimiter.isascii():
            raise ValueError(
                "a delimiter is one character and neither a quote nor a line end, from ASCII"
            )
        return delimiter

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, encoding: str) -> str:
        # ValueError: a null character, or a codec that refuses. LookupError: unknown, or not text.
        with suppress(LookupError, ValueError):
            if "a".encode(encoding).decode(encoding) == "a":
                return codecs.lookup(encoding).name
        raise ValueError("unknown text encoding; use for example 'utf-8' or 'cp1252'")

    @model_validator(mode="after")
    def _two_marks(self) -> Self:
        if self.decimal == self.thousands:
            raise ValueError("expected two different marks as decimal and thousands")
        return self


class ParquetSource(_FileSource):
    """A Parquet file, or a folder of them, also in hive partitions (``key=value``)."""

    kind: Literal["parquet"]


class _Query(SourcePlace):
    """One fixed query, which acts on one patient at a time."""

    query: str = Field(max_length=100_000)
    """One SELECT or WITH statement with bound parameters such as ``:ward``."""
    parameters: dict[str, StrictStr | StrictBool | StrictInt | _StrictFinite | date] = Field(
        default_factory=dict
    )
    """A value for every bound parameter."""
    public_tables: tuple[str, ...] = ()
    """Tables and views without patients, such as names of codes, named as in the query."""
    patient_local: tuple[str, ...] = ()
    """Views whose rows about a patient depend on that patient's records alone. The guarantee rests
    on this declaration; other views are refused."""

    @property
    def language(self) -> str:
        """Dialect of the query."""
        return "duckdb"

    @field_validator("query")
    @classmethod
    def _one_select(cls, query: str, info: ValidationInfo) -> str:
        if info.context == KEPT:
            return query
        # Databases may read comments, escapes and dollar quotes differently, so these are refused.
        if any(not (c.isprintable() or c in "\n\t\r") for c in query):
            raise ValueError("the query must hold printable characters only")
        bare = _QUOTED.sub(" ", query.strip().removesuffix(";"))
        if "'" in bare or '"' in bare:
            raise ValueError("the query has an unclosed quote")
        for mark in _REFUSED_MARKS:
            if mark in bare or (mark == "\\" and mark in query):
                raise ValueError(
                    f"the query must be one statement without {mark!r}: no comment, template, "
                    "escape or second statement; use bound parameters such as :ward"
                )
        if re.match(r"[\s(]*(?:select|with)\b", query, re.IGNORECASE) is None:
            raise ValueError("the query must begin with SELECT or WITH")
        return query

    @model_validator(mode="after")
    def _named(self, info: ValidationInfo) -> Self:
        if info.context == KEPT:
            return self
        bound = set(sa.text(self.query).compile().params)
        if bound != self.parameters.keys():
            raise ValueError(
                "'parameters' must name exactly the bound parameters of the query: "
                f"{', '.join(sorted(bound)) or 'none'}"
            )
        stray = self.declared - self.tables_read
        if stray:
            raise ValueError(
                "'public_tables' and 'patient_local' must name tables of the query, found "
                f"{', '.join(sorted(stray))}"
            )
        return self

    @property
    def tables_read(self) -> frozenset[str]:
        """Tables and views that the query reads, as the database reads their names."""
        from storage.sources.sql_queries import parse_query, tables_of  # slow import, rarely needed

        return tables_of(parse_query(self.query, self.language))

    @property
    def public(self) -> frozenset[str]:
        """Tables and views that are declared public, as the database reads their names."""
        return self._names(*self.public_tables)

    @property
    def declared(self) -> frozenset[str]:
        """Tables and views that are declared public or patient-local."""
        return self.public | self._names(*self.patient_local)

    def check_patient_local(self, unit: str | None) -> None:
        """Refuse (ValueError) a query that `storage.sources.patient_local` does not prove."""
        from storage.sources.patient_local import check_patient_local
        from storage.sources.sql_queries import parse_query

        check_patient_local(
            parse_query(self.query, self.language),
            unit=None if unit is None else next(iter(self._names(unit))),
            public=self.public,
        )

    def _names(self, *names: str) -> frozenset[str]:
        """Return names as the database compares them: only PostgreSQL distinguishes case."""
        return frozenset(n if self.language == "postgresql" else n.lower() for n in names)


class SqlSource(DatabasePlace, _Query):
    """The result of one query, whose rows about a patient depend on that patient's rows alone.

    A table of the query names the patient in the column of ``privacy_unit``, spelled alike in all,
    or is declared public. A query is refused unless its parse proves this: no LIMIT, ROW_NUMBER,
    RANDOM() or clock; GROUP BY, windows, DISTINCT, joins and subqueries only within a patient; WITH
    at the beginning only; columns with their table (``table.column``) in a SELECT of several tables
    or inside another; the patient not from the right side of a LEFT JOIN. With
    ``privacy_unit.column: null`` it reads single rows of one table. Write other queries as a view
    in ``patient_local``. The database user may read alone.
    """

    kind: Literal["sql"]
    _vocabulary: tuple[tuple[str, str], ...] = PrivateAttr(default=())

    @property
    def vocabulary(self) -> tuple[tuple[str, str], ...]:
        """Queries that must find a row in the vocabulary of an OMOP database, and its name."""
        return self._vocabulary


class _DuckdbSource(_Query):
    """Tables of DuckDB by one query, with the rules of kind ``sql``; text is compared by bytes.

    Keys and address of S3 are those of the environment (``AWS_ACCESS_KEY_ID``,
    ``AWS_ENDPOINT_URL``). Extensions are not downloaded: ``INSTALL delta``.
    """

    kind: Literal["duckdb"]
    database: PrintablePath | None = None
    """A file of DuckDB."""
    tables: dict[
        _TableName, Annotated[dict[_TableKind, TablePlace], Field(min_length=1, max_length=1)]
    ] = Field(default_factory=dict)
    """Tables of the query, each ``{parquet: place}``, ``delta`` or ``iceberg``: a folder, a
    file or ``s3://bucket/prefix``."""

    @model_validator(mode="after")
    def _placed(self, info: ValidationInfo) -> Self:
        if info.context == KEPT:
            return self
        if (self.database is None) == (not self.tables):
            raise ValueError("give exactly one of 'database' and 'tables'")
        if self.tables and (absent := self.tables_read - self.tables.keys()):
            raise ValueError(f"'tables' must name those of the query, found no {min(absent)}")
        return self


class _SklearnSource(SourcePlace):
    """A public dataset inside scikit-learn; its label column is called ``target``."""

    kind: Literal["sklearn"]
    dataset: Literal["breast_cancer"]
    """``breast_cancer``."""


Source = Annotated[
    CsvSource
    | ParquetSource
    | SqlSource
    | _DuckdbSource
    | OmopSource
    | FhirSource
    | _SklearnSource
    | PngSource
    | DicomSource,
    Field(discriminator="kind"),
]


def query_of(source: OmopSource) -> SqlSource:
    """Return the source of kind ``sql`` that an OMOP source is compiled to."""
    query = SqlSource(
        kind="sql",
        **source.model_dump(include={"url", "url_env", "dialect", "select", "patient_local"}),
        query=source.query,
        public_tables=source.public_tables,
    )
    query._vocabulary = source.vocabulary
    return query


def check_source_unit(source: "Source", unit: str | None) -> None:
    """Refuse (ValueError) a source whose rows are not proved to belong to one patient each.

    `unit` is the column that names the patient, None if every row is another patient.
    """
    named = {"omop": PERSON, "fhir": PATIENT, "dicom": PATIENT_TAG}.get(source.kind, unit)
    if unit != named:
        raise ValueError(f"privacy_unit.column: expected {named} for a source of this kind")
    query = query_of(source) if isinstance(source, OmopSource) else source
    if isinstance(query, _Query):
        try:
            query.check_patient_local(unit)
        except ValueError as error:
            raise ValueError(f"source.query: {error}") from None
