"""Bundles that wait to be published, byte for byte: for an officer, and after a crash."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from privacy.errors import refusals
from storage.files.private import staged, write_durably, write_folder
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import APPROVAL_FILE, Approval

refusal = refusals(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingBundle:
    """A bundle that waits: its files, its manifest, not signed yet, and its approval, if any."""

    files: dict[str, bytes]
    manifest: Manifest
    approval: Approval | None


class PendingBundles:
    """Folders ``<root>/<release_id>`` of mode 0700, made on the first use."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, release_id: str) -> Path:
        """Return where the bundle of a release is, or would be."""
        return self.root / release_id

    def write(self, files: Mapping[str, bytes], manifest: Manifest) -> None:
        """Keep a bundle until it is published or rejected; a release has one (IntegrityError)."""
        write_folder(self.path(manifest.release_id), {**files, MANIFEST_FILE: manifest.to_bytes()})

    def approve(self, release_id: str, approval: Approval) -> None:
        """Store an officer's signature beside a bundle, before the ledger records the approval."""
        path = self.path(release_id) / APPROVAL_FILE
        # An earlier signature that the ledger has not recorded has no effect.
        path.unlink(missing_ok=True)
        write_durably(path, approval.to_bytes())

    def require(self, release_id: str) -> _PendingBundle:
        """Return the bundle of a release (IntegrityError if there is none, or it is damaged)."""
        folder = self.path(release_id)
        if not folder.is_dir():
            raise refusal("NOTHING_PENDING", release_id=release_id)
        try:
            manifest = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
            files = {name: (folder / name).read_bytes() for name in manifest.files}
            approval = folder / APPROVAL_FILE
            signed = Approval.from_bytes(approval.read_bytes()) if approval.exists() else None
        except OSError:
            raise refusal("PENDING_DAMAGED", release_id=release_id) from None
        for name, content in files.items():
            if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
                raise refusal("PENDING_DAMAGED", release_id=release_id)
        return _PendingBundle(files=files, manifest=manifest, approval=signed)

    def release_ids(self) -> frozenset[str]:
        """Return the releases that have a bundle, or one that is being written."""
        return staged(self.root) | {path.name for path in self.root.glob("[!.]*")}

    def remove(self, release_id: str) -> None:
        """Delete a bundle that was published or rejected; nothing if there is none."""
        shutil.rmtree(self.path(release_id), ignore_errors=True)
