"""The list of arrivals in SQLite: one row for each accepted table, kept for good."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from privacy.errors import ClustMixError, refusals
from storage.files.documents import Record, listed
from storage.files.private import open_lock

refusal = refusals(__package__)
_BUSY_TIMEOUT_SECONDS = 30.0

_SCHEMA = listed(__package__, "arrivals.toml")["schema"]


class ArrivalState(StrEnum):
    """State of an arrival."""

    ACCEPTED = "accepted"
    TAKEN = "taken"
    DONE = "done"


class Outcome(StrEnum):
    """Result of the last run of an arrival."""

    SEALED = "sealed"
    REFUSED = "refused"
    WITHHELD = "withheld"
    FAILED = "failed"


class Arrival(Record):
    """An accepted table. Everything but `content` and `landed` is public.

    `failures` counts the runs that failed or died. `release_id` is the last release that took the
    arrival. `content` is the name of the table in the arrival's own folder. `landed` lists, as
    JSON, the files that are still to be removed from the landing place.
    """

    arrival_id: str
    dataset: str
    accepted_at: datetime
    state: ArrivalState
    outcome: Outcome | None
    failures: int
    release_id: str | None
    content: str
    landed: str | None


class ArrivalTransaction:
    """Statements on the list, in one transaction that writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def insert(self, **columns: str) -> None:
        """Add an arrival; its nonce must be new."""
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        statement = f"INSERT INTO arrivals ({names}) VALUES ({marks})"  # noqa: S608
        self._execute(statement, *columns.values())

    def update(self, arrival_id: str, **columns: str | int | None) -> None:
        """Change columns of an arrival."""
        changes = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE arrivals SET {changes} WHERE arrival_id = ?"  # noqa: S608
        self._execute(statement, *columns.values(), arrival_id)

    def select(self, condition: str, *values: str) -> tuple[Arrival, ...]:
        """Return the arrivals that satisfy a condition in SQL, in the order of acceptance."""
        names = ", ".join(Arrival.model_fields)
        query = f"SELECT {names} FROM arrivals WHERE {condition} ORDER BY rowid"  # noqa: S608
        rows = self._execute(query, *values)
        found = (dict(zip(Arrival.model_fields, row, strict=True)) for row in rows)
        return tuple(map(Arrival.model_validate, found))

    def find(self, arrival_id: str) -> Arrival | None:
        """Return an arrival, None if there is none."""
        return next(iter(self.select("arrival_id = ?", arrival_id)), None)

    def take(self, arrival_id: str, release_id: str) -> None:
        """Record that a run takes an arrival."""
        self.update(arrival_id, state=ArrivalState.TAKEN, release_id=release_id)
        self._execute("INSERT OR IGNORE INTO runs VALUES (?, ?)", arrival_id, release_id)

    def releases_of(self, arrival_id: str) -> tuple[str, ...]:
        """Return all releases that have taken an arrival, in order."""
        query = "SELECT release_id FROM runs WHERE arrival_id = ? ORDER BY rowid"
        return tuple(row[0] for row in self._execute(query, arrival_id))

    def _execute(self, statement: str, *values: str | int | None) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)


@contextmanager
def arrival_transaction(path: Path) -> Iterator[ArrivalTransaction]:
    """Open the list for one durable transaction (``ARRIVALS_UNAVAILABLE``, ``_DAMAGED``)."""
    error: ClustMixError
    try:
        os.close(open_lock(path))  # SQLite would make it with the mode of other files
        with closing(
            sqlite3.connect(path, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None)
        ) as connection:
            # EXTRA: a rollback journal that reappears after a loss of power would undo a commit.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            yield ArrivalTransaction(connection)
            connection.execute("COMMIT")
            return
    except (OSError, sqlite3.OperationalError):
        error = refusal("ARRIVALS_UNAVAILABLE")
    except (sqlite3.DatabaseError, ValueError):
        error = refusal("ARRIVALS_DAMAGED")
    raise error
