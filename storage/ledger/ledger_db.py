"""The privacy ledger: the spending of a site, kept in SQLite or in PostgreSQL.

It charges releases, moves entries between states and answers questions, each in one transaction.
Nothing is written before the whole journal and its exported head have been verified.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

from pydantic import PositiveInt, SecretStr

from privacy.charges import Caps, Charge, Partition
from privacy.errors import extra, refusals
from privacy.ledger import GENESIS_HASH, Balance, EntryState, LedgerEntry, Noted, latest_entries
from privacy.spending import Spending
from storage.files import private
from storage.files.documents import Record, Sha256
from storage.ledger.books import Books, check_head, check_head_kept

if TYPE_CHECKING:
    from storage.ledger.journal import Journal

refusal = refusals(__package__)

_T = TypeVar("_T")

_MAX_BYTES = 1_000


class _Head(Record):
    sequence: PositiveInt
    hash: Sha256


class HeadFile:
    """The exported head of a journal: sequence and hash of its last row, as one line of JSON.

    A ledger that was restored from a backup has an intact hash chain but lacks what was spent
    since. The head reveals it: it never goes back, and lies in another folder, so that a restore of
    the ledger does not restore it as well. The first head creates the file and its folder, with
    modes 0600 and 0700, since the sequence counts all steps, those of burned runs included.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)

    def read(self) -> tuple[int, str] | None:
        """Return (sequence, hash) or None; IntegrityError if damaged, LedgerError if unreadable."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refusal("LEDGER_HEAD_UNAVAILABLE", what="read", reason=error.strerror) from None
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        try:
            if len(text) > _MAX_BYTES:
                raise ValueError
            head = _Head.model_validate_json(text, strict=True)
        except ValueError:
            raise refusal("LEDGER_HEAD_DAMAGED", name=self._path.name) from None
        return head.sequence, head.hash

    def write(self, sequence: int, row_hash: str) -> None:
        """Replace the head by a later one; keep the file if it holds a later one already.

        It is a LedgerError if it cannot be written, a ConfigurationError if the folder is open.
        """
        try:
            private.ensure_private_directory(self._path.parent)
            with private.file_locked(self._path.with_name(f"{self._path.name}.lock")):
                current = self.read()
                if current is None or current[0] < sequence:
                    line = json.dumps({"sequence": sequence, "hash": row_hash}) + "\n"
                    private.replace_durably(self._path, line.encode("ascii"))
        except OSError as error:
            raise refusal(
                "LEDGER_HEAD_UNAVAILABLE", what="written", reason=error.strerror
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The entry that pays, in its latest state; `created` is false if it was measured before."""

    entry: LedgerEntry
    created: bool


