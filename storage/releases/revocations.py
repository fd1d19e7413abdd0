"""The signed list of revoked releases, in the root of the release store.

A published bundle cannot be recalled, so its verification consults this list, which only grows. A
reader needs a fresh copy: an old one has a valid signature and fewer entries.
"""

import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from privacy.errors import refusals
from storage.files.documents import Record, ReleaseId, Sha256, Text
from storage.files.private import replace_durably
from storage.files.refs import check_name
from storage.keys.keys import KeyId, PublicKey, SigningKey
from storage.releases.bundles import VerifiedBundle
from storage.releases.release_store import ReleaseStore
from storage.releases.signatures import Reason, SignedDocument

refusal = refusals(__package__)

REVOKED_FILE = "revoked.json"


class Revocation(Record):
    """A release that was taken back; `ledger_entry` paid for it, and the date is in UTC."""

    dataset: Annotated[str, AfterValidator(check_name)]
    release_id: ReleaseId
    ledger_entry: Text
    manifest_sha256: Sha256
    reason: Reason
    revoked_by: KeyId
    revoked_on: date


class _RevocationList(SignedDocument):
    """All revocations of a store, in order, each release once, signed by the pipeline."""

    FILE: ClassVar[str] = REVOKED_FILE
    MAX_BYTES: ClassVar[int] = 16_000_000
    CODE: ClassVar[str] = "REVOKED_INVALID"
    REMEDY: ClassVar[str] = "get the list again from the publisher"
    DOMAIN: ClassVar[bytes] = b"clustmix-revoked-v1\0"

    format_version: Literal[1] = 1
    revocations: tuple[Revocation, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len({revocation.release_id for revocation in self.revocations}) < len(self.revocations):
            raise ValueError("a release is listed twice")
        return self

    def of(self, bundle: VerifiedBundle) -> Revocation | None:
        """Return the revocation of a release, or of the one that it was sampled from, or None."""
        # Also of one that was sampled while its origin was being taken back.
        manifest = bundle.manifest
        ids = {manifest.release_id, manifest.resampled_from, *manifest.parts}
        for item in self.revocations:
            if item.release_id in ids or item.manifest_sha256 == bundle.manifest_sha256:
                return item
        return None

    def require_not_revoked(self, bundle: VerifiedBundle) -> None:
        """Refuse a revoked release, and a resample of one (``RELEASE_REVOKED``)."""
        item, manifest = self.of(bundle), bundle.manifest
        if item is None:
            return
        whose = f"release {manifest.release_id}"
        if item.release_id in (manifest.resampled_from, *manifest.parts):
            whose = f"release {item.release_id}, which {manifest.release_id} was made of,"
        raise refusal("RELEASE_REVOKED", whose=whose, date=item.revoked_on, reason=item.reason)


def read_revocations(path: Path, *, trusted: Sequence[PublicKey]) -> _RevocationList:
    """Read a list and verify its signature (IntegrityError); it may be an old copy."""
    listed = _RevocationList.read(path)
    listed.verify(trusted)
    return listed


def list_revocations(
    store: ReleaseStore,
    revocations: Sequence[Revocation],
    *,
    signer: SigningKey,
    trusted: Sequence[PublicKey],
) -> tuple[Revocation, ...]:
    """Add releases to the list of a store, and return those that were not on it.

    The new list is on disk at return, signed with the key of the pipeline. Entries never change.
    Nothing is written if the present list does not verify with a `trusted` key (IntegrityError).
    """
    path = store.root / REVOKED_FILE
    with store.locked():
        known: tuple[Revocation, ...] = ()
        if os.path.lexists(path):
            known = read_revocations(path, trusted=trusted).revocations
        all_of_them = {item.release_id: item for item in known}
        for item in revocations:
            all_of_them.setdefault(item.release_id, item)
        added = tuple(all_of_them.values())[len(known) :]
        if added:
            content = _RevocationList.signed(signer, revocations=(*known, *added)).to_bytes()
            # Refuse to write a list that cannot be read again.
            _RevocationList.from_bytes(content)
            replace_durably(path, content, mode=0o644)
    return added


def list_beside(bundle: Path) -> Path | None:
    """Return the list of the store that holds a bundle, two folders above it, or None."""
    path = bundle.resolve().parent.parent / REVOKED_FILE
    return path if os.path.lexists(path) else None
