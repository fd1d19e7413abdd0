"""Reader of codebook files of every supported kind."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from privacy.errors import extra
from storage.codebooks.schemas import schema_variables
from storage.codebooks.sheets import sheet_variables
from storage.codebooks.variables import Variable, codebook_refusal
from storage.schema.plain_yaml import constructed

MAX_BYTES = 20_000_000
"""Largest codebook."""

_DELIMITERS = ",;\t|"
_Found = tuple[Variable, ...] | None


def read_codebook(path: Path) -> Mapping[str, Variable]:
    """Return the variables of a codebook by column name.

    Accepted are sheets (``.csv``, ``.tsv``, ``.txt``, ``.xlsx``) with a line of headings
    (`storage.codebooks.sheets.HEADINGS`), including REDCap data dictionaries, and schemas
    (``.json``, ``.yaml``) of Frictionless, JSON Schema and LinkML. Anything else is a
    ConfigurationError of one line that repeats no cell of a sheet.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise codebook_refusal(
            "KIND",
            f"{path.name}: expected a codebook as {', '.join(_READERS)}; save it as one of these",
        )
    content = _content(path)
    found: _Found = None
    problem = False
    try:
        found = read(content)
    except (ValueError, csv.Error, yaml.YAMLError, RecursionError):
        problem = True  # raised outside this block, as their text may repeat the file
    if problem:
        raise codebook_refusal(
            "UNREADABLE",
            f"{path.name}: expected a whole {path.suffix} file, text in UTF-8; save it anew",
        )
    if not found:
        raise codebook_refusal(
            "UNKNOWN",
            f"{path.name}: expected a line of headings with a column for names (name, variable, "
            "field) and others (type, minimum, maximum, levels, unit, missing, description), a "
            "REDCap dictionary, or a schema of Frictionless, JSON Schema or LinkML",
        )
    by_name = {one.name: one for one in found}
    if len(by_name) < len(found):
        raise codebook_refusal("DUPLICATE", f"{path.name}: expected each column once")
    return by_name


def _content(path: Path) -> bytes:
    content = b""
    if path.is_file():
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
    if not 0 < len(content) <= MAX_BYTES:
        raise codebook_refusal(
            "MISSING", f"expected a codebook of 1 to {MAX_BYTES:,} bytes at {path}; check the path"
        )
    return content


def _text_sheet(content: bytes) -> _Found:
    text = content.decode("utf-8-sig")
    sheets = (csv.reader(io.StringIO(text, newline=""), delimiter=mark) for mark in _DELIMITERS)
    return next(filter(None, map(sheet_variables, sheets)), None)


def _workbook(content: bytes) -> _Found:
    with extra("hospital"):
        import openpyxl
    try:
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        rows = [list(sheet.iter_rows(values_only=True)) for sheet in book]
    except Exception as error:  # openpyxl has no class for a broken archive
        raise ValueError from error
    return next(filter(None, map(sheet_variables, rows)), None)


_READERS: dict[str, Callable[[bytes], _Found]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _text_sheet),
    ".xlsx": _workbook,
    ".json": lambda content: schema_variables(json.loads(content)),
    **dict.fromkeys((".yaml", ".yml"), lambda content: schema_variables(constructed(content))),
}
