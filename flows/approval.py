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

    def decide(
        self, release_id: str, *, key: SigningKey, decision: Decision, reason: str
    ) -> ReleaseOutcome | LedgerEntry:
        """Sign with the key of an officer who did not ask for the release, and carry it out."""
        entry, keys = self._publisher.entries.of_release(release_id), self._publisher.keys
        if key.key_id == entry.requester:
            raise ConfigurationError(
                "APPROVER_IS_REQUESTER",
                "expected the key of an officer other than the person who asked for the release; "
                "a second person has to decide",
            )
        keys.require_officer(key.key_id)
        with self._waiting(entry) as waiting:
            manifest = self._publisher.pending_manifest(waiting)
        return self.carry_out(release_id, _signed(manifest, key, decision, reason))

    def carry_out(self, release_id: str, approval: Approval) -> ReleaseOutcome | LedgerEntry:
        """Publish a release that waits, or withhold it for good; its charge stands."""
        publisher, statement = self._publisher, approval.statement
        with self._waiting(publisher.entries.of_release(release_id)) as entry:
            require_decision(
                approval,
                publisher.pending_manifest(entry),
                signer=publisher.keys.pipeline().public,
                officers=publisher.keys.officers(),
            )
            if statement.decision == "approve":
                return publisher.publish_sealed(entry, approval)
            closed = publisher.entries.advance(
                entry.entry_id,
                EntryState.WITHHELD,
                note=statement.reason,
                signers=(approval.key_id,),
            )
            publisher.pending.remove(release_id)
            return closed

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
