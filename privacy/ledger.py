"""Rules of the privacy ledger: states, transitions, signers and the hash chain. No I/O.

An amount is charged when reserved, before a row is decoded, and given back only if nothing was
computed for release. Amounts and caps are in `privacy.charges`, their sums in `privacy.spending`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypedDict

from privacy.charges import CHARGE_FIELDS, Charge, ChargeColumns, check_key_ids, checked_rho
from privacy.errors import refusals

refusal = refusals(__package__)

GENESIS_HASH = "0" * 64
"""The hash before the first row of a journal."""

TABLE_TAG = "; table "
"""Text of a note between its code and the tag of a table."""

_SAME = ("cohort", "dataset", "rho", "adjacency", "unit", "partition")
"""Fields in which two requests with one key agree."""


class EntryState(StrEnum):
    """State of a ledger entry. Its charge counts in every state but VOID."""

    # Charged; rows may be checked by the declared rules, and nothing is computed for release.
    RESERVED = "reserved"
    # One worker computes and draws the noise. Never entered twice.
    EXECUTING = "executing"
    SEALED = "sealed"  # the noisy result is on disk and its digest is in the ledger
    APPROVED = "approved"  # the output gate, and a person where policy asks for one, has agreed
    PUBLISHED = "published"  # the release is in the store
    # Reserved and not used, or a check alone: the only state that does not count.
    VOID = "void"
    BURNED = "burned"  # the worker died while it executed
    WITHHELD = "withheld"  # sealed and not published, by a gate or a person
    REVOKED = "revoked"  # taken back after publication
    ADJUSTED = "adjusted"  # entered by hand, by two people; the only state of its entry


TRANSITIONS: Mapping[EntryState, frozenset[EntryState]] = MappingProxyType(
    dict.fromkeys(EntryState, frozenset[EntryState]())
    | {
        EntryState.RESERVED: frozenset({EntryState.EXECUTING, EntryState.VOID}),
        EntryState.EXECUTING: frozenset({EntryState.SEALED, EntryState.BURNED}),
        EntryState.SEALED: frozenset({EntryState.APPROVED, EntryState.WITHHELD}),
        EntryState.APPROVED: frozenset({EntryState.PUBLISHED, EntryState.WITHHELD}),
        EntryState.PUBLISHED: frozenset({EntryState.REVOKED}),
    }
)
"""The states that may follow a state. Nothing leads back."""

SIGNERS: Mapping[EntryState, tuple[int, ...]] = MappingProxyType(
    {
        EntryState.APPROVED: (0, 1),
        EntryState.WITHHELD: (0, 1),
        EntryState.REVOKED: (0, 1),
        EntryState.ADJUSTED: (2,),
    }
)
"""Numbers of people who may sign for a state; nobody signs for the other states."""


class Noted(TypedDict, total=False):
    """Fields of a `LedgerEntry` that describe its present state alone."""

    digest: str | None
    note: str | None
    signers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry(ChargeColumns):
    """One row of the journal: an entry in one of its states.

    `sequence` numbers the rows from 1 without a gap. All rows of an entry have its id and repeat
    its `Charge`. `digest` is the SHA-256 of the sealed result, from SEALED on; in VOID it may be
    that of the declarations that rows were checked by. `note`, a public code or remark, and
    `signers`, key ids of people, belong to this state. `recorded_at` is the time by the clock of
    the database, UTC, ISO 8601, and never before that of the row before. The hashes link the chain.

    An adjustment is no release: texts that only a release has are empty, and it states no guarantee
    (epsilon is infinite, delta 0) and no cap (`MAX_RHO`).
    """

    sequence: int
    entry_id: str
    state: EntryState
    digest: str | None
    note: str | None
    signers: tuple[str, ...]
    recorded_at: str
    previous_hash: str
    hash: str

    @property
    def code(self) -> str | None:
        """The note without the tag of a table."""
        return self.note if self.note is None else self.note.partition(TABLE_TAG)[0]

    @property
    def table(self) -> str | None:
        """The tag of the table, a keyed digest of its content, if this state notes one."""
        return None if self.note is None else self.note.partition(TABLE_TAG)[2] or None

    @property
    def counts(self) -> bool:
        """True if the amount is spent."""
        return self.state is not EntryState.VOID

    @property
    def charge(self) -> Charge:
        """The charge, which keeps the rules (ConfigurationError); an adjustment has none."""
        return Charge(**{name: getattr(self, name) for name in CHARGE_FIELDS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Spending of a cohort, or of a part of it, and the rest under its caps.

    `spent_rho` is the sum over all entries that count, with parallel composition over the parts of
    a partition. `cap_rho` is the smallest lifetime cap ever recorded, None before the first entry.
    `tightest_rho` is the rest for the next release, if it differs from that of the lifetime cap:
    a dataset or window cap makes it smaller; by entry, new patients make it larger.
    """

    spent_rho: Decimal
    cap_rho: Decimal | None
    tightest_rho: Decimal | None = None

    @property
    def remaining_rho(self) -> Decimal:
        """The rest under the caps, never below zero; zero before a cap is recorded."""
        if self.cap_rho is None:
            return Decimal(0)
        left = self.tightest_rho
        return max(Decimal(0), self.cap_rho - self.spent_rho if left is None else left)

    def releases_left(self, rho: Decimal) -> int:
        """Return how many more releases of amount `rho` the caps allow."""
        return int(self.remaining_rho // checked_rho(rho))


def check_transition(current: EntryState, following: EntryState) -> None:
    """Refuse a transition that is not in `TRANSITIONS` (LedgerError)."""
    if following not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current])) or "no further state"
        raise refusal("TRANSITION_REFUSED", allowed=allowed, before=current, found=following)


