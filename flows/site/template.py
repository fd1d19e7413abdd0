"""The commented site file that ``clustmix init`` writes for a person to fill in.

It is made from column names and types alone. No value, bound, level or count of the data enters
it: bounds and levels taken from records would be a release without a guarantee.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import yaml
from pydantic import ValidationError

from flows.site.site_file import PLACEHOLDER
from privacy.errors import ConfigurationError, InputError
from storage.schema.table import number_of
from storage.sources.cohorts import CohortReader, CsvSource, ParquetSource

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})

_HEAD = f"""\
# Site file of ClustMix. Replace every {PLACEHOLDER}; a file that still holds one is refused.
# Take bounds, bins and levels from a codebook, a data dictionary or clinical knowledge. Never look
# them up in the records: what this file says is public and is not protected by the guarantee.
dataset: {PLACEHOLDER}            # name in the ledger: a-z, 0-9 and -, such as heart-failure-2024
title: {PLACEHOLDER}              # one line for the data card
"""
_SOURCE = f"""\
source:
  kind: {PLACEHOLDER}             # csv, parquet or sql
  path: {PLACEHOLDER}             # of a csv or parquet file
"""
_GUARANTEE = f"""\

# Whom privacy protects: the column that names the patient, and how many rows of one patient are
# used. Without such a column every row must be another patient: column: null with 1 row. Take the
# patient column out of schema.columns below.
privacy_unit: {{column: {PLACEHOLDER}, max_rows_per_patient: {PLACEHOLDER}}}
# The guarantee of one release. Delta stays far below one over the number of patients.
privacy: {{epsilon: {PLACEHOLDER}, delta: {PLACEHOLDER}}}
# What all releases about these patients together may cost. It can be lowered later, never raised.
budget:
  lifetime_epsilon: {PLACEHOLDER}
  # cohort: heart-failure                # the same name in all site files about the same patients
  # dataset_epsilon: 2.0                 # of this dataset alone, where a cohort has several
  # window: {{days: 365, epsilon: 1.5}}    # of the cohort within any 365 days
# Does a second person sign each release before it is published? It can be turned on later, never
# off again; clustmix keygen makes the keys.
# approval: officer
method: {{kind: clustmix}}
rows: {PLACEHOLDER}               # synthetic rows; a round number, not the size of the cohort

schema:
  columns:
"""

_NUMERIC = f"""\
      lower: {PLACEHOLDER}        # smallest and largest value that are kept; others are clipped
      upper: {PLACEHOLDER}
      bins: {PLACEHOLDER}         # a number of bins of equal width, or the edges [.., .., ..]
"""
_REAL = f"      decimals: {PLACEHOLDER}     # of a released value\n"
_CATEGORICAL = f"""\
      levels: {PLACEHOLDER}       # [.., ..]; write "No" and "Yes" in quotes
"""
_UNKNOWN = f"""\
      kind: {PLACEHOLDER}  # integer or real (with lower, upper, bins), or categorical (levels)
"""
_TAIL = f"""\
  # The column that a model is to predict. Take it out of the columns above.
  label:
    name: {PLACEHOLDER}
    levels: {PLACEHOLDER}         # a list of {{name: level, values: [raw values]}}
  # Columns of the source that are not used, such as record numbers and dates.
  ignore: []
"""
_OPTIONS = """\
  # Every column may also have: missing: ["?"] (codes that mean missing) and nullable: true (an
  # empty cell means missing). A categorical column may have: other: <level> (for all other values).
"""


def site_template(
    header: Sequence[str],
    dtypes: Mapping[str, str] | None = None,
    source: CsvSource | ParquetSource | None = None,
) -> str:
    """Write a site file with a place for everything that a person has to decide.

    A column without a type, such as every column of a CSV file, gets a place for its kind;
    `load_site` refuses the file until it is filled in.

    Privacy
    -------
    A function of names and types alone; no record is looked at.
    """
    parts = [_HEAD, _SOURCE if source is None else _written(source), _GUARANTEE, _OPTIONS]
    for name in header:
        parts.append(f"    - name: {_quoted(name)}\n")
        kind = _kind((dtypes or {}).get(name))
        if kind is None:
            parts.append(_UNKNOWN)
            continue
        parts.append(f"      kind: {kind}\n")
        parts.append(_CATEGORICAL if kind == "categorical" else _NUMERIC)
        if kind == "real":
            parts.append(_REAL)
    return "".join([*parts, _TAIL])


def _written(source: CsvSource | ParquetSource) -> str:
    lines = ["source:", f"  kind: {source.kind}", f"  path: {_quoted(str(source.path))}"]
    if isinstance(source, CsvSource) and source.delimiter != ",":
        lines.append(f"  delimiter: {_quoted(source.delimiter)}")
    return "\n".join([*lines, ""])


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
    """Return the column names of a table and, where its file states them, their types.

    The header line of a text file alone is read, or the footer of Parquet.
    """
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
