"""The privacy ledger: what a site has spent, kept in SQLite or in PostgreSQL.

The rows, the triggers and the hash chain are those of the journal (`storage.ledger.journal_rows`).
This module charges releases, moves entries between states and answers questions, each in one
transaction. Nothing is written before the whole journal and its exported head have been verified.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from privacy.charges import Caps, Charge, Partition, check_text, checked_rho
from privacy.errors import LedgerError, extra
from privacy.ledger import (
    GENESIS_HASH,
    Balance,
    EntryState,
    LedgerEntry,
    check_signers,
    check_transition,
    entry_paid_for,
    latest_entries,
)
from privacy.spending import Spending
from storage.ledger import journal_rows
from storage.ledger.head import HeadFile, check_head
from storage.ledger.journal import SqliteJournal
from storage.ledger.journal_rows import JournalTransaction, JournalWriter, read_rows, time_of

if TYPE_CHECKING:
    from storage.ledger.journal_postgres import PostgresJournal

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The entry that pays, by its latest row; not `created` now: measured before, at no cost."""

    entry: LedgerEntry
    created: bool


class LedgerDatabase:
    """The ledger of all cohorts of a site.

    Every operation opens its own connection, so an instance may be used by several threads and by
    forked processes. What an operation returns is on disk.

    The ledger is an SQLite file, made with mode 0600, or a database at a ``postgresql://`` address,
    which is a secret. A file in another folder may get the head after every commit, also one that
    an earlier version kept elsewhere: a journal without it was restored from an older copy and, as
    one that does not verify, is an IntegrityError of every method. A ledger that cannot be used, or
    whose file can be read by group or others, is a LedgerError.
    """

    def __init__(
        self,
        location: Path | str,
        *,
        head_file: Path | None = None,
        former_head_file: Path | None = None,
    ) -> None:
        self._head_file = (
            None if head_file is None else HeadFile(head_file, former=former_head_file)
        )
        self._journal: SqliteJournal | PostgresJournal
        if isinstance(location, str):
            with extra("server"):
                from storage.ledger import journal_postgres

            url = journal_postgres.SecretUrl(location)
            # No frame of a traceback shows the address.
            del location
            self._journal = journal_postgres.PostgresJournal(url)
        else:
            self._journal = SqliteJournal(location)

    def reserve(self, charge: Charge, *, new_draw: bool = False) -> Reservation:
        """Charge a release before a row is read.

        The same request is charged once: an entry with its key that is neither void nor burned is
        returned and nothing is spent, unless a `new_draw` pays for new noise. What is created now
        is RESERVED.

        It is BudgetRefused, and nothing is recorded, if the amount does not fit under a cap. It is
        a LedgerError if the release has an entry, the request drops an approval that earlier ones
        of the cohort needed or has other neighbours, or its key belongs to another charge.
        """

        def work(journal: JournalWriter) -> Reservation:
            journal.spending.check_policy(charge)
            if not new_draw:
                earlier = entry_paid_for(charge, journal.rows)
                if earlier is not None:
                    return Reservation(entry=earlier, created=False)
            if any(row.release_id == charge.release_id for row in journal.rows):
                raise LedgerError(
                    "RELEASE_CHARGED",
                    f"expected a release without an entry, found one for {charge.release_id!r}; "
                    "start a new release, which is a new charge",
                )
            journal.spending.check_caps(charge, now=journal.now)
            entry = journal.append(journal_rows.reservation(charge, new_entry_id()))
            return Reservation(entry=entry, created=True)

        return self._write(work)

    def transition(
        self,
        entry_id: str,
        to_state: EntryState,
        *,
        expected_from: EntryState,
        digest: str | None = None,
        note: str | None = None,
        signers: Sequence[str] = (),
    ) -> LedgerEntry:
        """Move an entry to another state, if it is in the expected one (compare and swap).

        The digest is the SHA-256 of the result, in hexadecimal: needed for SEALED, kept by later
        rows; of a check, VOID, that of the declarations. The note is a public code or remark of one
        line, the signers are key ids of people whose signatures the caller has verified.

        It is a LedgerError if there is no such entry, it is in another state, the rules do not have
        this transition, SEALED comes without a digest, or an approval without the person it needs;
        and a ConfigurationError if a text has another form.
        """
        check_transition(expected_from, to_state)
        journal_rows.check_seal(to_state, digest)
        if note is not None:
            check_text("note", note)

        def work(journal: JournalWriter) -> LedgerEntry:
            entry = _known(journal.rows, entry_id)
            if entry.state is not expected_from:
                raise LedgerError(
                    "STATE_CHANGED",
                    f"expected entry {entry_id} to be {expected_from.value}, found "
                    f"{entry.state.value}; another process has moved it",
                )
            check_signers(entry, to_state, signers)
            return journal.append(
                journal_rows.following(entry, to_state, digest=digest, note=note, signers=signers)
            )

        return self._write(work)

    def adjust(
        self, *, cohort: str, rho: Decimal, reason: str, signers: Sequence[str], entry_id: str
    ) -> LedgerEntry:
        """Enter a charge by hand, for what was spent without this ledger.

        It records what has happened and may pass a cap. It counts under every cap of the cohort
        and of its datasets. There is no adjustment that gives back.

        The reason is one public line. The signers are the key ids of two people who have signed the
        id of the entry, from `new_entry_id`; the caller has verified their signatures. It is a
        LedgerError if they are not two, or the entry exists.
        """
        rho = checked_rho(rho)
        for name, text in (("cohort", cohort), ("reason", reason)):
            check_text(name, text)
        check_signers(None, EntryState.ADJUSTED, signers)
        columns = journal_rows.adjustment(
            cohort=cohort, rho=rho, reason=reason, signers=signers, entry_id=entry_id
        )

        def work(journal: JournalWriter) -> LedgerEntry:
            if entry_id in latest_entries(journal.rows):
                raise LedgerError(
                    "ENTRY_EXISTS",
                    f"expected a new entry, found {entry_id}; an adjustment that was signed once "
                    "is entered once",
                )
            return journal.append(columns)

        return self._write(work)

    def entry(self, entry_id: str) -> LedgerEntry:
        """Return the latest row of an entry; LedgerError if there is none."""
        return _known(self.history(), entry_id)

    def entries(self, cohort: str | None = None) -> tuple[LedgerEntry, ...]:
        """Return the latest row of each entry, in the order of reservation."""
        latest = latest_entries(self.history()).values()
        return tuple(row for row in latest if cohort is None or row.cohort == cohort)

    def history(self) -> tuple[LedgerEntry, ...]:
        """Return every row, in order: the audit trail."""
        return self._journal.transact(read_rows, write=False)

    def balance(
        self,
        cohort: str,
        *,
        dataset: str | None = None,
        partition: Partition | None = None,
        caps: Caps | None = None,
    ) -> Balance:
        """Return what a cohort has spent and what its caps leave now.

        With a dataset its cap counts besides those of the cohort; with a partition it is the
        balance of that part. `caps` would hold with the next entry, where they are smaller than
        recorded ones.
        """

        def work(transaction: JournalTransaction) -> Balance:
            rows = read_rows(transaction)
            return Spending(rows).balance(
                cohort,
                dataset=dataset,
                partition=partition,
                caps=caps,
                now=time_of(transaction, rows),
            )

        return self._journal.transact(work, write=False)

    def head(self) -> tuple[int, str]:
        """Return sequence and hash of the last row, to be exported, or ``(0, GENESIS_HASH)``."""
        rows = self.history()
        return (rows[-1].sequence, rows[-1].hash) if rows else (0, GENESIS_HASH)

    def verify(self, expected_head: tuple[int, str] | None = None) -> None:
        """Check the triggers, the hash chain, every transition, amount, signature and cap.

        `expected_head` was exported before, besides that of the head file; the journal must contain
        it. Finds a journal that was restored from an older copy or rewritten as a whole. The
        IntegrityError names the sequence number of the first row that is wrong.
        """
        # Before the journal, which may have grown since.
        exported, former = self._exported()

        def work(transaction: JournalTransaction) -> tuple[LedgerEntry, ...]:
            transaction.check_schema()
            return read_rows(transaction)

        rows = self._journal.transact(work, write=False)
        journal_rows.verify_rows(rows)
        for head in (exported, former, expected_head):
            check_head(rows, head)
        if self._head_file is not None and former is not None:
            self._head_file.write(rows[-1].sequence, rows[-1].hash)

    def _exported(self) -> tuple[tuple[int, str] | None, tuple[int, str] | None]:
        return (None, None) if self._head_file is None else self._head_file.exported()

    def _write(self, work: Callable[[JournalWriter], _T]) -> _T:
        """Verify, append in one transaction, and export the head once it is committed."""
        heads = self._exported()

        def verified(transaction: JournalTransaction) -> tuple[_T, LedgerEntry | None]:
            writer = JournalWriter(transaction, heads)
            result = work(writer)
            return result, writer.rows[-1] if writer.rows else None

        result, last = self._journal.transact(verified, write=True)
        if self._head_file is not None and last is not None:
            self._head_file.write(last.sequence, last.hash)
        return result


def _known(rows: Sequence[LedgerEntry], entry_id: str) -> LedgerEntry:
    entry = latest_entries(rows).get(entry_id)
    if entry is None:
        raise LedgerError("ENTRY_UNKNOWN", f"expected an entry, found no {entry_id!r}")
    return entry


def new_entry_id() -> str:
    """Make the id of an entry: 64 bits from the operating system."""
    return f"e-{os.urandom(8).hex()}"
