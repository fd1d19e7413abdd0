"""Rows of the ledger's journal: the columns of the table, and their encoding as text.

Each state of each entry is a row, and no row ever changes. All columns are text except the
sequence: a binary fraction would not be the amount that was charged.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from privacy.accountants.spending import moment
from privacy.charges import Caps, Partition, checked_rho
from privacy.errors import ConfigurationError, IntegrityError
from privacy.ledger import EntryState, LedgerEntry, chain_hash
from privacy.parameters import Adjacency

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
"""The columns in order, and whether each has a value in every row."""

_PART = ("scheme", "parts", "part")


def damaged(sequence: int, what: str) -> IntegrityError:
    """Return the error for a journal that is not as it was written."""
    return IntegrityError(
        "LEDGER_DAMAGED",
        f"sequence {sequence}: {what}; publish nothing and restore the ledger with its operator",
    )


def columns_of(entry: LedgerEntry) -> dict[str, Any]:
    """Encode an entry as the row that the database stores."""
    caps, part = entry.caps, entry.partition
    columns = {name: getattr(entry, name, None) for name in COLUMNS} | {
        "state": entry.state.value,
        "rho": f"{entry.rho:f}",
        "epsilon": repr(entry.epsilon),
        "delta": repr(entry.delta),
        "adjacency": entry.adjacency.value,
        "lifetime_cap_rho": f"{caps.lifetime_rho:f}",
        "needs_approval": "yes" if entry.needs_approval else "no",
        "signers": ",".join(entry.signers),
    }
    if caps.dataset_rho is not None:
        columns["dataset_cap_rho"] = f"{caps.dataset_rho:f}"
    if caps.window_rho is not None:
        columns |= {"window_cap_rho": f"{caps.window_rho:f}", "window_days": str(caps.window_days)}
    if part is not None:
        columns |= {f"partition_{name}": str(getattr(part, name)) for name in _PART}
    return columns


def hash_of(entry: LedgerEntry) -> str:
    """Return the hash of a row, over the hash of the row before and the other columns."""
    columns = columns_of(entry)
    del columns["hash"]
    return chain_hash(columns.pop("previous_hash"), columns)


def entry_of(row: Mapping[str, Any]) -> LedgerEntry:
    """Decode a row of the database (IntegrityError if it is not as it was written)."""
    columns = dict(row)
    try:
        window_days = columns.pop("window_days")
        caps = Caps(
            lifetime_rho=Decimal(columns.pop("lifetime_cap_rho")),
            dataset_rho=_amount(columns.pop("dataset_cap_rho")),
            window_rho=_amount(columns.pop("window_cap_rho")),
            window_days=None if window_days is None else int(window_days),
        )
        scheme, parts, part = (columns.pop(f"partition_{name}") for name in _PART)
        partition = None
        if scheme is not None:
            partition = Partition(scheme=scheme, parts=int(parts), part=int(part))
        columns |= {
            "state": EntryState(columns["state"]),
            "adjacency": Adjacency(columns["adjacency"]),
            "rho": checked_rho(Decimal(columns["rho"])),
            "epsilon": float(columns["epsilon"]),
            "delta": float(columns["delta"]),
            "needs_approval": columns["needs_approval"] == "yes",
            "signers": tuple(filter(None, columns["signers"].split(","))),
        }
        moment(columns["recorded_at"])
        entry = LedgerEntry(caps=caps, partition=partition, **columns)
        # A value has one text, so that the text hashed is the text stored.
        if columns_of(entry) != row:
            raise ValueError
    except (ValueError, TypeError, KeyError, InvalidOperation, AttributeError, ConfigurationError):
        raise damaged(row["sequence"], "expected amounts and a state that can be read") from None
    return entry


def _amount(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
