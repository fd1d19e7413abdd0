"""Rows of the ledger's journal: columns, encoding, and the check of a whole journal.

Every state of every entry is a row of its own and no row is ever changed. What is here is the same
for every database: `storage.ledger.journal` keeps the rows in SQLite and
`storage.ledger.journal_postgres` in PostgreSQL. A journal that was cut at its end or rewritten as a
whole has a good chain: it is found only by comparison with a head that was exported before
(`storage.ledger.head`).
"""

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol, TypeVar

from privacy.charges import (
    CHARGE_FIELDS,
    MAX_RHO,
    Caps,
    Charge,
    Partition,
    check_digest,
    checked_rho,
)
from privacy.errors import BudgetRefused, ConfigurationError, IntegrityError, LedgerError
from privacy.ledger import (
    GENESIS_HASH,
    TRANSITIONS,
    EntryState,
    LedgerEntry,
    chain_hash,
    check_signers,
)
from privacy.parameters import Adjacency
from privacy.spending import Spending, moment
from storage.ledger.head import check_head

T = TypeVar("T")

REQUIRED, OPTIONAL = True, False

COLUMNS = {
    "sequence": REQUIRED,
    "entry_id": REQUIRED,
    "state": REQUIRED,
    "cohort": REQUIRED,
    "dataset": REQUIRED,
    "release_id": REQUIRED,
    "request_key": REQUIRED,
    "rho": REQUIRED,
    "epsilon": REQUIRED,
    "delta": REQUIRED,
    "adjacency": REQUIRED,
    "unit": REQUIRED,
    "lifetime_cap_rho": REQUIRED,
    "dataset_cap_rho": OPTIONAL,
    "window_cap_rho": OPTIONAL,
    "window_days": OPTIONAL,
    "partition_scheme": OPTIONAL,
    "partition_parts": OPTIONAL,
    "partition_part": OPTIONAL,
    "owner": REQUIRED,
    "requester": OPTIONAL,
    "needs_approval": REQUIRED,
    "digest": OPTIONAL,
    "note": OPTIONAL,
    "signers": REQUIRED,
    "recorded_at": REQUIRED,
    "previous_hash": REQUIRED,
    "hash": REQUIRED,
}
"""Columns of the journal in order, and whether each holds something in every row.

All are text except the sequence. Numbers are text because a binary fraction would not be the amount
that was charged.
"""

_HASHED = tuple(COLUMNS)[:-2]
_OF_THE_ROW = ("sequence", "recorded_at")


