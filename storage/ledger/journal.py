"""The journal of the ledger in an SQLite file.

Triggers refuse UPDATE, DELETE and an INSERT that does not continue the chain; what was done around
them is found by `storage.ledger.journal_rows.verify_rows`. A commit is on disk when the call
returns (write-ahead log with ``synchronous=FULL``); keep the file on a local disk.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privacy.errors import LedgerError
from storage.files.private import folder_locked, fsync_directory, open_private
from storage.ledger.journal_rows import COLUMNS, JournalTransaction, T, schema_damaged

BUSY_TIMEOUT_SECONDS = 30.0
"""How long an operation waits for another process that writes."""

_COLUMNS = ",\n    ".join(
    f"{name} TEXT{' NOT NULL' if required else ''}"
    for name, required in COLUMNS.items()
    if name != "sequence"
)

_SCHEMA = {
    "journal": f"""CREATE TABLE journal (
    sequence INTEGER PRIMARY KEY,
    {_COLUMNS}
) STRICT""",
    "journal_no_update": """CREATE TRIGGER journal_no_update BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only: UPDATE refused'); END""",
    "journal_no_delete": """CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only: DELETE refused'); END""",
    # Also stops INSERT OR REPLACE, which removes a row without firing the DELETE trigger. The
    # printf is `privacy.ledger.GENESIS_HASH`.
    "journal_continues": """CREATE TRIGGER journal_continues BEFORE INSERT ON journal
WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM journal)
OR NEW.previous_hash IS NOT coalesce(
    (SELECT hash FROM journal ORDER BY sequence DESC LIMIT 1), printf('%064d', 0))
BEGIN SELECT RAISE(ABORT, 'the journal is append-only: INSERT must continue it'); END""",
}

_INSERT = f"INSERT INTO journal VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608


class SqliteJournal:
    """A journal in an SQLite file.

    Every transaction opens its own connection, so an instance may be used by several threads and
    by forked processes. The file is made with mode 0600 in an existing folder. It is a LedgerError
    if it can be read by group or others or cannot be used, an IntegrityError if it is no journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise LedgerError(
                "LEDGER_UNAVAILABLE",
                "expected the directory of the ledger to exist; create it with mode 0700",
            )
        # SQLite does not wait when two processes switch a new file to the write-ahead log.
        with folder_locked(self.path.parent):
            self._create_file()
            self._transact(_create, write=True)
            fsync_directory(self.path.parent)

    def transact(self, work: Callable[[JournalTransaction], T], *, write: bool) -> T:
        """Return the result of `work`, done in one transaction and on disk.

        Transactions that write come one after the other, each after the commit of the one before.
        If `work` raises, nothing is done.
        """
        return self._transact(lambda connection: work(_Transaction(connection)), write=write)

    def _transact(self, work: Callable[[sqlite3.Connection], T], *, write: bool) -> T:
        try:
            # mode=rw: a ledger that vanished is an error, never a new and empty one.
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_TIMEOUT_SECONDS,
                isolation_level=None,
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                result = work(connection)
                connection.execute("COMMIT")
                return result
            finally:
                # Closing undoes a transaction that was not committed.
                connection.close()
        except sqlite3.Error as error:
            raise LedgerError(
                "LEDGER_UNAVAILABLE",
                "expected a ledger that can be read and written within "
                f"{BUSY_TIMEOUT_SECONDS:.0f} seconds, found: {error}; check the file, the free "
                "space and the processes that use it",
            ) from error

    def _create_file(self) -> None:
        try:
            open_private(self.path, "x").close()
        except FileExistsError:
            if self.path.stat().st_mode & 0o077:
                raise LedgerError(
                    "LEDGER_PERMISSIONS",
                    "expected the ledger to be readable by its owner alone; find out who could "
                    "write to it, verify it, then set its mode to 0600",
                ) from None
        except OSError as error:
            raise LedgerError(
                "LEDGER_UNAVAILABLE",
                f"expected a ledger that can be created, found: {error.strerror}; check its folder "
                "and the free space",
            ) from None


class _Transaction:
    """The journal inside one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def check_schema(self) -> None:
        query = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
        if dict(self._connection.execute(query)) != _SCHEMA:
            raise schema_damaged()

    def rows(self) -> list[tuple[Any, ...]]:
        return self._connection.execute("SELECT * FROM journal ORDER BY sequence").fetchall()

    def clock(self) -> str:
        return read_clock(self._connection)

    def insert(self, row: tuple[Any, ...]) -> None:
        self._connection.execute(_INSERT, row)


def read_clock(connection: sqlite3.Connection) -> str:
    """Return the time by the clock of the database, UTC, as the journal writes it."""
    now = connection.execute("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')").fetchone()[0]
    return str(now)


def _create(connection: sqlite3.Connection) -> None:
    """Create the journal in an empty database, or check that the database is one."""
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        for statement in _SCHEMA.values():
            connection.execute(statement)
    _Transaction(connection).check_schema()
