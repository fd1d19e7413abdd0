"""A ledger in each database, with what a test does behind its back."""

import sqlite3
from contextlib import closing
from pathlib import Path

import postgres_server
import psycopg

from privacy.ledger import GENESIS_HASH, chain_hash
from storage.ledger import journal
from storage.ledger.ledger_db import LedgerDatabase

BOTH = ("sqlite", "postgres")


class Backend:
    location: Path | str
    table: str
    refused: type[Exception]

    def open(self, *, head_file=None):
        return LedgerDatabase(self.location, head_file=head_file)

    def execute(self, statement):
        raise NotImplementedError

    def tamper(self, *statements):
        """Run SQL with the triggers off, which are put back afterwards."""
        raise NotImplementedError

    def rows(self):
        return self.execute(f"SELECT * FROM {self.table} ORDER BY sequence")  # noqa: S608

    def replace(self, rows):
        """Put other rows in the place of all rows: an old copy is restored."""
        inserts = []
        for row in rows:
            values = ("NULL" if v is None else "'" + str(v) + "'" for v in row.values())
            inserts.append(f"INSERT INTO {self.table} VALUES ({', '.join(values)})")  # noqa: S608
        self.tamper(f"DELETE FROM {self.table}", *inserts)  # noqa: S608

    def rewrite(self, change):
        """Change rows and compute every hash anew, as somebody who knows the format would."""
        rows = self.rows()
        change(rows)
        previous_hash = GENESIS_HASH
        for row in rows:
            hashed = {k: v for k, v in row.items() if k not in ("previous_hash", "hash")}
            row |= {"previous_hash": previous_hash, "hash": chain_hash(previous_hash, hashed)}
            previous_hash = row["hash"]
        self.replace(rows)

    def set_clock(self, monkeypatch, now):
        monkeypatch.setattr(journal, "read_clock", lambda *_: now)


class SqliteBackend(Backend):
    table = "journal"
    refused = sqlite3.IntegrityError

    def __init__(self, folder):
        self.location = folder / "ledger.sqlite"

    def execute(self, statement):
        with closing(sqlite3.connect(self.location)) as connection, connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement)]

    def tamper(self, *statements):
        triggers = self.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        with closing(sqlite3.connect(self.location)) as connection, connection:
            for trigger in triggers:
                connection.execute(f"DROP TRIGGER {trigger['name']}")
            for statement in (*statements, *(trigger["sql"] for trigger in triggers)):
                connection.execute(statement)


class PostgresBackend(Backend):
    table = "clustmix_ledger.journal"
    refused = psycopg.errors.RestrictViolation

    def __init__(self):
        self.location = postgres_server.database_url()

    def execute(self, statement):
        with psycopg.connect(self.location, row_factory=psycopg.rows.dict_row) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def tamper(self, *statements):
        with psycopg.connect(self.location) as connection:
            connection.execute(f"ALTER TABLE {self.table} DISABLE TRIGGER USER")
            for statement in statements:
                connection.execute(statement)
            for trigger in ("journal_append_only", "journal_continues"):
                connection.execute(f"ALTER TABLE {self.table} ENABLE ALWAYS TRIGGER {trigger}")


def backend(name, folder):
    """Return a backend by name; skip the test where its database is absent."""
    return SqliteBackend(folder) if name == "sqlite" else PostgresBackend()
