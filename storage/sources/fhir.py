"""A folder of a FHIR bulk export: one record per patient, of that patient's resources alone."""

import gzip
import hashlib
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count, groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from privacy.errors import InputError, refusals
from storage.files.documents import listed
from storage.files.private import ensure_private_directory
from storage.settings import load_settings
from storage.sources.cells import sql_text
from storage.sources.declared_fhir import (
    PATIENT,
    SUBJECTS,
    TIMES,
    Expression,
    FhirSource,
    known_types,
    parse_expression,
)
from storage.sources.reading import RefusedRow, SourceTable, check_form

refusal = refusals(__package__)
_COLLECTION = listed(__package__, "fhir.toml")["words"]["collection"]
_LOG = "log.ndjson"
_MAX_LINE_BYTES = 1 << 24
_REFERENCE = re.compile(
    # No address of a server: two servers may give two people one id.
    r"(?:urn:uuid:|Patient/)([A-Za-z0-9.-]{1,64})(?:/_history/[^/]+)?"
)


class FhirExport(SourceTable):
    """The patients of an export, or certain resources of theirs, as columns of text.

    Resources are collected by patient in an unlinked file of the private folder. Memory is bounded
    by the largest patient and `chunk_rows`, and a killed process leaves no file.

    Privacy
    -------
    A cell is a function of the resources that name its patient, independent of other patients and
    of the order of lines; with ``each``, of one of them. Rows are in the order of the ids of
    patients. A line that occurs twice counts once.
    """

    def __init__(self, source: FhirSource, scratch: Path | None = None) -> None:
        super().__init__(source, scratch)
        self._features = {one.column: parse_expression(one.expression) for one in source.features}
        self._each = parse_expression(f"({source.each}).exists()") if source.each else None

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the names; every cell is text."""
        return (PATIENT, *self._features), {}

    def files(self) -> list[Path]:
        """Return the files ``*.ndjson``, plain or ``.gz``, of the folder, sorted.

        The log of a bulk client is none of them, and its folder ``error`` is not read. It is an
        InputError if there is none, or a link, or if the folder ``deleted`` names resources: an
        entry there does not name its patient, so that nobody can show whose record it changes.
        """
        folder: Path = self._source.path
        files = sorted(
            file
            for pattern in ("*.ndjson", "*.ndjson.gz")
            for file in folder.glob(pattern)
            if file.name != _LOG
        )
        if any(file.stat().st_size for file in folder.glob("deleted/*.ndjson*")):
            raise refusal("FHIR_DELETED", folder=folder / "deleted")
        if not files:
            raise InputError("SOURCE_MISSING", f"expected files '*.ndjson' in folder {folder}")
        if any(file.is_symlink() or not file.is_file() for file in files):
            raise refusal("FHIR_LINK", folder=folder)
        return files

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the export once; yield the requested columns of at most `chunk_rows` rows."""
        wanted = {name: self._features[name] for name in needed if name != PATIENT}
        rows = self._rows(wanted)
        while some := list(islice(rows, chunk_rows)):
            columns = [sql_text(name, [row[name] for row in some]) for name in needed]
            yield pa.RecordBatch.from_arrays(columns, names=list(needed))

    def _rows(self, wanted: Mapping[str, Expression]) -> Iterator[dict[str, object]]:
        expressions = [*wanted.values(), *filter(None, [self._each])]
        types = {"Patient"}.union(*(named for named, _ in expressions))
        folder = ensure_private_directory(self._scratch or load_settings().private_root)
        with closing(_unnamed_database(folder)) as collected:
            for file in self.files():
                collected.executemany(
                    "INSERT OR IGNORE INTO resources VALUES (?, ?, ?, ?, ?, ?)", _lines(file, types)
                )
            cursor = collected.execute(
                "SELECT patient, type, line FROM resources "
                "ORDER BY patient, type, moment, id, digest"
            )
            for patient, lines in groupby(cursor, key=lambda row: row[0]):
                resources = [(kind, _parsed(line)) for _, kind, line in lines]
                if self._each is not None:
                    named, exists = self._each
                    own = (one for one in resources if one[0] in named)
                    parts = [[one] for one in own if _cell("each", exists, [one[1]]) == "true"]
                elif (records := sum(kind == "Patient" for kind, _ in resources)) == 1:
                    parts = [resources]
                else:
                    found = "two that differ" if records else "none"
                    raise refusal("FHIR_PATIENT", found=found)
                for part in parts:
                    yield _record(str(patient), part, wanted)


