"""The privacy ledger on disk: what a site has spent, in one SQLite file.

The rows, the triggers and the hash chain are those of `storage.journal`. This module charges
releases, moves entries between states and answers questions, each in one transaction.
"""

import fcntl
import os
import re
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from privacy.errors import BudgetRefused, ConfigurationError, LedgerError
from privacy.ledger import (
    GENESIS_HASH,
    Balance,
    EntryState,
    LedgerEntry,
    balance_of,
    check_transition,
    checked_rho,
    latest_entries,
)
from privacy.parameters import Adjacency, PrivacyParameters
from storage import journal

BUSY_TIMEOUT_SECONDS = 30.0
"""How long an operation waits for another process that writes."""


class LedgerDatabase:
    """The ledger of all datasets of a site.

    Every operation opens its own connection, so an instance may be used by several threads and by
    forked processes. A commit is on disk when the call returns (write-ahead log with
    ``synchronous=FULL``); keep the file on a local disk.

    Parameters
    ----------
    path : Path
        File of the ledger; it is created with mode 0600 if it does not exist. Its directory must
        exist.

    Raises
    ------
    LedgerError
        If the file can be read by group or others, or is not a ledger.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise LedgerError(
                "LEDGER_UNAVAILABLE",
                "expected the directory of the ledger to exist; create it with mode 0700",
            )
        # SQLite does not wait when two processes switch a new file to the write-ahead log.
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            self._create_file()
            with self._transaction(write=True) as connection:
                journal.create(connection)
            os.fsync(directory)
        finally:
            os.close(directory)

    def _create_file(self) -> None:
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            if self.path.stat().st_mode & 0o077:
                raise LedgerError(
                    "LEDGER_PERMISSIONS",
                    "expected the ledger to be readable by its owner alone; find out who could "
                    "write to it, verify it, then set its mode to 0600",
                ) from None

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a transaction: committed if the block ends, else undone."""
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
                yield connection
                connection.execute("COMMIT")
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

    def reserve(
        self,
        *,
        dataset: str,
        release_id: str,
        rho: Decimal,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        unit: str,
        lifetime_cap_rho: Decimal,
    ) -> LedgerEntry:
        """Charge a release before any private byte is read.

        The cap in force is the smallest one ever recorded for the dataset, this one included: a
        cap takes effect with the first entry that is granted under it, can be lowered and cannot
        be raised. The whole journal is verified first; nothing is spent on a damaged ledger.

        Parameters
        ----------
        dataset : str
            Name of the dataset whose patients pay.
        release_id : str
            Name of the release; a release is charged once.
        rho : Decimal
            Amount, see `privacy.ledger.charged_rho` and `privacy.calibration.gdp_rho`.
        epsilon, delta : float
            Guarantee of this release alone, for the record.
        adjacency : Adjacency
            Neighbours of the guarantee, for the record.
        unit : str
            Privacy unit in words, for the record.
        lifetime_cap_rho : Decimal
            Cap of the dataset over its lifetime.

        Returns
        -------
        LedgerEntry
            The new entry, in state RESERVED, on disk.

        Raises
        ------
        BudgetRefused
            If the amount does not fit under the cap; nothing is recorded.
        LedgerError
            If the release has an entry already, or the ledger cannot be used.
        IntegrityError
            If the journal does not verify.
        ConfigurationError
            If an argument is outside its range.
        """
        PrivacyParameters(epsilon=epsilon, delta=delta)
        rho, lifetime_cap_rho = checked_rho(rho), checked_rho(lifetime_cap_rho)
        for name, text in (("dataset", dataset), ("release_id", release_id), ("unit", unit)):
            _check_text(name, text)
        with self._transaction(write=True) as connection:
            rows = journal.read(connection)
            journal.verify(connection, rows)
            if any(row.release_id == release_id for row in rows):
                raise LedgerError(
                    "RELEASE_CHARGED",
                    f"expected a release without an entry, found one for {release_id!r}; start a "
                    "new release, which is a new charge",
                )
            before = balance_of(row for row in rows if row.dataset == dataset)
            cap = min(lifetime_cap_rho, before.cap_rho or lifetime_cap_rho)
            balance = Balance(spent_rho=before.spent_rho, cap_rho=cap)
            if balance.spent_rho + rho > cap:
                raise BudgetRefused(
                    "BUDGET_EXCEEDED",
                    f"expected at most rho {balance.remaining_rho:f}, what is left of the lifetime "
                    f"cap {cap:f} of dataset {dataset!r}, found a request for {rho:f}; "
                    f"{balance.releases_left(rho)} releases like this one are left",
                )
            return journal.append(
                connection,
                rows,
                {
                    "entry_id": f"e-{os.urandom(8).hex()}",
                    "state": EntryState.RESERVED.value,
                    "dataset": dataset,
                    "release_id": release_id,
                    "rho": f"{rho:f}",
                    "epsilon": repr(float(epsilon)),
                    "delta": repr(float(delta)),
                    "adjacency": Adjacency(adjacency).value,
                    "unit": unit,
                    "cap_rho": f"{cap:f}",
                    "digest": None,
                    "note": None,
                },
            )

    def transition(
        self,
        entry_id: str,
        to_state: EntryState,
        *,
        expected_from: EntryState,
        digest: str | None = None,
        note: str | None = None,
    ) -> LedgerEntry:
        """Move an entry to another state, if it is in the expected one (compare and swap).

        Of several workers that try the same transition exactly one succeeds.

        Parameters
        ----------
        entry_id : str
            Identifier from `reserve`.
        to_state, expected_from : EntryState
            The transition.
        digest : str, optional
            SHA-256 of the result in hexadecimal; needed for SEALED, kept by later rows.
        note : str, optional
            Public code or remark, one line.

        Returns
        -------
        LedgerEntry
            The new row, on disk.

        Raises
        ------
        LedgerError
            If there is no such entry, it is in another state, the rules do not have this
            transition, or SEALED comes without a digest.
        ConfigurationError
            If the digest or the note has another form.
        """
        check_transition(expected_from, to_state)
        if digest is not None and not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ConfigurationError(
                "DIGEST_INVALID", "expected a SHA-256 digest of 64 lower-case hexadecimal digits"
            )
        if to_state is EntryState.SEALED and digest is None:
            raise LedgerError("DIGEST_MISSING", "expected the digest of the result that is sealed")
        if note is not None:
            _check_text("note", note)
        with self._transaction(write=True) as connection:
            rows = journal.read(connection)
            entry = latest_entries(rows).get(entry_id)
            if entry is None:
                raise LedgerError("ENTRY_UNKNOWN", f"expected an entry, found no {entry_id!r}")
            if entry.state is not expected_from:
                raise LedgerError(
                    "STATE_CHANGED",
                    f"expected entry {entry_id} to be {expected_from.value}, found "
                    f"{entry.state.value}; another process has moved it",
                )
            return journal.append_state(connection, rows, entry, to_state, digest=digest, note=note)

    def burn_abandoned(self, live_release_ids: Collection[str]) -> tuple[LedgerEntry, ...]:
        """Close the entries of runs that died: EXECUTING becomes BURNED, RESERVED becomes VOID.

        A run that starts between the listing and this call may lose its entry; its next
        transition then fails before anything is drawn or published.

        Parameters
        ----------
        live_release_ids : collection of str
            Releases whose run is alive.

        Returns
        -------
        tuple of LedgerEntry
            The new rows.
        """
        closed = {
            EntryState.EXECUTING: EntryState.BURNED,
            EntryState.RESERVED: EntryState.VOID,
        }
        live = frozenset(live_release_ids)
        appended = []
        with self._transaction(write=True) as connection:
            rows = journal.read(connection)
            for entry in latest_entries(rows).values():
                if entry.state in closed and entry.release_id not in live:
                    row = journal.append_state(
                        connection, rows, entry, closed[entry.state], digest=None, note="ABANDONED"
                    )
                    rows = (*rows, row)
                    appended.append(row)
        return tuple(appended)

    def entries(self, dataset: str | None = None) -> tuple[LedgerEntry, ...]:
        """Return the latest row of each entry, in the order of reservation.

        Parameters
        ----------
        dataset : str, optional
            Entries of this dataset only.
        """
        latest = latest_entries(self.history()).values()
        return tuple(row for row in latest if dataset is None or row.dataset == dataset)

    def history(self) -> tuple[LedgerEntry, ...]:
        """Return every row, in order: the audit trail."""
        with self._transaction(write=False) as connection:
            return journal.read(connection)

    def balance(self, dataset: str) -> Balance:
        """Return what a dataset has spent and its cap."""
        return balance_of(row for row in self.history() if row.dataset == dataset)

    def head(self) -> tuple[int, str]:
        """Return sequence and hash of the last row, ``(0, GENESIS_HASH)`` if there is none.

        Export it to another host after each release; see `verify`.
        """
        rows = self.history()
        return (rows[-1].sequence, rows[-1].hash) if rows else (0, GENESIS_HASH)

    def verify(self, *, expected_head: tuple[int, str] | None = None) -> None:
        """Check the triggers, the hash chain, every transition, every amount and every cap.

        Parameters
        ----------
        expected_head : tuple of (int, str), optional
            A head that was exported before; the journal must contain it. Finds a journal that was
            restored from an older copy or rewritten as a whole.

        Raises
        ------
        IntegrityError
            Naming the sequence number of the first row that is wrong.
        """
        with self._transaction(write=False) as connection:
            rows = journal.read(connection)
            journal.verify(connection, rows)
        if expected_head is not None and expected_head != (0, GENESIS_HASH):
            sequence, row_hash = expected_head
            if not 1 <= sequence <= len(rows) or rows[sequence - 1].hash != row_hash:
                raise journal.damaged(
                    sequence,
                    "expected the row of the exported head; the journal was rolled back or "
                    "rewritten",
                )


def _check_text(name: str, text: str) -> None:
    if not (isinstance(text, str) and 0 < len(text) <= 200 and text.isprintable()):
        raise ConfigurationError(
            "LEDGER_TEXT_INVALID",
            f"expected {name} as one line of 1 to 200 printable characters, found {text!r}",
        )
