"""The rules by which a journal grows, and the check of a whole journal by the same rules. No I/O.

A journal that was cut at its end, or rewritten as a whole within the rules, passes the check. Only
a head that was exported before reveals it (`check_head`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Unpack

from privacy.charges import (
    CHARGE_FIELDS,
    MAX_RHO,
    Caps,
    Charge,
    ChargeColumns,
    check_digest,
    check_text,
    checked_rho,
)
from privacy.errors import BudgetRefused, ConfigurationError, LedgerError, refusals
from privacy.ledger import (
    GENESIS_HASH,
    EntryState,
    LedgerEntry,
    Noted,
    check_signers,
    check_transition,
    entry_paid_for,
)
from privacy.parameters import Adjacency
from privacy.spending import Spending
from storage.ledger.journal_rows import damaged, hash_of

refusal = refusals(__package__)

_UNCHAINED: Mapping[str, Any] = MappingProxyType(
    {"sequence": 0, "recorded_at": "", "previous_hash": "", "hash": ""}
)


def check_head(rows: Sequence[LedgerEntry], head: tuple[int, str] | None) -> None:
    """Refuse a whole journal, read after its exported head, that lacks it (IntegrityError)."""
    if head is None or head == (0, GENESIS_HASH):
        return
    sequence, row_hash = head
    if not 1 <= sequence <= len(rows) or rows[sequence - 1].hash != row_hash:
        raise refusal("LEDGER_ROLLED_BACK", sequence=sequence)


def check_head_kept(
    rows: Sequence[LedgerEntry], head: tuple[int, str] | None, *, owner: str
) -> None:
    """Refuse (IntegrityError) a missing head in a journal in which the installation has measured.

    The first run of an installation exports a head before it measures: this head was lost.
    """
    if head is None and any(r.owner == owner and r.state is EntryState.EXECUTING for r in rows):
        raise refusal("LEDGER_HEAD_GONE")


class Books:
    """A verified journal, which grows by the rules: each method appends a row or raises.

    The given rows are replayed. Each must be the row that the rules produce in its place: this
    proves its hash, state, charge, signers and time, and that every cap held. An IntegrityError
    names the first row that differs. New rows get the time `now`, not before that of the last row.
    """

    def __init__(self, rows: Iterable[LedgerEntry], *, now: str) -> None:
        self.rows: list[LedgerEntry] = []
        self._latest: dict[str, LedgerEntry] = {}
        self._releases: set[str] = set()
        self._spending = Spending()
        self._now = ""
        for row in rows:
            self._replay(row)
        self._now = now

    def paid_for(self, charge: Charge) -> LedgerEntry | None:
        """Return the entry that has paid for the same request and can be used again, or None.

        It is a LedgerError if another charge has the same request key, or if earlier requests of
        the cohort needed an approval or had other neighbours.
        """
        self._spending.check_policy(charge)
        return entry_paid_for(charge, self.rows)

    def check_not_burned(self, charge: Charge) -> None:
        """Withhold a charge if the last one of its dataset, or of the same part of it, burned."""

        def series(each: ChargeColumns) -> tuple[object, ...]:
            part = each.partition  # any period: the register keeps patients of a burned run
            return each.dataset, part.split if part and part.period else part

        own = [e for e in self._latest.values() if series(e) == series(charge) and e.counts]
        last = own[-1] if own else None
        if last is not None and last.state is EntryState.BURNED:
            raise refusal(
                "BURNED_BEFORE", release=last.release_id, dataset=last.dataset, cause=last.note
            )

    def check_period_unread(self, charge: Charge) -> None:
        """Refuse a second charge for a period whose patients were read (LedgerError)."""
        asked = (charge.cohort, charge.dataset, charge.partition and charge.partition.part)
        for each in self._latest.values():
            paid = (each.cohort, each.dataset, each.partition and each.partition.part)
            over = each.state in (EntryState.VOID, EntryState.BURNED)
            if charge.partition and charge.partition.period and paid == asked and not over:
                raise refusal("PERIOD_READ", release=each.release_id, part=charge.partition.part)

    def reserve(self, charge: Charge, *, entry_id: str) -> LedgerEntry:
        """Charge a release with a new entry."""
        self._spending.check_policy(charge)
        if charge.release_id in self._releases:
            raise refusal("RELEASE_CHARGED", release=charge.release_id)
        self._spending.check_caps(charge, now=self._now)
        self._releases.add(charge.release_id)
        columns = {name: getattr(charge, name) for name in CHARGE_FIELDS}
        return self._begin(entry_id, EntryState.RESERVED, columns)

    def adjust(
        self, *, cohort: str, rho: Decimal, reason: str, signers: Sequence[str], entry_id: str
    ) -> LedgerEntry:
        """Enter a charge by hand: an entry without release, guarantee and cap."""
        for name, text in (("cohort", cohort), ("reason", reason)):
            check_text(name, text)
        check_signers(None, EntryState.ADJUSTED, signers)
        columns = {
            **dict.fromkeys(("dataset", "release_id", "request_key", "unit", "owner"), ""),
            "cohort": cohort,
            "rho": checked_rho(rho),
            "epsilon": math.inf,
            "delta": 0.0,
            "adjacency": Adjacency.ADD_REMOVE,
            "caps": Caps(lifetime_rho=MAX_RHO),
            "partition": None,
            "requester": None,
            "needs_approval": False,
        }
        return self._begin(entry_id, EntryState.ADJUSTED, columns, note=reason, signers=signers)

    def move(
        self, entry_id: str, state: EntryState, *, expected_from: EntryState, **noted: Unpack[Noted]
    ) -> LedgerEntry:
        """Move an entry to its next state; without a new digest it keeps its own."""
        entry = self._latest.get(entry_id)
        if entry is None:
            raise refusal("ENTRY_UNKNOWN", entry=entry_id)
        if entry.state is not expected_from:
            raise refusal(
                "STATE_CHANGED", entry=entry_id, wanted=expected_from.value, found=entry.state.value
            )
        check_transition(entry.state, state)
        digest, note = noted.get("digest"), noted.get("note")
        if digest is not None:
            check_digest(digest)
        elif state is EntryState.SEALED:
            raise refusal("DIGEST_MISSING")
        if note is not None:
            check_text("note", note)
        signers = tuple(noted.get("signers", ()))
        check_signers(entry, state, signers)
        digest = digest or entry.digest
        return self._append(replace(entry, state=state, digest=digest, note=note, signers=signers))

    def _begin(
        self, entry_id: str, state: EntryState, charge: Mapping[str, Any], **noted: Unpack[Noted]
    ) -> LedgerEntry:
        if entry_id in self._latest:
            raise refusal("ENTRY_EXISTS", entry=entry_id)
        entry = LedgerEntry(
            **charge,
            entry_id=entry_id,
            state=state,
            digest=None,
            note=noted.get("note"),
            signers=tuple(noted.get("signers", ())),
            **_UNCHAINED,
        )
        return self._append(entry)

    def _append(self, entry: LedgerEntry) -> LedgerEntry:
        entry = replace(
            entry,
            sequence=len(self.rows) + 1,
            recorded_at=self._now,
            previous_hash=self.rows[-1].hash if self.rows else GENESIS_HASH,
        )
        entry = replace(entry, hash=hash_of(entry))
        self.rows.append(entry)
        self._latest[entry.entry_id] = entry
        self._spending.record(entry)
        return entry

    def _replay(self, row: LedgerEntry) -> None:
        sequence = len(self.rows) + 1
        previous_hash = self.rows[-1].hash if self.rows else GENESIS_HASH
        self._now = max(self._now, row.recorded_at)
        try:
            if self._same_step(row) == row:
                return
            problem = "expected the row that follows by the rules"
        except BudgetRefused:
            problem = "expected the balance to stay under every cap"
        except (LedgerError, ConfigurationError) as error:
            problem = f"expected a row that keeps the rules ({error.code})"
        if row.previous_hash != previous_hash or row.hash != hash_of(row):
            problem = "expected the hash that continues the chain"
        raise damaged(sequence, problem)

    def _same_step(self, row: LedgerEntry) -> LedgerEntry:
        if row.state is EntryState.RESERVED:
            return self.reserve(row.charge, entry_id=row.entry_id)
        if row.state is EntryState.ADJUSTED:
            return self.adjust(
                cohort=row.cohort,
                rho=row.rho,
                reason=row.note or "",
                signers=row.signers,
                entry_id=row.entry_id,
            )
        before = self._latest.get(row.entry_id)
        if before is None:
            raise refusal("ENTRY_UNKNOWN", entry=row.entry_id)
        return self.move(
            row.entry_id,
            row.state,
            expected_from=before.state,
            digest=row.digest,
            note=row.note,
            signers=row.signers,
        )
