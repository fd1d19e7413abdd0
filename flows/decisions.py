"""Decisions of officers, proved by a signature: about a waiting release, and to take one back.

A release is taken back on the list that readers check, then in the ledger. If a run dies in
between, readers refuse what the ledger still has as published; the same command again finishes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from flows.publication import Publisher, ReleaseOutcome
from privacy.errors import refusals
from privacy.ledger import EntryState, LedgerEntry
from storage.files.documents import Record, digest_of
from storage.files.refs import ReleaseRef
from storage.keys.keys import SigningKey
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.release_store import manifests_in
from storage.releases.revocations import REVOKED_FILE, Revocation, list_revocations
from storage.releases.signatures import (
    Approval,
    ApprovalStatement,
    check_reason,
    require_decision,
    sign_approval,
)

refusal = refusals(__package__)

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
            raise refusal("NOTHING_TO_DECIDE", release=release_id, state=current.state.value)
        yield current


def sign(folder: Path, *, key: SigningKey, decision: Decision, reason: str) -> Approval:
    """Sign a decision about a bundle that waits, with nothing but a copy of its folder."""
    manifest = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
    return sign_approval(ApprovalStatement.of(manifest, decision=decision, reason=reason), key)


class RevocationOutcome(Record):
    """Result of a revocation; every field is public.

    The entry is the one that paid: still ``published`` if a resample alone was revoked. The bundles
    are still in the store, for an operator to remove.
    """

    listed: tuple[str, ...]
    listed_before: tuple[str, ...]
    ledger_entry: str
    ledger_state: str
    list_file: str
    bundles: tuple[str, ...]


def revoke(
    publisher: Publisher, release_id: str, *, key: SigningKey, reason: str
) -> RevocationOutcome:
    """Take back a release, with every resample of it in the store, or a resample alone.

    A release that was revoked before keeps its date and its reason, which is published with the
    list. No bundle is removed. The key is an officer's; the person who asked for the release may
    hold it: nothing is gained by taking one's own release back.
    """
    entries, keys = publisher.entries, publisher.keys
    releases = entries.releases
    keys.require_officer(key.key_id)
    check_reason(reason)
    entry, affected = _affected(publisher, release_id)
    revocations = [
        Revocation(
            dataset=ref.dataset,
            release_id=ref.release_id,
            ledger_entry=entry.entry_id,
            manifest_sha256=manifest_sha256,
            reason=reason,
            revoked_by=key.key_id,
            revoked_on=datetime.now(UTC).date(),
        )
        for ref, manifest_sha256 in affected.items()
    ]
    added = list_revocations(
        releases, revocations, signer=keys.pipeline(), trusted=keys.pipeline_public()
    )
    if entry.release_id == release_id and entry.state is EntryState.PUBLISHED:
        entry = entries.advance(
            entry.entry_id, EntryState.REVOKED, note=reason, signers=(key.key_id,)
        )
    new = {item.release_id for item in added}
    folders = [releases.path(ref) for ref in affected]
    return RevocationOutcome(
        listed=tuple(str(ref) for ref in affected if ref.release_id in new),
        listed_before=tuple(str(ref) for ref in affected if ref.release_id not in new),
        ledger_entry=entry.entry_id,
        ledger_state=entry.state.value,
        list_file=str(releases.root / REVOKED_FILE),
        bundles=tuple(str(folder) for folder in folders if folder.is_dir()),
    )


def _affected(publisher: Publisher, release_id: str) -> tuple[LedgerEntry, dict[ReleaseRef, str]]:
    """Return the entry that paid, and the releases to revoke with their manifests' digests.

    A release that paid comes first, then its resamples and pools; a resample is revoked alone.
    """
    entries = publisher.entries
    store, paid = entries.releases, {entry.entry_id: entry for entry in entries.all()}
    # An adjustment has no release.
    found = [entry for entry in paid.values() if entry.release_id == release_id and release_id]
    if not found:
        for manifest in manifests_in(store):
            if manifest.release_id == release_id and manifest.ledger_entry in paid:
                digest = digest_of(manifest.to_bytes()).sha256
                return paid[manifest.ledger_entry], {manifest.ref: digest}
        raise refusal("RELEASE_UNKNOWN", release=release_id[:80])
    [entry] = found
    if entry.state is EntryState.APPROVED:
        # Its run may have died between the store and the ledger.
        publisher.janitor.clean_up()
        entry = entries.now(entry)
    if entry.state not in (EntryState.PUBLISHED, EntryState.REVOKED) or entry.digest is None:
        raise refusal("NOTHING_TO_REVOKE", release=release_id, state=entry.state.value)
    affected = {ReleaseRef(dataset=entry.dataset, release_id=release_id): entry.digest}
    for manifest in manifests_in(store):
        is_resample = manifest.ledger_entry == entry.entry_id and manifest.release_id != release_id
        if is_resample or release_id in manifest.parts:
            affected[manifest.ref] = digest_of(manifest.to_bytes()).sha256
    return entry, affected