class LedgerDatabase:
    """The ledger of all cohorts of a site.

    Threads and forked processes may share an instance; results are on disk at return. `location` is
    the path of an SQLite file, made with mode 0600, or the ``postgresql://`` address of a database,
    which is a secret. `head_file`, in another folder, receives the head after every commit. All
    methods raise an IntegrityError for a journal that does not verify, or that lacks the exported
    head because an older copy was restored; and a LedgerError for a ledger that cannot be used, or
    whose file group or others can read. MissingExtra names packages that are not installed.
    """

    def __init__(self, location: Path | str, *, head_file: Path | None = None) -> None:
        self._head_file = None if head_file is None else HeadFile(head_file)
        self._journal: Journal
        # Imported here: a notebook that charges nothing needs no database.
        if isinstance(location, str):
            url = SecretStr(location)
            # No frame of a traceback shows the address.
            del location
            with extra("ledger"):
                from storage.ledger.postgres import PostgresJournal
            self._journal = PostgresJournal(url)
        else:
            with extra("ledger"):
                from storage.ledger.sqlite import SqliteJournal
            self._journal = SqliteJournal(location)

    def reserve(
        self, charge: Charge, *, new_draw: bool = False, unless_burned: bool = False
    ) -> Reservation:
        """Charge a release before a row is decoded.

        A request is charged once: if its key has an entry that is neither void nor burned, that
        entry is returned and nothing is spent, unless `new_draw` asks to pay for new noise. A new
        entry is RESERVED. With `unless_burned` it is Withheld where the last charge of the dataset
        burned: a cause that persists must not spend the budget.

        It is BudgetRefused, and nothing is recorded, if the amount exceeds a cap; a LedgerError by
        `Books.reserve` and `Books.paid_for`, and an IntegrityError without the exported head.
        """

        def work(books: Books) -> Reservation:
            if self._head_file is not None:
                check_head_kept(books.rows, self._exported(), owner=charge.owner)
            paid = None if new_draw else books.paid_for(charge)
            if paid is not None:
                return Reservation(entry=paid, created=False)
            if unless_burned:
                books.check_not_burned(charge)
            if not new_draw:
                books.check_period_unread(charge)
            entry = books.reserve(charge, entry_id=new_entry_id())
            return Reservation(entry=entry, created=True)

        return self._write(work)

    def transition(
        self, entry_id: str, state: EntryState, *, expected_from: EntryState, **noted: Unpack[Noted]
    ) -> LedgerEntry:
        """Move an entry to another state, if it is in the expected one (compare and swap).

        `digest` is the SHA-256 of the result, in hexadecimal: SEALED needs it and later rows keep
        it; a check that ends in VOID gives the digest of the declarations. `note` is a public code
        or a remark of one line; `signers` are key ids whose signatures the caller has verified.

        It is a LedgerError if `Books.move` forbids it, a ConfigurationError for a malformed text.
        """
        return self._write(
            lambda books: books.move(entry_id, state, expected_from=expected_from, **noted),
            begins_head=False,
        )

    def adjust(
        self, *, cohort: str, rho: Decimal, reason: str, signers: Sequence[str], entry_id: str
    ) -> LedgerEntry:
        """Enter a charge by hand, for spending that bypassed this ledger.

        It records the past, so that it may exceed a cap. It counts under every cap of the cohort
        and of its datasets. No adjustment gives back. `reason` is one public line. `signers` are
        the key ids of two people who have signed `entry_id`, from `new_entry_id`; the caller has
        verified their signatures. It is a LedgerError if they are not two, or the entry exists.
        """
        return self._write(
            lambda books: books.adjust(
                cohort=cohort, rho=rho, reason=reason, signers=signers, entry_id=entry_id
            )
        )

    def entry(self, entry_id: str) -> LedgerEntry:
        """Return the latest row of an entry; LedgerError if there is none."""
        entry = latest_entries(self.history()).get(entry_id)
        if entry is None:
            raise refusal("ENTRY_UNKNOWN", entry=entry_id)
        return entry

    def entries(self, cohort: str | None = None) -> tuple[LedgerEntry, ...]:
        """Return the latest row of each entry, in the order of reservation."""
        latest = latest_entries(self.history()).values()
        return tuple(row for row in latest if cohort is None or row.cohort == cohort)

    def history(self) -> tuple[LedgerEntry, ...]:
        """Return every row, in order: the audit trail."""
        return self._journal.read()[0]

    def balance(
        self,
        cohort: str,
        *,
        dataset: str | None = None,
        partition: Partition | None = None,
        caps: Caps | None = None,
    ) -> Balance:
        """Return the balance of a cohort now: its spending, and the rest under its caps.

        With a dataset, its cap counts too; with a partition, the balance is that of the part.
        `caps` are those of the next entry, which hold where smaller than the recorded ones.
        """
        rows, now = self._journal.read()
        return Spending(rows).balance(cohort, dataset, partition, caps=caps, now=now)

    def head(self) -> tuple[int, str]:
        """Return sequence and hash of the last row, ``(0, GENESIS_HASH)`` if there is none."""
        rows = self.history()
        return (rows[-1].sequence, rows[-1].hash) if rows else (0, GENESIS_HASH)

    def verify(self, expected_head: tuple[int, str] | None = None) -> None:
        """Check the triggers, the hash chain, every transition, amount, signature and cap.

        The journal must contain the head of the head file, and `expected_head`, one that was
        exported elsewhere, if given. The IntegrityError names the first row that is wrong.
        """
        exported = self._exported()
        rows, now = self._journal.read(checked=True)
        Books(rows, now=now)
        for head in (exported, expected_head):
            check_head(rows, head)

    def _exported(self) -> tuple[int, str] | None:
        # Read before the journal, which may grow meanwhile.
        return None if self._head_file is None else self._head_file.read()

    def export_head(self) -> None:
        """Export the head of the ledger; where the last one is lost, officers must have agreed."""
        self._write(lambda _: None)

    def _write(self, work: Callable[[Books], _T], *, begins_head: bool = True) -> _T:
        """Verify, append in one transaction, and export the head once it is committed.

        If `begins_head` is false, a lost head is not written anew, so that its loss is noticed.
        """
        exported = self._exported()
        result, last = self._journal.write(work, head=exported)
        if self._head_file is not None and last is not None and (begins_head or exported):
            self._head_file.write(last.sequence, last.hash)
        return result


def new_entry_id() -> str:
    """Make the id of an entry: 64 bits from the operating system."""
    return f"e-{os.urandom(8).hex()}"
