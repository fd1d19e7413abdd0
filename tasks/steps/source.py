"""The tables of an installation: reading, checks, and recognition of known tables.

A table is known by the key of its measurement, so that none is measured twice. The key is an HMAC,
because a plain digest of a small table could be guessed and looked up. Nothing of the program
enters it but two version numbers, so that an upgrade charges nobody.
"""

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy.errors import InputError, refusals
from storage.files.documents import canonical_json
from storage.keys.key_store import KeyStore
from storage.schema.columns import in_short
from storage.schema.table import TableSchema
from storage.schema.visit_columns import PERIOD_KEY
from storage.settings import DataPlaces
from storage.sources.cohorts import CohortReader
from storage.sources.declared import Source
from tasks.execution.executor import Executor

refusal = refusals(__package__)

ENCODING_VERSION = 1
"""Version of the way from a cell to a code and a weight, by any method.

Raise it if the same rows and settings give a method other codes, weights or patients: every table
released again is then measured again, and charged. `tasks.methods.registry.MethodEntry.version` is
that of one method. `tests/tasks/test_golden_arrays.py` fails where arrays change without it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Reads declared tables, and knows those that were measured before by a keyed digest.

    Public data sets are found in `places`; `scratch` is a private folder.
    """

    keys: KeyStore
    places: DataPlaces
    scratch: Path

    def reader(self, source: Source, events: Iterable[Any] = ()) -> CohortReader:
        """Return a reader of a source and its events (InputError if a public one cannot be had)."""
        beside = {table.name: self.reader(table.source) for table in events}
        return CohortReader(source, places=self.places, scratch=self.scratch, beside=beside)

    def key(
        self,
        reader: CohortReader,
        executor: Executor,
        *,
        settings: Mapping[str, Any],
        method_version: int,
    ) -> tuple[str, str]:
        """Return the key of a measurement, and a tag of its table by content alone.

        The key is that of content, settings and the method's version; by entry it is that of the
        period, whose patients are read once. The content of a database is not known before it is
        read: each release has a key and a tag of its own.
        """
        secret = self.keys.ledger_secret()
        every = (reader, *reader.beside.values())
        found = [one.content_sha256(map=executor.map) or os.urandom(32).hex() for one in every]
        content = found[0]
        for other in found[1:]:
            content = hashlib.sha256(f"{content} {other}".encode()).hexdigest()
        key = request_key(
            secret,
            content_sha256="" if PERIOD_KEY in settings else content,
            settings=settings,
            method_version=method_version,
        )
        return key, _keyed(secret, b"clustmix-table-v1", content.encode("ascii"))[:32]


def check_source(
    columns: tuple[str, ...], schema: TableSchema, reader: CohortReader, events: Iterable[Any] = ()
) -> None:
    """Refuse (InputError) a source that lacks a needed column, or has one not declared or read.

    The same holds for the sources of tables of events.
    """
    header = reader.header()
    columns += tuple(name for name in schema.derived if name in header)
    clash = [name for name in schema.released_columns if name in header and name not in columns]
    if clash:
        raise refusal("HEADER_MISMATCH", names=in_short(clash))
    schema.check_header(header, columns)
    reader.check_types(columns)
    for table in events:
        own = reader.beside[table.name]
        try:
            table.check_header(own.header(), table.columns_to_read)
            own.check_types(table.columns_to_read)
        except InputError as error:
            raise InputError(error.code, f"events, {table.name}: {error.message}") from None


def request_key(
    secret: bytes, *, content_sha256: str, settings: Mapping[str, Any], method_version: int
) -> str:
    """Return the idempotency key of a measurement, 64 hexadecimal digits.

    The settings are the public ones that shape the measurement; the order of a list matters, the
    order of keys does not. The key reveals nothing of the content to those who lack the secret.
    """
    message = canonical_json(
        {
            "content": content_sha256,
            "settings": dict(settings),
            "version": [ENCODING_VERSION, method_version],
        }
    )
    return _keyed(secret, b"clustmix-request-v1", message)


def _keyed(secret: bytes, purpose: bytes, message: bytes) -> str:
    return hmac.new(secret, purpose + b"\0" + message, hashlib.sha256).hexdigest()