def check_signers(entry: LedgerEntry | None, to_state: EntryState, signers: Sequence[str]) -> None:
    """Refuse a state without the signatures that it needs.

    `entry` is the one that moves, None for a new adjustment. `signers` are key ids
    (ConfigurationError if malformed). It is a LedgerError unless a required approval has one signer
    other than the requester, an adjustment two signers, and any other state none.
    """
    check_key_ids(signers)
    if to_state is EntryState.ADJUSTED and (len(signers) != 2 or len(set(signers)) != 2):
        raise refusal("TWO_PEOPLE", found=len(set(signers)))
    if entry is not None and entry.needs_approval and to_state is EntryState.APPROVED:
        if len(signers) != 1:
            raise refusal("APPROVAL_MISSING", entry=entry.entry_id, found=len(signers))
        if signers[0] == entry.requester:
            raise refusal("APPROVER_IS_REQUESTER", entry=entry.entry_id)
    allowed = SIGNERS.get(to_state, (0,))
    if len(signers) not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise refusal("SIGNERS_REFUSED", wanted=wanted, state=to_state.value, found=len(signers))


def latest_entries(rows: Iterable[LedgerEntry]) -> dict[str, LedgerEntry]:
    """Return the latest row of each entry, by entry id, in the order of reservation."""
    return {row.entry_id: row for row in rows}


def entry_paid_for(charge: Charge, rows: Iterable[LedgerEntry]) -> LedgerEntry | None:
    """Return the latest entry that paid for the same request and can be used again, or None.

    `rows` are the whole journal. It is a LedgerError if another charge has the same request key.
    """
    entries = [
        entry
        for entry in latest_entries(rows).values()
        if entry.request_key == charge.request_key
        and entry.state not in (EntryState.VOID, EntryState.BURNED)
    ]
    if not entries:
        return None
    if any(getattr(entries[-1], name) != getattr(charge, name) for name in _SAME):
        raise refusal("REQUEST_KEY_USED", entry=entries[-1].entry_id)
    return entries[-1]


def chain_hash(previous_hash: str, columns: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of the previous hash and a row's other columns."""
    text = json.dumps(
        [previous_hash, dict(columns)], sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()
