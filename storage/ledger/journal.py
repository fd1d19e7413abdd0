"""The journal of the ledger: one append-only table, in SQLite or in PostgreSQL.

The table, its statements and the order of steps are the same in both. `storage.ledger.sqlite` and
`storage.ledger.postgres` add what differs: how a transaction begins, the triggers, and the clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from privacy.errors import ClustMixError
from privacy.ledger import LedgerEntry
from storage.ledger.books import Books, check_head
from storage.ledger.journal_rows import COLUMNS, columns_of, damaged, entry_of

_T = TypeVar("_T")

SCHEMA = "clustmix_ledger"

JOURNAL = Table(
    "journal",
    MetaData(),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    *(
        Column(name, Text, nullable=not required)
        for name, required in COLUMNS.items()
        if name != "sequence"
    ),
    schema=SCHEMA,
)
"""The table; in SQLite, which has no schemas, its name is ``journal`` alone."""


_Snapshot = tuple[tuple[LedgerEntry, ...], str]
"""All rows of a journal, in order, and the time at which they were read."""


class Journal(ABC):
    """The journal in a database, created at the first use.

    Each transaction opens its own connection, so that threads and forked processes may share an
    instance. It is a LedgerError if the database cannot be used, and an IntegrityError if its table
    and triggers are not as they were created.
    """

    _CLOCK: str

    def __init__(self, dialect: str, **options: Any) -> None:
        self._engine = create_engine(
            f"{dialect}://",
            creator=self._connect,
            poolclass=NullPool,
            # Transactions begin and end with the statements below; the driver adds none.
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            execution_options={"no_parameters": True, **options},
        )

    def read(self, *, checked: bool = False) -> _Snapshot:
        """Return the decoded rows (else IntegrityError); if `checked`, check table and triggers."""

        def work(connection: Connection) -> _Snapshot:
            if checked:
                self._check_intact(connection)
            return self._snapshot(connection)

        return self._transact(work, write=False)

    def write(
        self, work: Callable[[Books], _T], *, head: tuple[int, str] | None
    ) -> tuple[_T, LedgerEntry | None]:
        """Return the result of `work`, which appends to the verified journal, and the last row.

        The journal must contain the exported head (IntegrityError). Transactions that write take
        turns. At return the commit is on disk; if `work` raises, nothing is recorded.
        """

        def verified(connection: Connection) -> tuple[_T, LedgerEntry | None]:
            self._check_intact(connection)
            rows, now = self._snapshot(connection)
            books = Books(rows, now=now)
            check_head(rows, head)
            result = work(books)
            for entry in books.rows[len(rows) :]:
                connection.execute(JOURNAL.insert(), columns_of(entry))
            return result, books.rows[-1] if books.rows else None

        return self._transact(verified, write=True)

    def _open(self) -> None:
        if not self._transact(self._exists, write=False):
            # Another process may create it meanwhile.
            self._transact(lambda one: self._exists(one) or self._create(one), write=True)
        self._transact(self._check_intact, write=False)

    def _transact(self, work: Callable[[Connection], _T], *, write: bool) -> _T:
        try:
            # Closing the connection undoes a transaction that was not committed.
            with self._engine.connect() as connection:
                self._begin(connection, write=write)
                result = work(connection)
                connection.exec_driver_sql("COMMIT")
                return result
        except SQLAlchemyError as error:
            unavailable = self._unavailable(getattr(error, "orig", None) or error)
        # Raised here, so that the driver's exception is no context of this one.
        raise unavailable

    def _snapshot(self, connection: Connection) -> _Snapshot:
        found = connection.execute(JOURNAL.select().order_by(JOURNAL.c.sequence))
        rows = tuple(entry_of(dict(row)) for row in found.mappings())
        now = read_clock(connection, self._CLOCK)
        # Times never decrease, so a clock that is set back shortens no window.
        return rows, max(now, rows[-1].recorded_at) if rows else now

    def _check_intact(self, connection: Connection) -> None:
        if not self._is_intact(connection):
            raise damaged(0, "expected the journal table with its triggers and nothing else")

    @abstractmethod
    def _connect(self) -> Any:
        """Open a connection of the driver."""

    @abstractmethod
    def _begin(self, connection: Connection, *, write: bool) -> None:
        """Begin a transaction that is durable once it is committed."""

    @abstractmethod
    def _exists(self, connection: Connection) -> bool:
        """Return whether the database holds a journal, intact or not."""

    @abstractmethod
    def _create(self, connection: Connection) -> None:
        """Create the table and the triggers that keep it append-only."""

    @abstractmethod
    def _is_intact(self, connection: Connection) -> bool:
        """Return whether table and triggers are as they were created, with nothing else."""

    @abstractmethod
    def _unavailable(self, error: BaseException) -> ClustMixError:
        """Return the public error for an exception of the driver."""


def read_clock(connection: Connection, query: str) -> str:
    """Return the time by the clock of the database, UTC, as the journal writes it."""
    return str(connection.exec_driver_sql(query).scalar_one())
