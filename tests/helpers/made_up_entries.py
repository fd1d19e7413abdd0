"""Entries of a ledger without a release: charged and moved by hand."""

import hashlib
from decimal import Decimal

import ledger_requests

from privacy.charges import Caps
from privacy.ledger import TRANSITIONS, EntryState
from storage.files.refs import new_release_id

REQUESTER, OFFICER = "a" * 16, "b" * 16

_PATHS = {
    EntryState.RESERVED: "", EntryState.VOID: "void", EntryState.EXECUTING: "executing",
    EntryState.BURNED: "executing burned", EntryState.SEALED: "executing sealed",
    EntryState.APPROVED: "executing sealed approved",
    EntryState.WITHHELD: "executing sealed withheld",
    EntryState.PUBLISHED: "executing sealed approved published",
    EntryState.REVOKED: "executing sealed approved published revoked",
}  # fmt: skip


def enter(site, state, *, note=None, **changes):
    """Charge a release and move its entry to a state; a note belongs to the last row."""
    release_id = changes.pop("release_id", new_release_id())
    needs_approval = changes.pop("needs_approval", False)
    wanted = {
        "cohort": "wards",
        "dataset": "wards",
        "release_id": release_id,
        "request_key": hashlib.sha256(release_id.encode()).hexdigest(),
        "unit": "one row, which is one patient",
        "caps": Caps(lifetime_rho=Decimal(1000)),
        "owner": site.owner,
        "requester": REQUESTER if needs_approval else None,
        "needs_approval": needs_approval,
    }
    charge = ledger_requests.charge(0, **{**wanted, **changes})
    entry = site.ledger.reserve(charge).entry
    steps = [EntryState(step) for step in _PATHS[state].split()]
    for step in steps:
        entry = move(site, entry, step, note=note if step is steps[-1] else None)
    return entry


def move(site, entry, state, **details):
    assert state in TRANSITIONS[entry.state]
    if state in (EntryState.SEALED, EntryState.PUBLISHED):
        details.setdefault("digest", "d" * 64)
    if state is EntryState.APPROVED and entry.needs_approval:
        details.setdefault("signers", (OFFICER,))
    return site.ledger.transition(entry.entry_id, state, expected_from=entry.state, **details)
