"""What is known of every table that arrived, in an SQLite file. Rows are never deleted.

A row is the acceptance: once it is committed the table is ours, and its nonce is seen for good.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.private import open_lock

_BUSY_TIMEOUT_SECONDS = 30.0

_SCHEMA = """CREATE TABLE IF NOT EXISTS arrivals (
    arrival_id TEXT PRIMARY KEY,
    dataset TEXT NOT NULL,
    nonce TEXT NOT NULL UNIQUE,
    content TEXT NOT NULL,
    accepted_at TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('accepted', 'taken', 'done')),
    outcome TEXT,
    failures INTEGER NOT NULL DEFAULT 0,
    not_before TEXT NOT NULL,
    release_id TEXT,
    landed TEXT
) STRICT"""

_RUNS_SCHEMA = """CREATE TABLE IF NOT EXISTS runs (
    arrival_id TEXT NOT NULL REFERENCES arrivals (arrival_id),
    release_id TEXT NOT NULL,
    PRIMARY KEY (arrival_id, release_id)
) STRICT"""

_COLUMNS = "arrival_id, dataset, content, accepted_at, state, outcome, failures, release_id, landed"


class ArrivalState(StrEnum):
    """How far an arrival is."""

    ACCEPTED = "accepted"
    TAKEN = "taken"
    DONE = "done"


class Outcome(StrEnum):
    """How the run of an arrival ended."""

    SEALED = "sealed"
    REUSED = "reused"
    REFUSED = "refused"
    WITHHELD = "withheld"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A table that was accepted. Everything but `content` and `landed` is public.

    `failures` counts the runs that failed or died, `release_id` is the release that took it last,
    `content` the name of the file or folder inside of the arrival's own folder, and `landed`, as
    JSON, what is still to be removed from the landing place.
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
    """Everything that can be done in one transaction that writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def insert(
        self, *, arrival_id: str, dataset: str, nonce: str, content: str, landed: str, now: datetime
    ) -> None:
        """Add an accepted arrival; its nonce must be new."""
        moment = now.isoformat()
        self._connection.execute(
            "INSERT INTO arrivals (arrival_id, dataset, nonce, content, accepted_at, state, "
            "not_before, landed) VALUES (?, ?, ?, ?, ?, 'accepted', ?, ?)",
            (arrival_id, dataset, nonce, content, moment, moment, landed),
        )

    def knows(self, nonce: str) -> bool:
        """Return whether an arrival with this nonce was ever accepted."""
        query = "SELECT 1 FROM arrivals WHERE nonce = ?"
        return self._connection.execute(query, (nonce,)).fetchone() is not None

    def find(self, arrival_id: str) -> Arrival | None:
        """Return an arrival, None if there is none."""
        found = self._select("arrival_id = ?", arrival_id)
        return found[0] if found else None

    def in_state(self, state: ArrivalState) -> tuple[Arrival, ...]:
        """Return the arrivals of a state, the first accepted first."""
        return self._select("state = ?", state)

    def due(self, now: datetime) -> tuple[Arrival, ...]:
        """Return the accepted arrivals that may be tried, the first accepted first."""
        return self._select("state = 'accepted' AND not_before <= ?", now.isoformat())

    def uncleared(self) -> tuple[Arrival, ...]:
        """Return the arrivals of which something is left in the landing place."""
        return self._select("landed IS NOT NULL")

    def take(self, arrival_id: str, release_id: str | None) -> None:
        """Note that a run has taken an arrival."""
        self._connection.execute(
            "UPDATE arrivals SET state = 'taken', release_id = ? WHERE arrival_id = ?",
            (release_id, arrival_id),
        )
        if release_id is not None:
            self._connection.execute(
                "INSERT OR IGNORE INTO runs (arrival_id, release_id) VALUES (?, ?)",
                (arrival_id, release_id),
            )

    def releases_of(self, arrival_id: str) -> tuple[str, ...]:
        """Return the releases that have ever taken an arrival, the first one first."""
        query = "SELECT release_id FROM runs WHERE arrival_id = ? ORDER BY rowid"
        return tuple(row[0] for row in self._connection.execute(query, (arrival_id,)))

    def close(self, arrival_id: str, outcome: Outcome, *, failures: int) -> None:
        """Note the end of an arrival."""
        self._connection.execute(
            "UPDATE arrivals SET state = 'done', outcome = ?, failures = ? WHERE arrival_id = ?",
            (outcome, failures, arrival_id),
        )

    def return_to_line(self, arrival_id: str, *, failures: int, not_before: datetime) -> None:
        """Note that a run failed, and when the arrival is to be tried again."""
        self._connection.execute(
            "UPDATE arrivals SET state = 'accepted', outcome = 'failed', failures = ?, "
            "not_before = ? WHERE arrival_id = ?",
            (failures, not_before.isoformat(), arrival_id),
        )

    def clear(self, arrival_id: str) -> None:
        """Note that nothing of an arrival is left in the landing place."""
        self._connection.execute(
            "UPDATE arrivals SET landed = NULL WHERE arrival_id = ?", (arrival_id,)
        )

    def _select(self, condition: str, *values: Any) -> tuple[Arrival, ...]:
        # The condition is one of the texts above.
        query = f"SELECT {_COLUMNS} FROM arrivals WHERE {condition} ORDER BY rowid"  # noqa: S608
        return tuple(map(_arrival_of, self._connection.execute(query, values)))


@contextmanager
def arrival_transaction(path: Path) -> Iterator[ArrivalTransaction]:
    """Open the file for one transaction, which is on the disk when the block ends.

    The file is made with mode 0600 if it is absent, in an existing private folder. It is a
    ConfigurationError (``ARRIVALS_UNAVAILABLE``) if it cannot be written, and an IntegrityError
    (``ARRIVALS_DAMAGED``) if it holds something else.
    """
    problem: Exception | None = None
    try:
        os.close(open_lock(path))  # SQLite would make it with the mode of other files
        with closing(
            sqlite3.connect(path, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None)
        ) as connection:
            # EXTRA: after a loss of power a commit must not be undone by a journal that is back.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            connection.execute(_RUNS_SCHEMA)
            yield ArrivalTransaction(connection)
            connection.execute("COMMIT")
    except (OSError, sqlite3.OperationalError) as error:
        problem = error
    except (sqlite3.DatabaseError, ValueError) as error:
        problem = error
    if isinstance(problem, (OSError, sqlite3.OperationalError)):
        raise ConfigurationError(
            "ARRIVALS_UNAVAILABLE",
            "expected to write the list of arrivals (arrivals.sqlite below CLUSTMIX_HOME), found "
            "it busy, or its disk full or read-only; make room and mend its permissions",
        )
    if problem is not None:
        raise IntegrityError(
            "ARRIVALS_DAMAGED",
            "the list of arrivals (arrivals.sqlite below CLUSTMIX_HOME) is damaged; restore it "
            "from a backup, or move the folder away and announce what is in it anew",
        )


def _arrival_of(row: tuple[Any, ...]) -> Arrival:
    columns = dict(zip(_COLUMNS.split(", "), row, strict=True))
    columns["accepted_at"] = datetime.fromisoformat(columns["accepted_at"])
    columns["state"] = ArrivalState(columns["state"])
    columns["outcome"] = None if columns["outcome"] is None else Outcome(columns["outcome"])
    return Arrival(**columns)
