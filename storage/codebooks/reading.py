"""A codebook as a file: which kind it is, and what it says about each column."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from privacy.errors import extra
from storage.codebooks.schemas import schema_variables
from storage.codebooks.sheets import Row, sheet_variables
from storage.codebooks.variables import Variable, codebook_refusal

MAX_BYTES = 20_000_000
"""Largest codebook."""

_DELIMITERS = ",;\t|"


def read_codebook(path: Path) -> Mapping[str, Variable]:
    """Return what a codebook says about each column, by its name.

    Read are sheets (``.csv``, ``.tsv``, ``.txt``, ``.xlsx``) with a line of headings
    (`storage.codebooks.sheets.HEADINGS`), REDCap data dictionaries among them, and schemas
    (``.json``, ``.yaml``) of Frictionless, JSON Schema and LinkML. Anything else is a
    ConfigurationError of one line, which repeats no cell of a sheet.
    """
    content = _content(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise codebook_refusal(
            "KIND",
            f"{path.name}: expected a codebook as {', '.join(_READERS)}; save it as one of these",
        )
    found, problem = None, False
    try:
        found = read(content)
    except (ValueError, LookupError, OSError, csv.Error, yaml.YAMLError, RecursionError):
        # Raised below, outside of this block: their text may repeat the file.
        problem = True
    if problem:
        raise codebook_refusal(
            "UNREADABLE",
            f"{path.name}: expected a whole file of the kind {path.suffix}, text in UTF-8; save "
            "it anew",
        )
    if not found:
        raise codebook_refusal(
            "UNKNOWN",
            f"{path.name}: expected a line of headings with a column for names (name, variable, "
            "field) and others (type, minimum, maximum, levels, unit, missing, description), a "
            "REDCap dictionary, or a schema of Frictionless, JSON Schema or LinkML",
        )
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise codebook_refusal(
            "DUPLICATE", f"{path.name}: expected each column once in the codebook"
        )
    return dict(zip(names, found, strict=True))


def _content(path: Path) -> bytes:
    content = b""
    if path.is_file():
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
    if not content or len(content) > MAX_BYTES:
        raise codebook_refusal(
            "MISSING", f"expected a codebook of 1 to {MAX_BYTES:,} bytes at {path}; check the path"
        )
    return content


def _text_sheet(content: bytes) -> tuple[Variable, ...] | None:
    text = content.decode("utf-8-sig")
    for delimiter in _DELIMITERS:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        found = sheet_variables(rows)
        if found is not None:
            return found
    return None


def _workbook(content: bytes) -> tuple[Variable, ...] | None:
    with extra("hospital"):
        import openpyxl
    try:
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    except Exception as error:  # openpyxl names no class of its own for a broken archive
        raise ValueError from error
    sheets: Iterator[Iterator[Row]] = (sheet.iter_rows(values_only=True) for sheet in book)
    return next((found for found in map(sheet_variables, sheets) if found is not None), None)


def _json(content: bytes) -> tuple[Variable, ...] | None:
    return schema_variables(json.loads(content))


def _yaml(content: bytes) -> tuple[Variable, ...] | None:
    return schema_variables(yaml.safe_load(content))


_READERS: dict[str, Callable[[bytes], tuple[Variable, ...] | None]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _text_sheet),
    ".xlsx": _workbook,
    ".json": _json,
    **dict.fromkeys((".yaml", ".yml"), _yaml),
}
