"""What an officer decides about a release that waits: signed anywhere, carried out here.

Who decided is proved by the signature alone, whoever brings it and by which page or command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from flows.publication import (
    ReleaseOutcome,
    entry_of,
    job_of_measurement,
    measurement_of,
    pending_manifest,
    publish_sealed,
    release_locked,
)
from privacy.errors import ConfigurationError, LedgerError
from privacy.ledger import EntryState, LedgerEntry
from storage.keys.keys import SigningKey
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import Approval, ApprovalStatement, require_decision, sign_approval
from tasks.steps import ledger_steps, publish_steps
from tasks.steps.run import Site

Decision = Literal["approve", "reject"]


def approve(site: Site, release_id: str, *, key: SigningKey, reason: str) -> ReleaseOutcome:
    """Publish a release that waits for an officer, with that officer's signature.

    Parameters
    ----------
    site
        The installation.
    release_id
        The release that waits.
    key
        The officer's private key; its public half is among the officers' keys.
    reason
        One line for the signed statement.

    Raises
    ------
    ConfigurationError
        If the key is not an officer's, or the person who asked holds it.
    LedgerError
        If no such release waits.
    """
    return _publish(site, release_id, _signed_here(site, release_id, key, "approve", reason))


def reject(site: Site, release_id: str, *, key: SigningKey, reason: str) -> LedgerEntry:
    """Withhold a release that waits for an officer. Its charge stands.

    Parameters and errors are those of `approve`.
    """
    return _withhold(site, release_id, _signed_here(site, release_id, key, "reject", reason))


def sign(folder: Path, *, key: SigningKey, decision: Decision, reason: str) -> Approval:
    """Sign a decision about a bundle that waits, with nothing but a copy of its folder.

    Raises
    ------
    ConfigurationError
        If the key is that of the person who asked, or the bundle needs no approval.
    IntegrityError
        If the folder holds no manifest of a release.
    """
    manifest = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
    return _signed(manifest, key, decision, reason)


def decide(site: Site, release_id: str, approval: Approval) -> ReleaseOutcome | LedgerEntry:
    """Carry out a signed decision: publish the release, or withhold it for good.

    Returns
    -------
    ReleaseOutcome or LedgerEntry
        What was published, or the entry that was withheld; its charge stands.

    Raises
    ------
    IntegrityError
        If the signature is none of an officer's, is the requester's, or is about another charge,
        release, measurement or guarantee than the one that waits.
    LedgerError
        If no such release waits.
    """
    carry_out = _publish if approval.statement.decision == "approve" else _withhold
    return carry_out(site, release_id, approval)


def _publish(site: Site, release_id: str, approval: Approval) -> ReleaseOutcome:
    with _decided(site, release_id, approval) as entry:
        job = job_of_measurement(measurement_of(site, entry), release_id)
        return publish_sealed(job, site, publish_steps.approve(site, entry, approval))


def _withhold(site: Site, release_id: str, rejection: Approval) -> LedgerEntry:
    with _decided(site, release_id, rejection) as entry:
        closed = ledger_steps.advance(
            site,
            entry,
            EntryState.WITHHELD,
            note=rejection.statement.reason,
            signers=(rejection.key_id,),
        )
        site.pending.remove(release_id)
        return closed


@contextmanager
def _decided(site: Site, release_id: str, approval: Approval) -> Iterator[LedgerEntry]:
    """Give the entry that waits, locked, after checking that the decision is one about it."""
    entry = entry_of(site, release_id)
    with release_locked(site, release_id), ledger_steps.closing(site, entry):
        entry = _waiting(site, entry)
        require_decision(
            approval,
            pending_manifest(site, entry),
            signer=site.keys.pipeline().public,
            officers=site.keys.officers(),
        )
        yield entry


def _signed_here(
    site: Site, release_id: str, key: SigningKey, decision: Decision, reason: str
) -> Approval:
    """Sign a decision on the machine of the pipeline, after checking who the officer is."""
    entry = entry_of(site, release_id)
    if key.key_id == entry.requester:
        raise ConfigurationError(
            "APPROVER_IS_REQUESTER",
            "expected the key of an officer other than the person who asked for the release; a "
            "second person has to decide",
        )
    site.keys.require_officer(key.key_id)
    with release_locked(site, release_id), ledger_steps.closing(site, entry):
        return _signed(pending_manifest(site, _waiting(site, entry)), key, decision, reason)


def _signed(manifest: Manifest, key: SigningKey, decision: Decision, reason: str) -> Approval:
    return sign_approval(ApprovalStatement.of(manifest, decision=decision, reason=reason), key)


def _waiting(site: Site, entry: LedgerEntry) -> LedgerEntry:
    """Return the entry as it is now, if it waits for an officer."""
    entry = site.ledger.entry(entry.entry_id)
    if entry.state is not EntryState.SEALED or not entry.needs_approval:
        raise LedgerError(
            "NOTHING_TO_DECIDE",
            f"expected a release that waits for an officer, found {entry.release_id} "
            f"{entry.state.value}",
        )
    return entry
