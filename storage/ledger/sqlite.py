"""The journal in an SQLite file: its triggers, its transactions and the modes of its file.

Triggers refuse UPDATE, DELETE and an INSERT that does not continue the chain. A commit is on disk
when it returns (write-ahead log with ``synchronous=FULL``); keep the file on a local disk.
"""

import sqlite3
from pathlib import Path

from sqlalchemy import Connection

from privacy.errors import ClustMixError, refusals
from storage.files.private import folder_locked, fsync_directory, open_private
from storage.ledger.journal import SCHEMA, Journal
from storage.ledger.journal_rows import COLUMNS

refusal = refusals(__package__)

BUSY_TIMEOUT_SECONDS = 30.0
"""Time limit for another process that writes."""

_COLUMNS = ",\n    ".join(
    f"{name} TEXT{' NOT NULL' if required else ''}"
    for name, required in COLUMNS.items()
    if name != "sequence"
)

# SQLite keeps these texts, which must never change; SQLAlchemy might write the table otherwise.
_STATEMENTS = {
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


class SqliteJournal(Journal):
    """A journal in a file of mode 0600, in an existing folder, else a LedgerError."""

    _CLOCK = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"

    def __init__(self, path: Path) -> None:
        super().__init__("sqlite", schema_translate_map={SCHEMA: None})
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise refusal("LEDGER_UNAVAILABLE folder")
        # SQLite does not wait when two processes switch a new file to the write-ahead log.
        with folder_locked(self._path.parent):
            self._create_file()
            self._open()
            fsync_directory(self._path.parent)

    def _create_file(self) -> None:
        try:
            open_private(self._path, "x").close()
        except FileExistsError:
            if self._path.stat().st_mode & 0o077:
                raise refusal("LEDGER_PERMISSIONS") from None
        except OSError as error:
            raise refusal("LEDGER_UNAVAILABLE new", reason=error.strerror) from None

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a ledger that vanished is an error, never a new and empty one.
        uri = f"{self._path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS)

    def _begin(self, connection: Connection, *, write: bool) -> None:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        connection.exec_driver_sql("PRAGMA synchronous = FULL")
        # IMMEDIATE takes the lock of writers at once, before anything is read.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    def _exists(self, connection: Connection) -> bool:
        return bool(connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar_one())

    def _create(self, connection: Connection) -> None:
        for statement in _STATEMENTS.values():
            connection.exec_driver_sql(statement)

    def _is_intact(self, connection: Connection) -> bool:
        query = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
        return dict(connection.exec_driver_sql(query).tuples().all()) == _STATEMENTS

    def _unavailable(self, error: BaseException) -> ClustMixError:
        return refusal("LEDGER_UNAVAILABLE sqlite", seconds=BUSY_TIMEOUT_SECONDS, found=error)
