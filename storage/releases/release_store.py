"""The release store: bundles that are written once and appear whole."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, time
from pathlib import Path

from privacy.errors import IntegrityError, refusals
from storage.files.documents import digest_of
from storage.files.private import file_locked, fsync_directory, write_durably
from storage.files.refs import ReleaseRef
from storage.keys.keys import PublicKey, SigningKey
from storage.releases.bundles import require_publishable, verify_bundle
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import APPROVAL_FILE, SIGNATURE_FILE, Approval, Signature

refusal = refusals(__package__)

_STAGING_PREFIX = ".staging-"
_LOCK_FILE = ".lock"


class ReleaseStore:
    """Folders ``<root>/<dataset>/<release_id>`` of published bundles.

    The root is made on the first use, readable by everybody. It is an IntegrityError if it, the
    folder of a dataset or a release is a symbolic link.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, ref: ReleaseRef) -> Path:
        """Return where a release is, or would be."""
        target = self.root / ref.dataset / ref.release_id
        for folder in (self.root, target.parent, target):
            _refuse_symlink(folder)
        return target

    def check_usable(self, dataset: str | None = None) -> None:
        """Refuse a store that could not take a release of a dataset; makes nothing.

        Ask before the budget is charged: a release that cannot be published is paid for all the
        same. It is a ConfigurationError if the root or the dataset's folder is no writable folder.
        """
        folders = (self.root, *(() if dataset is None else (self.root / dataset,)))
        for folder in folders:
            _refuse_symlink(folder)
            if folder.exists() and not folder.is_dir():
                raise refusal("RELEASES_UNUSABLE file", folder=folder)
        nearest = next(place for place in (folders[-1], *folders[-1].parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise refusal("RELEASES_UNUSABLE", nearest=nearest)

    def find(self, release_id: str) -> ReleaseRef | None:
        """Return the address of the release with this id, in whatever dataset it is, or None."""
        for folder in sorted(self.root.glob(f"[!.]*/{release_id}")):
            ref = ReleaseRef(dataset=folder.parent.name, release_id=release_id)
            if self.path(ref).is_dir():
                return ref
        return None

    def publish(
        self,
        files: Mapping[str, bytes],
        manifest: Manifest,
        *,
        signer: SigningKey,
        approval: Approval | None = None,
        officers: Sequence[PublicKey] = (),
        hospitals: Sequence[PublicKey] = (),
    ) -> Path:
        """Publish a bundle and return its folder: all of it or, after a crash, none of it.

        The bundle is written to a staging folder of the same file system, verified there as a
        reader would verify it, forced to the disk, dated to the day and renamed. It is Withheld if
        `require_publishable` says so, an IntegrityError if it exists or its reader would refuse it.
        """
        require_publishable(manifest)
        ref, content = manifest.ref, manifest.to_bytes()
        documents = {
            MANIFEST_FILE: content,
            SIGNATURE_FILE: Signature.signed(signer, manifest=digest_of(content)).to_bytes(),
        }
        if approval is not None:
            documents[APPROVAL_FILE] = approval.to_bytes()
        target = self.path(ref)
        with self.locked():
            if os.path.lexists(target):
                raise refusal("RELEASE_EXISTS", ref=ref)
            staging = self._empty_staging(ref)
            try:
                for name, content in {**files, **documents}.items():
                    write_durably(staging / name, content, mode=0o644)
                fsync_directory(staging)
                trusted = [signer.public, *hospitals]
                verify_bundle(staging, trusted=trusted, officers=officers)
                staging.chmod(0o755)
                # Times of files would publish the time of day at which a run ended.
                midnight = datetime.combine(manifest.created_on, time(), UTC).timestamp()
                for path in (*staging.iterdir(), staging):
                    os.utime(path, (midnight, midnight))
                if not target.parent.exists():
                    target.parent.mkdir()
                    target.parent.chmod(0o755)
                    fsync_directory(self.root)
                os.rename(staging, target)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            fsync_directory(target.parent)
        return target

    def _empty_staging(self, ref: ReleaseRef) -> Path:
        staging = self.root / f"{_STAGING_PREFIX}{ref.release_id}"
        _refuse_symlink(staging)
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(mode=0o700)
        return staging

    def clean_staging(self) -> None:
        """Delete what crashed publications left behind."""
        if not self.root.is_dir():
            return
        with self.locked():
            for left in self.root.glob(f"{_STAGING_PREFIX}*"):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time publish, clean or revoke."""
        self.check_usable()
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o755)
        with file_locked(self.root / _LOCK_FILE):
            yield


def manifests_in(store: ReleaseStore) -> Iterator[Manifest]:
    """Yield each readable manifest, by dataset and release; nothing is verified."""
    for path in sorted(store.root.glob(f"[!.]*/[!.]*/{MANIFEST_FILE}")):
        try:
            manifest = Manifest.read(path)
        except IntegrityError:
            continue
        yield manifest


def _refuse_symlink(path: Path) -> None:
    if path.is_symlink():
        raise refusal("SYMLINK", path=path)
