"""Decision of an officer about a waiting release, proved by a signature, not by its bearer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from flows.publication import Publisher, ReleaseOutcome
from privacy.errors import ConfigurationError, LedgerError
from privacy.ledger import EntryState, LedgerEntry
from storage.keys.keys import SigningKey
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import Approval, ApprovalStatement, require_decision, sign_approval

Decision = Literal["approve", "reject"]


class Decisions:
    """Carries out what the officers of an installation decide."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def approve(self, release_id: str, *, key: SigningKey, reason: str) -> ReleaseOutcome:
        """Publish a release that waits, with the signature of an officer who did not ask for it."""
        return self._publish(release_id, self._signed_here(release_id, key, "approve", reason))

    def reject(self, release_id: str, *, key: SigningKey, reason: str) -> LedgerEntry:
        """Withhold a release that waits for an officer. Its charge stands."""
        return self._withhold(release_id, self._signed_here(release_id, key, "reject", reason))

    def carry_out(self, release_id: str, approval: Approval) -> ReleaseOutcome | LedgerEntry:
        """Carry out a signed decision: publish the release that waits, or withhold it for good."""
        if approval.statement.decision == "approve":
            return self._publish(release_id, approval)
        return self._withhold(release_id, approval)

    def _publish(self, release_id: str, approval: Approval) -> ReleaseOutcome:
        with self._decided(release_id, approval) as entry:
            return self._publisher.publish_sealed(entry, approval)

    def _withhold(self, release_id: str, rejection: Approval) -> LedgerEntry:
        with self._decided(release_id, rejection) as entry:
            closed = self._publisher.entries.advance(
                entry.entry_id,
                EntryState.WITHHELD,
                note=rejection.statement.reason,
                signers=(rejection.key_id,),
            )
            self._publisher.pending.remove(release_id)
            return closed

    @contextmanager
    def _decided(self, release_id: str, approval: Approval) -> Iterator[LedgerEntry]:
        """Give the entry that waits, locked, once the decision is known to be about it."""
        with self._waiting(self._publisher.entries.of_release(release_id)) as entry:
            require_decision(
                approval,
                self._publisher.pending_manifest(entry),
                signer=self._publisher.keys.pipeline().public,
                officers=self._publisher.keys.officers(),
            )
            yield entry

    def _signed_here(
        self, release_id: str, key: SigningKey, decision: Decision, reason: str
    ) -> Approval:
        """Sign a decision on the machine of the pipeline, after checking who the officer is."""
        entry = self._publisher.entries.of_release(release_id)
        if key.key_id == entry.requester:
            raise ConfigurationError(
                "APPROVER_IS_REQUESTER",
                "expected the key of an officer other than the person who asked for the release; "
                "a second person has to decide",
            )
        self._publisher.keys.require_officer(key.key_id)
        with self._waiting(entry) as waiting:
            return _signed(self._publisher.pending_manifest(waiting), key, decision, reason)

    @contextmanager
    def _waiting(self, entry: LedgerEntry) -> Iterator[LedgerEntry]:
        """Give an entry as it is now, locked, if it waits for an officer."""
        with self._publisher.locked(entry.release_id), self._publisher.entries.closing(entry):
            current = self._publisher.entries.now(entry)
            if current.state is not EntryState.SEALED or not current.needs_approval:
                raise LedgerError(
                    "NOTHING_TO_DECIDE",
                    f"expected a release that waits for an officer, found {current.release_id} "
                    f"{current.state.value}",
                )
            yield current


def sign(folder: Path, *, key: SigningKey, decision: Decision, reason: str) -> Approval:
    """Sign a decision about a bundle that waits, with nothing but a copy of its folder."""
    manifest = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
    return _signed(manifest, key, decision, reason)


def _signed(manifest: Manifest, key: SigningKey, decision: Decision, reason: str) -> Approval:
    return sign_approval(ApprovalStatement.of(manifest, decision=decision, reason=reason), key)
