"""The release store: bundles that are written once, appear whole and can be verified alone."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.digests import changed_byte, digest_of
from storage.files.private import (
    file_locked,
    fsync_directory,
    make_durable,
    open_private,
    open_regular,
    read_bounded,
)
from storage.files.refs import ReleaseRef
from storage.keys.keys import PublicKey, SigningKey
from storage.releases.claims import require_publishable, verify_claims
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import (
    APPROVAL_FILE,
    SIGNATURE_FILE,
    Approval,
    Signature,
    require_approval,
)

_STAGING_PREFIX = ".staging-"
_LOCK_FILE = ".lock"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBundle:
    """A bundle whose files and numbers agree with its signed manifest.

    Attributes
    ----------
    path : Path
        Folder of the bundle.
    manifest : Manifest
        Its manifest.
    manifest_sha256 : str
        Digest of the manifest file, to be compared with the one in the ledger: whoever has the
        key of the pipeline can sign a bundle that was never charged.
    signer : str
        Id of the key that signed the manifest.
    approved_by : str or None
        Id of the officer's key, or None if the release needed no approval.
    reason : str or None
        What the officer wrote.
    """

    path: Path
    manifest: Manifest
    manifest_sha256: str
    signer: str
    approved_by: str | None
    reason: str | None


class ReleaseStore:
    """Folders ``<root>/<dataset>/<release_id>`` of published bundles.

    Parameters
    ----------
    root : Path
        The store; created on the first use, readable by everybody.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, ref: ReleaseRef) -> Path:
        """Return where a release is, or would be.

        Parameters
        ----------
        ref : ReleaseRef
            Address of the release.

        Returns
        -------
        Path
            Folder under the root.

        Raises
        ------
        IntegrityError
            If the root, the dataset's folder or the release is a symbolic link.
        """
        target = self._root / ref.dataset / ref.release_id
        for folder in (self._root, target.parent, target):
            _refuse_symlink(folder)
        return target

    def check_usable(self, dataset: str | None = None) -> None:
        """Refuse a store that could not take a release; makes nothing.

        Ask before the budget is charged: a release that cannot be published is paid for all the
        same.

        Parameters
        ----------
        dataset : str, optional
            Name of the dataset, to check its folder too.

        Raises
        ------
        ConfigurationError
            If the root or the dataset's folder is not a folder, or is not writable.
        IntegrityError
            If one of them is a symbolic link.
        """
        folders = (self._root, *(() if dataset is None else (self._root / dataset,)))
        for folder in folders:
            _refuse_symlink(folder)
            if folder.exists() and not folder.is_dir():
                raise ConfigurationError(
                    "RELEASES_UNUSABLE",
                    f"expected a folder for releases at {folder}, found a file; move it away or "
                    "set CLUSTMIX_RELEASES to another folder",
                )
        nearest = next(place for place in (folders[-1], *folders[-1].parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise ConfigurationError(
                "RELEASES_UNUSABLE",
                f"expected to write releases below {nearest}, found that this is not permitted; "
                "mend its permissions or set CLUSTMIX_RELEASES to another folder",
            )

    def make_root(self) -> None:
        """Create the root, readable by everybody, if it is missing.

        Raises
        ------
        ConfigurationError or IntegrityError
            As `check_usable`.
        """
        self.check_usable()
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            self._root.chmod(0o755)

    @property
    def root(self) -> Path:
        """Folder of the store."""
        return self._root

    def find(self, release_id: str) -> ReleaseRef | None:
        """Return the address of the release with this id, in whatever dataset it is, or None.

        Parameters
        ----------
        release_id : str
            Id made by `storage.files.refs.new_release_id`; ids are unique over all datasets.
        """
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            ref = ReleaseRef(dataset=folder.name, release_id=release_id)
            if self.path(ref).is_dir():
                return ref
        return None

    def publish(
        self,
        ref: ReleaseRef,
        files: Mapping[str, bytes | Path],
        manifest: Manifest,
        *,
        signer: SigningKey,
        approval: Approval | None = None,
        officers: Sequence[PublicKey] = (),
    ) -> Path:
        """Publish a bundle: all of it or, after a crash, none of it.

        The bundle is written to a staging folder of the same file system, verified there as a
        reader would verify it, forced to the disk and renamed.

        Parameters
        ----------
        ref : ReleaseRef
            Address of the release.
        files : mapping of str to bytes or Path
            Content of each file, or a regular file to copy.
        manifest : Manifest
            Its `files` are the digests of `files`, see `storage.releases.manifest.file_digests`.
        signer : SigningKey
            Key of the pipeline.
        approval : Approval, optional
            Approval of an officer, given if and only if the manifest needs one.
        officers : sequence of PublicKey
            Keys that may approve.

        Returns
        -------
        Path
            Folder of the published bundle.

        Raises
        ------
        Withheld
            If the manifest is tainted, its analysis is not proven, or a check of its gate failed.
        IntegrityError
            If the release exists, the manifest is that of another release, a file differs from
            its digest, the events do not give the stated epsilon, or the approval is missing or
            not one of this release by an officer.
        """
        require_publishable(manifest)
        if manifest.ref != ref:
            raise IntegrityError(
                "MANIFEST_MISMATCH", f"the manifest is not that of release {ref}; rebuild it"
            )
        if files.keys() != manifest.files.keys():
            raise IntegrityError(
                "MANIFEST_MISMATCH",
                "the manifest must list exactly the files of the bundle; rebuild it",
            )
        if approval is not None and not manifest.needs_approval:
            raise IntegrityError(
                "APPROVAL_UNEXPECTED",
                "the manifest says that no approval is needed; rebuild it or leave that out",
            )
        content = manifest.to_bytes()
        documents = {
            MANIFEST_FILE: content,
            SIGNATURE_FILE: Signature.signed(signer, manifest=digest_of(content)).to_bytes(),
        }
        if approval is not None:
            documents[APPROVAL_FILE] = approval.to_bytes()
        target = self.path(ref)
        with self.locked():
            if os.path.lexists(target):
                raise IntegrityError(
                    "RELEASE_EXISTS",
                    f"release {ref} exists and is never replaced; publish under a new release id",
                )
            staging = self._root / f"{_STAGING_PREFIX}{ref.release_id}"
            _refuse_symlink(staging)
            if staging.exists():
                shutil.rmtree(staging)
            staging.mkdir(mode=0o700)
            try:
                for name, written in {**files, **documents}.items():
                    _write_file(staging, name, written)
                fsync_directory(staging)
                verify_bundle(staging, trusted=[signer.public], officers=officers)
                staging.chmod(0o755)
                if not target.parent.exists():
                    target.parent.mkdir()
                    target.parent.chmod(0o755)
                    fsync_directory(self._root)
                os.rename(staging, target)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            fsync_directory(target.parent)
        return target

    def clean_staging(self) -> tuple[str, ...]:
        """Delete what crashed publications left behind.

        Returns
        -------
        tuple of str
            Release ids of the deleted staging folders in sorted order.
        """
        if not self._root.is_dir():
            return ()
        with self.locked():
            left = sorted(
                entry.name
                for entry in os.scandir(self._root)
                if entry.name.startswith(_STAGING_PREFIX) and entry.is_dir(follow_symlinks=False)
            )
            for name in left:
                shutil.rmtree(self._root / name)
        return tuple(name.removeprefix(_STAGING_PREFIX) for name in left)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process publish, clean or revoke, so that none meets another halfway."""
        self.make_root()
        with file_locked(self._root / _LOCK_FILE):
            yield


def verify_bundle(
    path: Path, *, trusted: Sequence[PublicKey], officers: Sequence[PublicKey] | None = None
) -> VerifiedBundle:
    """Verify a bundle with nothing but the bundle and public keys.

    Parameters
    ----------
    path : Path
        Folder of the bundle.
    trusted : sequence of PublicKey
        Keys that may sign a manifest, got from the publisher by a way that the reader trusts.
    officers : sequence of PublicKey, optional
        Keys that may approve. Those in `trusted` if None; then an officer could also sign a
        manifest, so give them apart where it is known who is who.

    Returns
    -------
    VerifiedBundle
        The bundle, its manifest and who signed what.

    Raises
    ------
    ConfigurationError
        If `trusted` is empty.
    IntegrityError
        If a signature is wrong or of an unknown key; if a file is missing, extra, changed or not
        a regular file (names it, and the byte if one byte changed); if the manifest is malformed
        (names the field); if mu, rho or an epsilon is not what the events give; if an approval is
        needed and missing, or is not one of this release by somebody who may give it; or if the
        bundle should not have been published.
    """
    if not trusted:
        raise ConfigurationError(
            "NO_PUBLIC_KEY",
            "expected the public key of the publisher, found none; get it by a way that you trust "
            "and name its file",
        )
    if path.is_symlink() or not path.is_dir():
        raise IntegrityError("BUNDLE_MISSING", f"expected a folder with a release at {path}")
    signature = Signature.read(path / SIGNATURE_FILE)
    signer = signature.verify(trusted)
    content = read_bounded(path / MANIFEST_FILE, Manifest.MAX_BYTES)
    if digest_of(content) != signature.manifest:
        raise _changed(MANIFEST_FILE, changed_byte(signature.manifest, content))
    manifest = Manifest.from_bytes(content)
    documents = {MANIFEST_FILE, SIGNATURE_FILE} | (
        {APPROVAL_FILE} if manifest.needs_approval else set()
    )
    present = {entry.name for entry in os.scandir(path)} - documents
    for name in sorted(present - manifest.files.keys()):
        shown = name if name.isprintable() else ascii(name)
        raise IntegrityError("FILE_EXTRA", f"file {shown} is not in the manifest; remove it")
    for name in sorted(manifest.files.keys() - present):
        raise IntegrityError("FILE_MISSING", f"file {name} is missing; get the release again")
    for name, expected in sorted(manifest.files.items()):
        if digest_of(path / name) != expected:
            raise _changed(name, changed_byte(expected, path / name))
    verify_claims(manifest)
    officer = approval = None
    if manifest.needs_approval:
        approval = _read_approval(path)
        officer = require_approval(
            approval, manifest, signer=signer, officers=trusted if officers is None else officers
        )
    return VerifiedBundle(
        path=path,
        manifest=manifest,
        manifest_sha256=signature.manifest.sha256,
        signer=signer.key_id,
        approved_by=None if officer is None else officer.key_id,
        reason=None if approval is None else approval.statement.reason,
    )


def _refuse_symlink(path: Path) -> None:
    if path.is_symlink():
        raise IntegrityError(
            "SYMLINK",
            f"{path} is a symbolic link; a release store has none: remove it and find out who "
            "made it",
        )


def _changed(name: str, words: str) -> IntegrityError:
    return IntegrityError(
        "FILE_CHANGED",
        f"file {name} differs from its digest: {words} (the first byte is byte 0); get the "
        "release again",
    )


def _read_approval(path: Path) -> Approval:
    if not os.path.lexists(path / APPROVAL_FILE):
        raise IntegrityError(
            "APPROVAL_MISSING",
            f"expected the approval of an officer in file {APPROVAL_FILE}, found none; do not use "
            "the release",
        )
    return Approval.read(path / APPROVAL_FILE)


def _write_file(folder: Path, name: str, content: bytes | Path) -> None:
    with open_private(folder / name, "x") as target:
        if isinstance(content, bytes):
            target.write(content)
        else:
            with os.fdopen(open_regular(content), "rb") as source:
                shutil.copyfileobj(source, target, _COPY_BYTES)
        make_durable(target, mode=0o644)
