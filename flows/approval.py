"""Decision of an officer about a waiting release, proved by a signature, not by its bearer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from flows.publication import Publisher, ReleaseOutcome
from privacy.errors import LedgerError
from privacy.ledger import EntryState, LedgerEntry
from storage.keys.keys import SigningKey
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import Approval, ApprovalStatement, require_decision, sign_approval

Decision = Literal["approve", "reject"]


def decide(
    publisher: Publisher, release_id: str, *, key: SigningKey, decision: Decision, reason: str
) -> ReleaseOutcome | LedgerEntry:
    """Sign with the key of an officer who did not ask for the release, and carry it out."""
    publisher.keys.require_officer(key.key_id)
    with _waiting(publisher, release_id) as waiting:
        manifest = publisher.pending_manifest(waiting)
    statement = ApprovalStatement.of(manifest, decision=decision, reason=reason)
    return carry_out(publisher, release_id, sign_approval(statement, key))


def carry_out(
    publisher: Publisher, release_id: str, approval: Approval
) -> ReleaseOutcome | LedgerEntry:
    """Publish a release that waits, or withhold it for good; its charge stands."""
    with _waiting(publisher, release_id) as entry:
        require_decision(
            approval,
            publisher.pending_manifest(entry),
            signer=publisher.keys.pipeline().public,
            officers=publisher.keys.officers(),
        )
        if approval.statement.decision == "approve":
            return publisher.publish_sealed(entry, approval)
        reason, signers = approval.statement.reason, (approval.key_id,)
        closed = publisher.entries.advance(
            entry.entry_id, EntryState.WITHHELD, note=reason, signers=signers
        )
        publisher.pending.remove(release_id)
        return closed


@contextmanager
def _waiting(publisher: Publisher, release_id: str) -> Iterator[LedgerEntry]:
    """Give the entry of a release, locked, if it waits for an officer."""
    entry = publisher.entries.of_release(release_id)
    with publisher.locked(release_id), publisher.entries.closing(entry):
        current = publisher.entries.now(entry)
        if current.state is not EntryState.SEALED or not current.needs_approval:
            raise LedgerError(
                "NOTHING_TO_DECIDE",
                f"expected a release that waits for an officer, found {release_id} "
                f"{current.state.value}",
            )
        yield current


def sign(folder: Path, *, key: SigningKey, decision: Decision, reason: str) -> Approval:
    """Sign a decision about a bundle that waits, with nothing but a copy of its folder."""
    manifest = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
    return sign_approval(ApprovalStatement.of(manifest, decision=decision, reason=reason), key)