def _unnamed_database(folder: Path) -> sqlite3.Connection:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".export-")  # of mode 0600
    os.close(descriptor)
    try:
        connection = sqlite3.connect(name, isolation_level=None)
        connection.executescript(_COLLECTION)
        connection.execute("BEGIN")
    finally:
        os.unlink(name)
    return connection


def _lines(file: Path, types: set[str]) -> Iterator[tuple[str, str, str, str, bytes, bytes]]:
    """Yield the resources of some types with their patient, their time and their id."""
    try:
        check_form(file, "ndjson")
    except InputError as error:
        raise RefusedRow(error, row=0, place=file.name) from None
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as handle:
        for number in count():
            line = handle.readline(_MAX_LINE_BYTES + 1)
            if not line:
                return
            try:
                if line.strip() and (found := _resource(line, types)):
                    yield found
            except InputError as error:
                place = f"{file.name}, line {number + 1}"
                raise RefusedRow(error, row=number, place=place) from None


def _resource(line: bytes, types: set[str]) -> tuple[str, str, str, str, bytes, bytes] | None:
    """Return a resource with its patient, its time and its id; None if its type is not wanted."""
    resource = _parsed(line) if len(line) <= _MAX_LINE_BYTES else {}
    kind = str(resource.get("resourceType"))
    if kind in types:
        digest = hashlib.sha256(line.strip()).digest()
        own = str(resource.get("id", ""))
        return _patient_of(kind, resource), kind, _moment(resource), own, digest, line
    if kind not in known_types():
        raise refusal("FHIR_TYPE")
    return None


def _parsed(line: bytes) -> dict[str, Any]:
    found: object = None
    with suppress(ValueError, RecursionError):
        # NaN and Infinity are no whole numbers, and refused.
        found = json.loads(line, parse_float=Decimal, parse_constant=int)
    if not isinstance(found, dict):
        raise refusal("FHIR_LINE")
    return found


def _patient_of(kind: str, resource: Mapping[str, Any]) -> str:
    """Return the id of the patient of a resource."""
    if kind == "Patient":
        if resource.get("link"):
            raise refusal("FHIR_PATIENT_LINK")
        own = resource.get("id")
        reference = f"Patient/{own}" if isinstance(own, str) else None
    else:
        subject = resource.get(SUBJECTS[kind])
        reference = subject.get("reference") if isinstance(subject, dict) else None
    named = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    if named is None:
        is_address = "://" in str(reference)
        found = "an address, and two servers may share an id" if is_address else "no name"
        raise refusal("FHIR_SUBJECT", kind=kind, found=found)
    return named[1]


def _moment(resource: Mapping[str, Any]) -> str:
    """Return the time of a resource as a sortable text; empty if unknown."""
    for time in TIMES:
        found: object = resource
        for key in time.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            with suppress(ValueError, OverflowError):
                moment = datetime.fromisoformat(found)
                if moment.tzinfo is not None:
                    return moment.astimezone(UTC).isoformat(timespec="microseconds")
            return found  # a year, a month or a day: before the times in it
    return ""


def _record(
    patient: str, resources: list[tuple[str, dict[str, Any]]], wanted: Mapping[str, Expression]
) -> dict[str, object]:
    """Evaluate the expressions over resources of one patient."""
    return {PATIENT: patient} | {
        column: _cell(column, evaluate, [one for kind, one in resources if kind in types])
        for column, (types, evaluate) in wanted.items()
    }


def _cell(
    column: str, evaluate: Callable[..., Sequence[object]], resources: list[Mapping[str, Any]]
) -> object:
    found: Sequence[object] | None = None
    with suppress(Exception):  # whose text may quote the resources
        found = evaluate(resources)
    if found is None:
        rule = "expression that can be evaluated for every patient, found one for whom it cannot"
    elif len(found) > 1:
        rule = "one value or none for each patient, found several; end the expression in .last()"
    elif found and not isinstance(found[0], str | bool | int | Decimal):
        rule = "text, a number or a truth value, found a structure; name the element of it"
    else:
        value = found[0] if found else None
        return str(value).lower() if isinstance(value, bool) else value
    raise InputError("FHIR_VALUE", f"column {column!r}: expected {rule}")
