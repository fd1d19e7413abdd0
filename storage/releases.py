"""The release store: bundles that are written once, appear whole and can be verified alone."""

import errno
import fcntl
import hashlib
import math
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from privacy.accountants.gaussian import GaussianAccountant
from privacy.errors import ClustMixError, ConfigurationError, IntegrityError, Withheld
from privacy.events import event_from_dict
from privacy.parameters import Adjacency
from storage.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, parse_manifest
from storage.refs import ReleaseRef
from storage.workspace import fsync_directory

_STAGING_PREFIX = ".staging-"
_LOCK_FILE = ".lock"
_RELATIVE_TOLERANCE = 1e-6
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBundle:
    """A bundle whose files and numbers agree with its manifest.

    Attributes
    ----------
    path : Path
        Folder of the bundle.
    manifest : Manifest
        Its manifest.
    manifest_sha256 : str
        Digest of the manifest file. Compare it with the digest in the ledger or with one that
        the publisher told you: the bundle alone cannot show that it was not rewritten as a whole.
    """

    path: Path
    manifest: Manifest
    manifest_sha256: str


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

    def find(self, release_id: str) -> ReleaseRef | None:
        """Return the address of the release with this id, in whatever dataset it is, or None.

        Parameters
        ----------
        release_id : str
            Id made by `storage.refs.new_release_id`; ids are unique over all datasets.
        """
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            ref = ReleaseRef(dataset=folder.name, release_id=release_id)
            if self.path(ref).is_dir():
                return ref
        return None

    def publish(
        self, ref: ReleaseRef, files: Mapping[str, bytes | Path], manifest: Manifest
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
            Its `files` are the digests of `files`, see `storage.manifest.file_digests`.

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
            its digest, or the events do not give the stated epsilon.
        """
        _require_publishable(manifest)
        if manifest.ref != ref:
            raise IntegrityError(
                "MANIFEST_MISMATCH", f"the manifest is not that of release {ref}; rebuild it"
            )
        if files.keys() != manifest.files.keys():
            raise IntegrityError(
                "MANIFEST_MISMATCH",
                "the manifest must list exactly the files of the bundle; rebuild it",
            )
        target = self.path(ref)
        with self._locked():
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
                for name, content in files.items():
                    _write_file(staging, name, content)
                _write_file(staging, MANIFEST_FILE, manifest.to_bytes())
                fsync_directory(staging)
                verify_bundle(staging)
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
        with self._locked():
            left = sorted(
                entry.name
                for entry in os.scandir(self._root)
                if entry.name.startswith(_STAGING_PREFIX) and entry.is_dir(follow_symlinks=False)
            )
            for name in left:
                shutil.rmtree(self._root / name)
        return tuple(name.removeprefix(_STAGING_PREFIX) for name in left)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process publish or clean, so that cleaning never meets a live publication."""
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            self._root.chmod(0o755)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._root / _LOCK_FILE, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def verify_bundle(path: Path) -> VerifiedBundle:
    """Verify a bundle with nothing but the bundle.

    Parameters
    ----------
    path : Path
        Folder of the bundle.

    Returns
    -------
    VerifiedBundle
        The bundle, its manifest and the manifest's digest.

    Raises
    ------
    IntegrityError
        If a file is missing, extra, changed or not a regular file (names it); if the manifest is
        malformed (names the field); if mu, rho or an epsilon is not what the events give; or if
        the bundle should not have been published.
    """
    if path.is_symlink() or not path.is_dir():
        raise IntegrityError("BUNDLE_MISSING", f"expected a folder with a release at {path}")
    content = _read_manifest(path)
    manifest = parse_manifest(content)
    present = {entry.name for entry in os.scandir(path)} - {MANIFEST_FILE}
    for name in sorted(present - manifest.files.keys()):
        raise IntegrityError("FILE_EXTRA", f"file {name} is not in the manifest; remove it")
    for name in sorted(manifest.files.keys() - present):
        raise IntegrityError("FILE_MISSING", f"file {name} is missing; get the release again")
    for name in sorted(manifest.files):
        if _digest(path / name) != manifest.files[name]:
            raise IntegrityError(
                "FILE_CHANGED", f"file {name} differs from its SHA-256; get the release again"
            )
    _verify_claims(manifest)
    return VerifiedBundle(
        path=path, manifest=manifest, manifest_sha256=hashlib.sha256(content).hexdigest()
    )


def _refuse_symlink(path: Path) -> None:
    if path.is_symlink():
        raise IntegrityError(
            "SYMLINK",
            f"{path} is a symbolic link; a release store has none: remove it and find out who "
            "made it",
        )


def _require_publishable(manifest: Manifest) -> None:
    if manifest.tainted:
        raise Withheld(
            "TAINTED", "the noise came from a source for tests; run without it to publish"
        )
    if manifest.analysis != "proven":
        raise Withheld(
            "ANALYSIS_NOT_PROVEN",
            "only a release with analysis 'proven' is published; change the site file and run "
            "again",
        )
    failed = sorted(record.check for record in manifest.gate if not record.passed)
    if failed:
        raise Withheld("GATE_FAILED", f"the release gate failed: {', '.join(failed)}")


def _verify_claims(manifest: Manifest) -> None:
    problem = ""
    try:
        _require_publishable(manifest)
        events = [event_from_dict(event) for event in manifest.events]
        totals = {}
        for adjacency in (Adjacency(manifest.adjacency), Adjacency.REPLACE_ONE):
            accountant = GaussianAccountant(adjacency=adjacency)
            for event in events:
                accountant = accountant.compose(event)
            totals[adjacency] = accountant
        stated = totals[Adjacency(manifest.adjacency)]
        expected = {
            "mu": stated.mu,
            "rho": stated.rho,
            "epsilon": stated.epsilon(delta=manifest.delta),
            "replace_one_epsilon": totals[Adjacency.REPLACE_ONE].epsilon(delta=manifest.delta),
        }
    except ClustMixError as error:
        problem = error.message
    except (ArithmeticError, TypeError, ValueError):
        problem = "field 'events' holds a value that no mechanism has"
    if problem:
        raise IntegrityError("MANIFEST_CLAIM", f"file {MANIFEST_FILE}: {problem}")
    for name, value in expected.items():
        if not math.isclose(getattr(manifest, name), value, rel_tol=_RELATIVE_TOLERANCE):
            raise IntegrityError(
                "MANIFEST_CLAIM",
                f"file {MANIFEST_FILE}: field '{name}' is not what its events give; do not rely "
                "on the stated guarantee",
            )


def _read_manifest(path: Path) -> bytes:
    descriptor = _open_regular(path / MANIFEST_FILE)
    with os.fdopen(descriptor, "rb") as handle:
        return handle.read(MAX_MANIFEST_BYTES + 1)


def _digest(path: Path) -> str:
    with os.fdopen(_open_regular(path), "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _open_regular(path: Path) -> int:
    """Open a file for reading that is neither a link nor a device, pipe or folder."""
    code = "FILE_MISSING"
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        code = "FILE_NOT_REGULAR"
    except OSError as error:
        code = "FILE_NOT_REGULAR" if error.errno == errno.ELOOP else "FILE_MISSING"
    raise IntegrityError(
        code,
        f"file {path.name} is missing or unreadable"
        if code == "FILE_MISSING"
        else f"file {path.name} is a symbolic link or not a regular file; remove it",
    )


def _write_file(folder: Path, name: str, content: bytes | Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(folder / name, flags, 0o600), "wb") as target:
        if isinstance(content, bytes):
            target.write(content)
        else:
            with os.fdopen(_open_regular(content), "rb") as source:
                shutil.copyfileobj(source, target, _COPY_BYTES)
        target.flush()
        os.fchmod(target.fileno(), 0o644)
        os.fsync(target.fileno())
