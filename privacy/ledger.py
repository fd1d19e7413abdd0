"""Rules of the privacy ledger: states, transitions, amounts and the hash chain. No I/O.

The currency is ``rho = mu**2 / 2``: it adds up under composition, also when later releases are
chosen in view of earlier ones, as long as the running sum stays under a cap that is fixed in
advance (Smith and Thakurta, "Fully adaptive composition for Gaussian differential privacy", 2022).
An amount is charged when it is reserved, before a private byte is read, and is given back only if
it is certain that none was read.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from privacy.errors import ConfigurationError, LedgerError
from privacy.parameters import Adjacency

RHO_DECIMALS = 12
RHO_STEP = Decimal(1).scaleb(-RHO_DECIMALS)
"""Unit of the ledger; every amount is a whole number of it."""

MAX_RHO = Decimal(1_000_000)
"""Largest amount; it keeps sums exact within the 28 digits of decimal arithmetic."""

GENESIS_HASH = "0" * 64
"""The hash before the first row of a journal."""


class EntryState(StrEnum):
    """State of a ledger entry.

    Attributes
    ----------
    RESERVED
        Charged; no private data have been read.
    EXECUTING
        One worker reads the data and draws the noise. Never entered twice.
    SEALED
        The noisy result is on disk and its digest is in the ledger.
    APPROVED
        The output gate, and a person where policy asks for one, has agreed to the publication.
    PUBLISHED
        The release is in the store.
    VOID
        Reserved and not used: the only state that does not count.
    BURNED
        The worker died while it executed; the charge stands.
    WITHHELD
        Sealed and not published, by a gate or a person; the charge stands.
    REVOKED
        Taken back after publication; the charge stands.
    """

    RESERVED = "reserved"
    EXECUTING = "executing"
    SEALED = "sealed"
    APPROVED = "approved"
    PUBLISHED = "published"
    VOID = "void"
    BURNED = "burned"
    WITHHELD = "withheld"
    REVOKED = "revoked"


TRANSITIONS: Mapping[EntryState, frozenset[EntryState]] = MappingProxyType(
    {
        EntryState.RESERVED: frozenset({EntryState.EXECUTING, EntryState.VOID}),
        EntryState.EXECUTING: frozenset({EntryState.SEALED, EntryState.BURNED}),
        EntryState.SEALED: frozenset({EntryState.APPROVED, EntryState.WITHHELD}),
        EntryState.APPROVED: frozenset({EntryState.PUBLISHED, EntryState.WITHHELD}),
        EntryState.PUBLISHED: frozenset({EntryState.REVOKED}),
        EntryState.VOID: frozenset(),
        EntryState.BURNED: frozenset(),
        EntryState.WITHHELD: frozenset(),
        EntryState.REVOKED: frozenset(),
    }
)
"""The states that may follow a state. Nothing leads back."""

COUNTING_STATES = frozenset(EntryState) - {EntryState.VOID}
"""States whose amount is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One row of the journal: an entry in one of its states.

    Parameters
    ----------
    sequence : int
        Position in the journal, from 1 without a gap.
    entry_id : str
        Identifier of the entry; all its rows have it.
    state : EntryState
        State from this row on.
    dataset : str
        Name of the dataset whose patients pay.
    release_id : str
        The release that was paid for.
    rho : Decimal
        Amount, repeated in every row of the entry.
    epsilon, delta : float
        Guarantee of this release alone.
    adjacency : Adjacency
        Neighbours of the guarantee.
    unit : str
        The privacy unit in words.
    cap_rho : Decimal
        Lifetime cap that was in force when the entry was reserved.
    digest : str or None
        SHA-256 of the sealed result, in hexadecimal, from SEALED on.
    note : str or None
        Public code or remark of the transition.
    recorded_at : str
        Time by the clock of the database, UTC, ISO 8601.
    previous_hash, hash : str
        Links of the hash chain.
    """

    sequence: int
    entry_id: str
    state: EntryState
    dataset: str
    release_id: str
    rho: Decimal
    epsilon: float
    delta: float
    adjacency: Adjacency
    unit: str
    cap_rho: Decimal
    digest: str | None
    note: str | None
    recorded_at: str
    previous_hash: str
    hash: str

    @property
    def counts(self) -> bool:
        """Whether the amount is spent."""
        return self.state in COUNTING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What a dataset has spent and may still spend.

    Parameters
    ----------
    spent_rho : Decimal
        Sum over all entries that count.
    cap_rho : Decimal or None
        Smallest lifetime cap ever recorded; None before the first entry.
    """

    spent_rho: Decimal
    cap_rho: Decimal | None

    @property
    def remaining_rho(self) -> Decimal:
        """Cap minus spent, never below zero; zero before a cap is recorded."""
        if self.cap_rho is None:
            return Decimal(0)
        return max(Decimal(0), self.cap_rho - self.spent_rho)

    def releases_left(self, rho: Decimal) -> int:
        """Return how many more releases of amount `rho` the cap allows."""
        return int(self.remaining_rho // checked_rho(rho))


def charged_rho(rho: float) -> Decimal:
    """Return the amount that is charged for `rho`: rounded up to a whole number of steps.

    The cap for a lifetime epsilon is `privacy.calibration.gdp_rho`, which is rounded down.

    Parameters
    ----------
    rho : float
        For example `privacy.accountants.gaussian.GaussianAccountant.rho`.

    Raises
    ------
    ConfigurationError
        If it is not above 0 and at most `MAX_RHO`.
    """
    # Decimal(float) is exact; the limit keeps quantize within the precision of the context.
    value = Decimal(rho)
    if not value.is_finite() or not 0 < value <= MAX_RHO:
        raise _invalid_rho(value)
    return checked_rho(value.quantize(RHO_STEP, rounding=ROUND_CEILING))


def checked_rho(rho: Decimal) -> Decimal:
    """Return `rho` with exactly twelve decimals.

    Parameters
    ----------
    rho : Decimal
        An amount of the ledger.

    Raises
    ------
    ConfigurationError
        If it is not a Decimal, not above 0, above `MAX_RHO` or not a whole number of steps.
    """
    if (
        not isinstance(rho, Decimal)
        or not rho.is_finite()
        or not 0 < rho <= MAX_RHO
        or rho.quantize(RHO_STEP) != rho
    ):
        raise _invalid_rho(rho)
    return rho.quantize(RHO_STEP)


def _invalid_rho(rho: object) -> ConfigurationError:
    return ConfigurationError(
        "RHO_INVALID",
        f"expected rho as a Decimal above 0 and at most {MAX_RHO} with at most {RHO_DECIMALS} "
        f"decimals, found {rho!r}; round a charge up (charged_rho) and a cap down",
    )


def check_transition(current: EntryState, following: EntryState) -> None:
    """Refuse a transition that the rules do not have.

    Raises
    ------
    LedgerError
        If `following` may not follow `current`.
    """
    if following not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current])) or "no further state"
        raise LedgerError(
            "TRANSITION_REFUSED",
            f"expected {allowed} after {current.value}, found {following.value}",
        )