class JournalTransaction(Protocol):
    """What a database does for the journal inside one transaction."""

    def check_schema(self) -> None:
        """Refuse a journal whose table, triggers or functions are not as they were created."""

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows in order."""

    def clock(self) -> str:
        """Return the time by the clock of the database."""

    def insert(self, row: tuple[Any, ...]) -> None:
        """Append one row."""


def damaged(sequence: int, what: str) -> IntegrityError:
    """Return the error for a journal that is not as it was written."""
    return IntegrityError(
        "LEDGER_DAMAGED",
        f"sequence {sequence}: {what}; publish nothing and restore the ledger with its operator",
    )


def schema_damaged() -> IntegrityError:
    """Return the error for a database that does not hold the journal as it was created."""
    return damaged(0, "expected the journal table with its triggers and nothing else")


def reservation(charge: Charge, entry_id: str) -> dict[str, Any]:
    """Return the columns of the first row of a charge."""
    return {
        "entry_id": entry_id,
        "state": EntryState.RESERVED.value,
        **_charge_columns(charge),
        "digest": None,
        "note": None,
        "signers": "",
    }


def adjustment(
    *, cohort: str, rho: Decimal, reason: str, signers: Sequence[str], entry_id: str
) -> dict[str, Any]:
    """Return the columns of a charge that two people enter by hand."""
    columns: dict[str, Any] = {name: "" if must else None for name, must in COLUMNS.items()}
    return columns | {
        "entry_id": entry_id,
        "state": EntryState.ADJUSTED.value,
        "cohort": cohort,
        "rho": f"{checked_rho(rho):f}",
        "epsilon": "inf",
        "delta": "0.0",
        "adjacency": Adjacency.ADD_REMOVE.value,
        "lifetime_cap_rho": f"{checked_rho(MAX_RHO):f}",
        "needs_approval": "no",
        "note": reason,
        "signers": ",".join(signers),
    }


def following(
    entry: LedgerEntry,
    to_state: EntryState,
    *,
    digest: str | None,
    note: str | None,
    signers: Sequence[str],
) -> dict[str, Any]:
    """Return the row that moves `entry` by a checked transition; None keeps its digest."""
    return columns_of(entry) | {
        "state": to_state.value,
        "digest": digest or entry.digest,
        "note": note,
        "signers": ",".join(signers),
    }


def next_row(
    last: LedgerEntry | None, columns: dict[str, Any], *, recorded_at: str
) -> tuple[Any, ...]:
    """Return the row that continues a journal after its `last` row."""
    previous_hash = GENESIS_HASH if last is None else last.hash
    sequence = 1 if last is None else last.sequence + 1
    columns = {**columns, "sequence": sequence, "recorded_at": recorded_at}
    hashed = {name: columns[name] for name in _HASHED}
    return (*hashed.values(), previous_hash, chain_hash(previous_hash, hashed))


def entry_of(row: Sequence[Any]) -> LedgerEntry:
    """Return the entry that a row of the database holds (IntegrityError if it cannot be read)."""
    try:
        columns: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
        caps = Caps(
            lifetime_rho=Decimal(columns.pop("lifetime_cap_rho")),
            dataset_rho=_optional(Decimal, columns.pop("dataset_cap_rho")),
            window_rho=_optional(Decimal, columns.pop("window_cap_rho")),
            window_days=_optional(int, columns.pop("window_days")),
        )
        scheme, parts, part = (
            columns.pop(f"partition_{name}") for name in ("scheme", "parts", "part")
        )
        columns |= {
            "state": EntryState(columns["state"]),
            "adjacency": Adjacency(columns["adjacency"]),
            "rho": checked_rho(Decimal(columns["rho"])),
            "epsilon": float(columns["epsilon"]),
            "delta": float(columns["delta"]),
            "needs_approval": {"yes": True, "no": False}[columns["needs_approval"]],
            "signers": tuple(filter(None, columns["signers"].split(","))),
        }
        partition = None
        if scheme is not None:
            partition = Partition(scheme=scheme, parts=int(parts), part=int(part))
        moment(columns["recorded_at"])
        entry = LedgerEntry(caps=caps, partition=partition, **columns)
        # One amount has one text: what is compared and hashed is what is stored.
        if (*columns_of(entry).values(), entry.previous_hash, entry.hash) != tuple(row):
            raise ValueError(row[0])
    except (ValueError, TypeError, KeyError, InvalidOperation, AttributeError, ConfigurationError):
        raise damaged(row[0], "expected amounts and a state that can be read") from None
    return entry


def columns_of(entry: LedgerEntry) -> dict[str, Any]:
    """Return the columns of a row as they are stored and hashed, without the two hashes."""
    columns = {
        **_charge_columns(entry),
        "sequence": entry.sequence,
        "entry_id": entry.entry_id,
        "state": entry.state.value,
        "digest": entry.digest,
        "note": entry.note,
        "signers": ",".join(entry.signers),
        "recorded_at": entry.recorded_at,
    }
    return {name: columns[name] for name in _HASHED}


def _charge_columns(paid: Charge | LedgerEntry) -> dict[str, Any]:
    caps, part = paid.caps, paid.partition
    texts = ("cohort", "dataset", "release_id", "request_key", "unit", "owner", "requester")
    return {
        **{name: getattr(paid, name) for name in texts},
        "rho": f"{paid.rho:f}",
        "epsilon": repr(paid.epsilon),
        "delta": repr(paid.delta),
        "adjacency": paid.adjacency.value,
        "lifetime_cap_rho": f"{caps.lifetime_rho:f}",
        "dataset_cap_rho": None if caps.dataset_rho is None else f"{caps.dataset_rho:f}",
        "window_cap_rho": None if caps.window_rho is None else f"{caps.window_rho:f}",
        "window_days": None if caps.window_days is None else str(caps.window_days),
        "partition_scheme": None if part is None else part.scheme,
        "partition_parts": None if part is None else str(part.parts),
        "partition_part": None if part is None else str(part.part),
        "needs_approval": "yes" if paid.needs_approval else "no",
    }


def verify_rows(rows: Sequence[LedgerEntry]) -> Spending:
    """Check a whole journal, say what is spent; the IntegrityError names the first wrong row."""
    spending = Spending()
    latest: dict[str, LedgerEntry] = {}
    releases: set[str] = set()
    last: LedgerEntry | None = None
    for position, row in enumerate(rows, start=1):
        if row.sequence != position:
            raise damaged(position, "expected a row, found none")
        previous_hash = GENESIS_HASH if last is None else last.hash
        if row.previous_hash != previous_hash or row.hash != chain_hash(
            previous_hash, columns_of(row)
        ):
            raise damaged(position, "expected the hash that continues the chain")
        if last is not None and row.recorded_at < last.recorded_at:
            raise damaged(position, "expected a time that is not before the row before")
        before = latest.get(row.entry_id)
        try:
            if before is None:
                _check_first(row, releases, spending)
            else:
                _check_following(row, before)
        except BudgetRefused:
            raise damaged(position, "expected the balance to stay under every cap") from None
        except (LedgerError, ConfigurationError) as error:
            raise damaged(position, f"expected a row that keeps the rules ({error.code})") from None
        latest[row.entry_id] = last = row
        spending.record(row)
    return spending


def _check_first(row: LedgerEntry, releases: set[str], spending: Spending) -> None:
    if row.state is EntryState.ADJUSTED:
        check_signers(None, row.state, row.signers)
        expected = adjustment(
            cohort=row.cohort,
            rho=row.rho,
            reason=row.note or "",
            signers=row.signers,
            entry_id=row.entry_id,
        )
        found = columns_of(row)
        if any(found[name] != expected[name] for name in _HASHED if name not in _OF_THE_ROW):
            raise damaged(row.sequence, "expected an adjustment with nothing of a release")
        return
    if row.state is not EntryState.RESERVED:
        raise damaged(row.sequence, "expected an entry to begin as reserved or adjusted")
    if row.release_id in releases:
        raise damaged(row.sequence, "expected one entry per release")
    releases.add(row.release_id)
    if row.digest is not None or row.signers:
        raise damaged(row.sequence, "expected a reservation without a digest or a signer")
    spending.check_policy(row.charge)
    spending.check_caps(row.charge, now=row.recorded_at)


def _check_following(row: LedgerEntry, before: LedgerEntry) -> None:
    if row.state not in TRANSITIONS[before.state]:
        raise damaged(row.sequence, f"expected a state that may follow {before.state.value}")
    if any(getattr(row, name) != getattr(before, name) for name in CHARGE_FIELDS):
        raise damaged(row.sequence, "expected the charge of the reservation")
    check_signers(before, row.state, row.signers)
    check_seal(row.state, row.digest)


def check_seal(state: EntryState, digest: str | None) -> None:
    """Refuse SEALED without a digest (LedgerError), or one of another form (ConfigurationError)."""
    if digest is not None:
        check_digest(digest)
    elif state is EntryState.SEALED:
        raise LedgerError("DIGEST_MISSING", "expected the digest of the result that is sealed")


def _optional(read: Callable[[str], T], text: str | None) -> T | None:
    return None if text is None else read(text)


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
        self.spending = verify_rows(self.rows)
        for head in heads:
            check_head(self.rows, head)
        self.now = time_of(transaction, self.rows)

    def append(self, columns: dict[str, Any]) -> LedgerEntry:
        """Append a row with these columns and return it."""
        last = self.rows[-1] if self.rows else None
        row = next_row(last, columns, recorded_at=self.now)
        self._transaction.insert(row)
        self.rows.append(entry_of(row))
        return self.rows[-1]


def read_rows(transaction: JournalTransaction) -> tuple[LedgerEntry, ...]:
    """Return all rows of a journal, in order (IntegrityError if one cannot be read)."""
    return tuple(map(entry_of, transaction.rows()))


def time_of(transaction: JournalTransaction, rows: Sequence[LedgerEntry]) -> str:
    """Return the time, never before the last row: a clock that is set back shortens no window."""
    now = transaction.clock()
    return max(now, rows[-1].recorded_at) if rows else now
