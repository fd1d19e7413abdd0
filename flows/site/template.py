"""The commented site file that ``clustmix init`` writes for a person to fill in.

It is made from column names and types alone. No value, bound, level or count of the data enters
it: bounds and levels taken from records would be a release without a guarantee.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import ValidationError

from flows.site.site_file import PLACEHOLDER
from privacy.errors import ConfigurationError, InputError
from storage.schema.columns import number_of
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource, ParquetSource

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def site_template(
    header: Sequence[str],
    dtypes: Mapping[str, str] | None = None,
    source: CsvSource | ParquetSource | None = None,
) -> str:
    """Write a site file with a place for everything that a person has to decide.

    A column without a type, as in a CSV file, gets a place for its kind, too; `load_site` refuses
    the file until it is filled in. It is a function of names and types; no record is looked at.
    """
    types = dtypes or {}
    environment = Environment(  # noqa: S701 -- YAML, in which `_quoted` writes every name
        loader=PackageLoader("flows.site"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = _quoted
    columns = [(name, _kind(types.get(name))) for name in header]
    template = environment.get_template("site.yaml.j2")
    return template.render(source=source, columns=columns, fill_in=PLACEHOLDER)


def _kind(dtype: str | None) -> str | None:
    name = (dtype or "").lower()
    if re.match(r"u?int|bigint|smallint|integer", name):
        return "integer"
    if re.match(r"float|double|real|decimal|numeric", name):
        return "real"
    if re.match(r"str|large_string|categor|dictionary|bool|varchar|text|char", name):
        return "categorical"
    return None


def _quoted(name: str) -> str:
    if _PLAIN.fullmatch(name) and name.lower() not in _YAML_WORDS:
        return name
    return yaml.safe_dump(name, default_style='"', allow_unicode=True, width=10_000).strip()


def source_of(path: Path, *, delimiter: str = ",") -> CsvSource | ParquetSource:
    """Return a table as a source: Parquet by its suffix or as a folder, else a text file."""
    if path.suffix == ".parquet" or path.is_dir():
        return ParquetSource(kind="parquet", path=path)
    try:
        return CsvSource(kind="csv", path=path, delimiter=delimiter)
    except ValidationError:
        raise ConfigurationError(
            "INVALID_DELIMITER",
            "expected --delimiter to be one character, neither a quote nor a line end",
        ) from None


def describe_table(
    source: CsvSource | ParquetSource,
) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """Return names and, of one Parquet file, types of columns, by header line or footer alone."""
    header = CohortReader(source).header()
    if isinstance(source, CsvSource):
        if any(number_of(name) is not None for name in header):
            raise InputError(
                "CSV_HEADER",
                "expected names in the first line, found a number; a file without a header line "
                "has a patient there: add the header",
            )
        return header, None
    path = Path(str(source.path))
    if path.is_dir():
        return header, None
    schema = pq.read_schema(path)
    return header, {name: str(schema.field(name).type) for name in header}