def latest_entries(rows: Iterable[LedgerEntry]) -> dict[str, LedgerEntry]:
    """Return the latest row of each entry, by entry id, in the order of reservation.

    Parameters
    ----------
    rows : iterable of LedgerEntry
        In the order of the journal.
    """
    latest: dict[str, LedgerEntry] = {}
    for row in rows:
        latest[row.entry_id] = row
    return latest


def balance_of(rows: Iterable[LedgerEntry]) -> Balance:
    """Return the balance of the dataset that the rows belong to.

    The amount of an entry is that of its first row, the reservation; the cap is the smallest one
    that any row names, so that a cap can be lowered and never raised.

    Parameters
    ----------
    rows : iterable of LedgerEntry
        All rows of one dataset, in the order of the journal.
    """
    reserved: dict[str, LedgerEntry] = {}
    state: dict[str, EntryState] = {}
    for row in rows:
        reserved.setdefault(row.entry_id, row)
        state[row.entry_id] = row.state
    spent = sum(
        (entry.rho for key, entry in reserved.items() if state[key] in COUNTING_STATES),
        start=Decimal(0),
    )
    cap = min((entry.cap_rho for entry in reserved.values()), default=None)
    return Balance(spent_rho=spent, cap_rho=cap)


def chain_hash(previous_hash: str, fields: Mapping[str, Any]) -> str:
    """Return the hash of a journal row: SHA-256 over canonical JSON of all before it.

    Parameters
    ----------
    previous_hash : str
        Hash of the row before, or `GENESIS_HASH`.
    fields : mapping
        The fields of the row except the two hashes, as text, numbers or None.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    text = json.dumps(
        [previous_hash, dict(fields)], sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()
