"""The journal of the ledger: append-only rows, chained by hashes, in an SQLite table.

Every state of every entry is a row of its own and no row is ever changed. Triggers refuse UPDATE,
DELETE and an INSERT that does not continue the chain; `verify` finds what was done around them. A
journal that was cut at its end or rewritten as a whole has a good chain: it is found only by
comparison with a head that was exported before.
"""

import sqlite3
from collections import defaultdict
from decimal import Decimal, InvalidOperation
from typing import Any

from privacy.errors import ConfigurationError, IntegrityError
from privacy.ledger import (
    GENESIS_HASH,
    TRANSITIONS,
    EntryState,
    LedgerEntry,
    chain_hash,
    checked_rho,
)
from privacy.parameters import Adjacency

_FIELDS = (
    "sequence",
    "entry_id",
    "state",
    "dataset",
    "release_id",
    "rho",
    "epsilon",
    "delta",
    "adjacency",
    "unit",
    "cap_rho",
    "digest",
    "note",
    "recorded_at",
)
"""Columns in the order of the table, without the two hashes that end it."""

_REPEATED = ("dataset", "release_id", "rho", "epsilon", "delta", "adjacency", "unit", "cap_rho")
"""Fields of the reservation that every later row of the entry repeats."""

# Numbers are text: a binary fraction would not be the amount that was charged.
_SCHEMA = {
    "journal": """CREATE TABLE journal (
    sequence INTEGER PRIMARY KEY,
    entry_id TEXT NOT NULL,
    state TEXT NOT NULL,
    dataset TEXT NOT NULL,
    release_id TEXT NOT NULL,
    rho TEXT NOT NULL,
    epsilon TEXT NOT NULL,
    delta TEXT NOT NULL,
    adjacency TEXT NOT NULL,
    unit TEXT NOT NULL,
    cap_rho TEXT NOT NULL,
    digest TEXT,
    note TEXT,
    recorded_at TEXT NOT NULL,
    previous_hash TEXT NOT NULL,
    hash TEXT NOT NULL
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

_INSERT = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def create(connection: sqlite3.Connection) -> None:
    """Create the journal in an empty database, or check that the database is one.

    Parameters
    ----------
    connection : sqlite3.Connection
        Inside a write transaction.

    Raises
    ------
    IntegrityError
        If the database holds anything else.
    """
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        for statement in _SCHEMA.values():
            connection.execute(statement)
    _check_schema(connection)


def read(connection: sqlite3.Connection) -> tuple[LedgerEntry, ...]:
    """Return every row in order.

    Raises
    ------
    IntegrityError
        If a row cannot be read.
    """
    rows = connection.execute("SELECT * FROM journal ORDER BY sequence").fetchall()
    return tuple(_entry_from_row(row) for row in rows)


def append(
    connection: sqlite3.Connection, rows: tuple[LedgerEntry, ...], fields: dict[str, Any]
) -> LedgerEntry:
    """Append one row; time by the clock of the database.

    Parameters
    ----------
    connection : sqlite3.Connection
        Inside a write transaction.
    rows : tuple of LedgerEntry
        The whole journal, read in the same transaction.
    fields : dict
        The columns as they are stored, except sequence, time and hashes.

    Returns
    -------
    LedgerEntry
        The new row.
    """
    previous_hash = rows[-1].hash if rows else GENESIS_HASH
    now = connection.execute("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')").fetchone()[0]
    fields = {**fields, "sequence": len(rows) + 1, "recorded_at": now}
    row = (*(fields[name] for name in _FIELDS), previous_hash, chain_hash(previous_hash, fields))
    connection.execute(_INSERT, row)
    return _entry_from_row(row)


def append_state(
    connection: sqlite3.Connection,
    rows: tuple[LedgerEntry, ...],
    entry: LedgerEntry,
    to_state: EntryState,
    *,
    digest: str | None,
    note: str | None,
) -> LedgerEntry:
    """Append a row that moves `entry` to another state; the amounts are repeated.

    Parameters
    ----------
    connection, rows
        As in `append`.
    entry : LedgerEntry
        The latest row of the entry.
    to_state : EntryState
        The next state; the caller has checked the transition.
    digest : str or None
        New digest of the result; None keeps the one of `entry`.
    note : str or None
        Remark of this transition.
    """
    changed = {"state": to_state.value, "digest": digest or entry.digest, "note": note}
    return append(connection, rows, _row_fields(entry) | changed)


def verify(connection: sqlite3.Connection, rows: tuple[LedgerEntry, ...]) -> None:
    """Check the triggers, the hash chain, every transition, every amount and every cap.

    Parameters
    ----------
    connection : sqlite3.Connection
        Inside a transaction.
    rows : tuple of LedgerEntry
        The whole journal, read in the same transaction.

    Raises
    ------
    IntegrityError
        Naming the sequence number of the first row that is wrong.
    """
    _check_schema(connection)
    latest: dict[str, LedgerEntry] = {}
    releases: set[str] = set()
    spent: defaultdict[str, Decimal] = defaultdict(Decimal)
    cap: dict[str, Decimal] = {}
    previous_hash = GENESIS_HASH
    for position, row in enumerate(rows, start=1):
        if row.sequence != position:
            raise damaged(position, "expected a row, found none")
        expected_hash = chain_hash(previous_hash, _row_fields(row))
        if row.previous_hash != previous_hash or row.hash != expected_hash:
            raise damaged(position, "expected the hash that continues the chain")
        previous_hash = row.hash
        before = latest.get(row.entry_id)
        latest[row.entry_id] = row
        if before is None:
            if row.state is not EntryState.RESERVED:
                raise damaged(position, "expected an entry to begin as reserved")
            if row.release_id in releases:
                raise damaged(position, "expected one entry per release")
            releases.add(row.release_id)
            spent[row.dataset] += row.rho
            cap[row.dataset] = min(cap.get(row.dataset, row.cap_rho), row.cap_rho)
            if spent[row.dataset] > cap[row.dataset]:
                raise damaged(position, "expected the balance to stay under the cap")
            continue
        if row.state not in TRANSITIONS[before.state]:
            raise damaged(position, f"expected a state that may follow {before.state.value}")
        if any(getattr(row, name) != getattr(before, name) for name in _REPEATED):
            raise damaged(position, "expected the amounts of the reservation")
        if row.state is EntryState.VOID:
            spent[row.dataset] -= row.rho


def damaged(sequence: int, what: str) -> IntegrityError:
    """Return the error for a journal that is not as it was written."""
    return IntegrityError(
        "LEDGER_DAMAGED",
        f"sequence {sequence}: {what}; publish nothing and restore the ledger with its operator",
    )


def _check_schema(connection: sqlite3.Connection) -> None:
    found = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
    if found != _SCHEMA:
        raise damaged(0, "expected the journal table with its three triggers and nothing else")


def _entry_from_row(row: tuple[Any, ...]) -> LedgerEntry:
    try:
        values: dict[str, Any] = dict(zip((*_FIELDS, "previous_hash", "hash"), row, strict=True))
        values["state"] = EntryState(values["state"])
        values["adjacency"] = Adjacency(values["adjacency"])
        for name in ("rho", "cap_rho"):
            values[name] = checked_rho(Decimal(values[name]))
        for name in ("epsilon", "delta"):
            values[name] = float(values[name])
    except (ValueError, InvalidOperation, ConfigurationError):
        raise damaged(row[0], "expected amounts and a state that can be read") from None
    return LedgerEntry(**values)


def _row_fields(entry: LedgerEntry) -> dict[str, Any]:
    """Return the columns of a row as they are stored and hashed, without the two hashes."""
    fields = {name: getattr(entry, name) for name in _FIELDS}
    fields |= {"state": entry.state.value, "adjacency": entry.adjacency.value}
    fields |= {"rho": f"{entry.rho:f}", "cap_rho": f"{entry.cap_rho:f}"}
    return fields | {"epsilon": repr(entry.epsilon), "delta": repr(entry.delta)}
