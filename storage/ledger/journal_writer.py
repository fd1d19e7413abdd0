"""Reading and continuing a journal inside one transaction, once the whole of it was verified."""

from collections.abc import Sequence
from typing import Any

from privacy.ledger import LedgerEntry
from storage.ledger import journal_rows
from storage.ledger.head import check_head
from storage.ledger.journal_rows import JournalTransaction


class JournalWriter:
    """Appends rows to a journal that was read and verified in the same transaction.

    The transaction writes, and the journal must contain the exported heads (IntegrityError if it
    does not, or does not verify). `rows` are the whole journal, `spending` is what is spent, and
    `now` is the time of the rows that are appended.
    """

    def __init__(
        self, transaction: JournalTransaction, heads: Sequence[tuple[int, str] | None]
    ) -> None:
        self._transaction = transaction
        transaction.check_schema()
        self.rows = list(read_rows(transaction))
        self.spending = journal_rows.verify_rows(self.rows)
        for head in heads:
            check_head(self.rows, head)
        self.now = time_of(transaction, self.rows)

    def append(self, columns: dict[str, Any]) -> LedgerEntry:
        """Append a row with these columns and return it."""
        last = self.rows[-1] if self.rows else None
        row = journal_rows.next_row(last, columns, recorded_at=self.now)
        self._transaction.insert(row)
        self.rows.append(journal_rows.entry_of(row))
        return self.rows[-1]


def read_rows(transaction: JournalTransaction) -> tuple[LedgerEntry, ...]:
    """Return all rows of a journal, in order (IntegrityError if one cannot be read)."""
    return tuple(map(journal_rows.entry_of, transaction.rows()))


def time_of(transaction: JournalTransaction, rows: Sequence[LedgerEntry]) -> str:
    """Return the time, never before the last row: a clock that is set back shortens no window."""
    now = transaction.clock()
    return max(now, rows[-1].recorded_at) if rows else now
