"""Shared fields of sources: selection of rows, printable paths, address of a database."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from storage.files.documents import KEPT
from storage.schema.column_blocks import ImageColumns
from storage.schema.columns import Declaration

_ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,127}")
_SQLITE_FILE = re.compile(r"sqlite:///[^?\n]+")


def _printable(path: Path) -> Path:
    # Messages name the path.
    if not str(path).isprintable():
        raise ValueError("expected a path of printable characters")
    return path


PrintablePath = Annotated[Path, AfterValidator(_printable)]


def _one_place(place: str) -> str:
    # DuckDB would read a pattern as many files.
    if not place.isprintable() or re.fullmatch(r"(s3://)?[^*?\[]+", place) is None:
        raise ValueError("expected a path or s3://bucket/prefix, without * ? and [")
    if "://" in place.removeprefix("s3://"):
        raise ValueError("expected a path, or an address that begins with s3://")
    return place


TablePlace = Annotated[StrictStr, AfterValidator(_one_place)]


class SourcePlace(Declaration):
    """Fields of every source."""

    select: dict[str, StrictStr | StrictInt] = Field(default_factory=dict)
    """Keep the rows whose column equals the value, for every pair. The rule reads one
    row at a time, so the sensitivity stays the same. Column and value are public."""

    def check_image(self, image: ImageColumns | None) -> None:
        """Refuse (ValueError) a schema of other images than those of the source, if it has any."""


class DatabasePlace(SourcePlace):
    """Address of a database and the language of its queries."""

    url_env: str | None = None
    """Name of the environment variable that holds the SQLAlchemy URL, such as
    ``postgresql://reader:PASSWORD@cdm.hospital.example/cdm``."""
    url: str | None = None
    """URL in clear, for a SQLite file only."""
    dialect: Literal["postgresql", "sqlite"] | None = None
    """Language of the query; ``sqlite`` with ``url``, else ``postgresql``."""

    @field_validator("url_env")
    @classmethod
    def _environment_name(cls, name: str | None) -> str | None:
        if name is not None and _ENVIRONMENT_NAME.fullmatch(name) is None:
            raise ValueError("'url_env' is the name of an environment variable, not a URL")
        return name

    @field_validator("url")
    @classmethod
    def _sqlite_only(cls, url: str | None) -> str | None:
        if url is not None and _SQLITE_FILE.fullmatch(url) is None:
            raise ValueError(
                "'url' in clear is for SQLite files only (sqlite:///file.sqlite); put any other "
                "URL into an environment variable and name it in 'url_env'"
            )
        return url

    @property
    def language(self) -> str:
        """Kind of the database, as SQLAlchemy names it."""
        return self.dialect or ("sqlite" if self.url else "postgresql")

    @model_validator(mode="after")
    def _one_address(self, info: ValidationInfo) -> Self:
        if info.context == KEPT:
            return self
        if (self.url is None) == (self.url_env is None):
            raise ValueError("give exactly one of 'url_env' and 'url'")
        if self.url is not None and self.language != "sqlite":
            raise ValueError("'url' is a SQLite file; leave 'dialect' out")
        return self
