"""Rows of the ledger's journal: the columns of the table, and their encoding as text.

Each state of each entry is a row, and no row ever changes. All columns are text except the
sequence: a binary fraction would not be the amount that was charged.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter

from privacy.charges import checked_rho
from privacy.errors import ClustMixError, ConfigurationError, refusals
from privacy.ledger import LedgerEntry, chain_hash
from privacy.spending import moment

refusal = refusals(__package__)

_NAMES = """
sequence entry_id state cohort dataset release_id request_key rho epsilon delta adjacency unit
lifetime_cap_rho dataset_cap_rho window_cap_rho window_days
partition_scheme partition_parts partition_part
owner requester needs_approval digest note signers recorded_at previous_hash hash"""
_OPTIONAL = """
dataset_cap_rho window_cap_rho window_days partition_scheme partition_parts partition_part
requester digest note"""

COLUMNS = {name: name not in _OPTIONAL.split() for name in _NAMES.split()}
"""The columns in order, and whether each has a value in every row."""

_CAPS = {
    "lifetime_cap_rho": "lifetime_rho",
    "dataset_cap_rho": "dataset_rho",
    "window_cap_rho": "window_rho",
    "window_days": "window_days",
}
_PART = {f"partition_{name}": name for name in ("scheme", "parts", "part")}
_BY_ENTRY = re.compile(r"at most ([0-9]+) in register ([0-9a-f]{16})")
_ENTRY = TypeAdapter(LedgerEntry)


def damaged(sequence: int, what: str) -> ClustMixError:
    """Return the error for a journal that is not as it was written."""
    return refusal("LEDGER_DAMAGED", sequence=sequence, what=what)


def columns_of(entry: LedgerEntry) -> dict[str, Any]:
    """Encode an entry as the row that the database stores."""
    columns = {name: getattr(entry, name, None) for name in COLUMNS} | {
        "state": entry.state.value,
        "rho": _text(entry.rho),
        "epsilon": repr(entry.epsilon),
        "delta": repr(entry.delta),
        "adjacency": entry.adjacency.value,
        "needs_approval": "yes" if entry.needs_approval else "no",
        "signers": ",".join(entry.signers),
    }
    columns |= {column: _text(getattr(entry.caps, name)) for column, name in _CAPS.items()}
    part = entry.partition
    columns |= {column: _text(getattr(part, name, None)) for column, name in _PART.items()}
    if part is not None and part.period is not None:
        columns["partition_parts"] = f"at most {part.at_most} in register {part.register}"
    return columns


def hash_of(entry: LedgerEntry) -> str:
    """Return the hash of a row, over the hash of the row before and the other columns."""
    columns = columns_of(entry)
    del columns["hash"]
    return chain_hash(columns.pop("previous_hash"), columns)


def entry_of(row: Mapping[str, Any]) -> LedgerEntry:
    """Decode a row of the database (IntegrityError if it is not as it was written)."""
    columns = dict(row)
    unreadable = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
    try:
        caps = {name: columns.pop(column) for column, name in _CAPS.items()}
        part = {name: columns.pop(column) for column, name in _PART.items()}
        if found := _BY_ENTRY.fullmatch(part["parts"] or ""):
            part |= {"parts": None, "at_most": found[1], "register": found[2]}
        elif part["part"] is not None:
            part["part"] = int(part["part"])
        columns |= {
            "caps": caps,
            "partition": None if part["scheme"] is None else part,
            "signers": tuple(filter(None, columns["signers"].split(","))),
        }
        entry = _ENTRY.validate_python(columns)
        moment(columns["recorded_at"])
        # A value has one text, so that the text hashed is the text stored.
        if columns_of(entry) != row:
            raise ValueError
    except (*unreadable, ConfigurationError):
        raise damaged(row["sequence"], "expected amounts and a state that can be read") from None
    return entry


def _text(value: Decimal | int | str | None) -> str | None:
    if isinstance(value, Decimal):
        return f"{checked_rho(value):f}"
    return None if value is None else str(value)
