"""Take a published release back: on the list that readers check, then in the ledger.

The list is written first. A run that dies in between leaves a release that readers refuse and that
the ledger still has as published; the same command again finishes it.
"""

import hashlib
from datetime import UTC, datetime

from privacy.errors import LedgerError
from privacy.ledger import EntryState, LedgerEntry
from storage.files.documents import Record
from storage.files.refs import ReleaseRef
from storage.keys.key_store import KeyStore
from storage.keys.keys import SigningKey
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.manifest import Manifest
from storage.releases.release_store import ReleaseStore, manifests_in
from storage.releases.revocations import REVOKED_FILE, Revocation, list_revocations
from storage.releases.signatures import require_reason
from tasks.steps.janitor import Janitor


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


class Revoker:
    """Takes releases of an installation back."""

    def __init__(
        self, *, ledger: LedgerDatabase, keys: KeyStore, releases: ReleaseStore, janitor: Janitor
    ) -> None:
        self._ledger = ledger
        self._keys = keys
        self._releases = releases
        self._janitor = janitor

    def revoke(self, release_id: str, *, key: SigningKey, reason: str) -> RevocationOutcome:
        """Take back a release, with every resample of it in the store, or a resample alone.

        A release that was revoked before keeps its date and its reason, which is published with the
        list. No bundle is removed. The key is an officer's; the person who asked for the release
        may hold it: nothing is gained by taking one's own release back.
        """
        self._keys.require_officer(key.key_id)
        require_reason(reason)
        entry, releases = self._falling(release_id)
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
            for ref, manifest_sha256 in releases.items()
        ]
        added = list_revocations(
            self._releases,
            revocations,
            signer=self._keys.pipeline(),
            trusted=self._keys.pipeline_public(),
        )
        if entry.release_id == release_id and entry.state is EntryState.PUBLISHED:
            entry = self._ledger.transition(
                entry.entry_id,
                EntryState.REVOKED,
                expected_from=EntryState.PUBLISHED,
                note=reason,
                signers=(key.key_id,),
            )
        new = {item.release_id for item in added}
        folders = [self._releases.path(ref) for ref in releases]
        return RevocationOutcome(
            listed=tuple(str(ref) for ref in releases if ref.release_id in new),
            listed_before=tuple(str(ref) for ref in releases if ref.release_id not in new),
            ledger_entry=entry.entry_id,
            ledger_state=entry.state.value,
            list_file=str(self._releases.root / REVOKED_FILE),
            bundles=tuple(str(folder) for folder in folders if folder.is_dir()),
        )

    def _falling(self, release_id: str) -> tuple[LedgerEntry, dict[ReleaseRef, str]]:
        """Return the entry that paid, and the releases that fall, with their manifests' digests."""
        entry = _entry_of(self._ledger, release_id)
        if entry is None:
            manifest = _resample_in(self._releases, release_id)
            paid = self._ledger.entry(manifest.ledger_entry)
            return paid, {manifest.ref: _digest_of(manifest)}
        if entry.state is EntryState.APPROVED:
            # Its run may have died between the store and the ledger.
            self._janitor.clean_up()
            entry = self._ledger.entry(entry.entry_id)
        return entry, _listed_with(entry, self._releases)


def _listed_with(entry: LedgerEntry, store: ReleaseStore) -> dict[ReleaseRef, str]:
    """Return what falls with the release that paid, itself first, with each manifest's digest."""
    release_id = entry.release_id
    if entry.state not in (EntryState.PUBLISHED, EntryState.REVOKED) or entry.digest is None:
        raise LedgerError(
            "NOTHING_TO_REVOKE",
            f"expected a published release, found {release_id} {entry.state.value}; nobody "
            "was given it",
        )
    releases = {ReleaseRef(dataset=entry.dataset, release_id=release_id): entry.digest}
    for manifest in manifests_in(store):
        if manifest.ledger_entry == entry.entry_id and manifest.release_id != release_id:
            releases[manifest.ref] = _digest_of(manifest)
    return releases


def _resample_in(store: ReleaseStore, release_id: str) -> Manifest:
    """Return the manifest of a resample, which pays for nothing."""
    for manifest in manifests_in(store):
        if manifest.release_id == release_id and manifest.resampled_from is not None:
            return manifest
    raise LedgerError(
        "RELEASE_UNKNOWN",
        f"expected a release of the ledger or a resample in the store, found no "
        f"{release_id[:80]!r}; clustmix ledger show lists the releases",
    )


def _entry_of(ledger: LedgerDatabase, release_id: str) -> LedgerEntry | None:
    """Return the entry that paid for a release; None of a resample."""
    paid = (entry for entry in ledger.entries() if entry.release_id == release_id)
    # An adjustment has no release.
    return next(paid, None) if release_id else None


def _digest_of(manifest: Manifest) -> str:
    return hashlib.sha256(manifest.to_bytes()).hexdigest()
