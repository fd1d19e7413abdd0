"""The private workspace of one run: created for it, locked by it, wiped with it."""

import fcntl
import hashlib
import os
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.private import ensure_private_directory
from storage.files.refs import ArtifactRef, check_file_name, check_name

_ROOT_LOCK = ".lock"
_RUN_LOCK = ".alive"


class PrivateWorkspace:
    """A directory of mode 0700 for the unnoised intermediates of one run.

    The process that created it holds a lock on it for as long as it lives. The operating system
    frees the lock when the process dies in whatever way, and `purge_abandoned` then finds the
    directory. Use it as a context manager: leaving the block purges it.

    Privacy
    -------
    Every file is raw or derived from raw data without noise, except what a caller seals with
    `write_once`. Nothing here may be read by another user: modes are 0700 and 0600 and the
    process umask is set to 077 when a workspace is created, for libraries that open files
    themselves; core dumps are off from then on. Deleting does not overwrite the disk: put the root
    on an encrypted file system.
    """

    def __init__(self, root: Path, run_id: str, lock: int) -> None:
        self._root = root
        self._directory = root / run_id
        self._lock: int | None = lock
        self.run_id = run_id

    @classmethod
    def create(cls, root: Path, run_id: str) -> Self:
        """Create and lock the workspace of a new run.

        Parameters
        ----------
        root : Path
            Parent of all workspaces, created with mode 0700 if missing.
        run_id : str
            Name of the run, see `storage.files.refs.check_name`.

        Returns
        -------
        PrivateWorkspace
            Empty workspace, locked by this process.

        Raises
        ------
        ConfigurationError
            If the name is malformed or the root is open to others.
        IntegrityError
            If the run already has a workspace.
        """
        check_name(run_id)
        os.umask(0o077)
        forbid_core_dumps()
        ensure_private_directory(root)
        with _root_locked(root):
            directory = root / run_id
            if os.path.lexists(directory):
                raise IntegrityError(
                    "WORKSPACE_EXISTS",
                    f"run {run_id} already has a workspace; start a new run under a new id",
                )
            directory.mkdir(mode=0o700)
            lock = _try_lock(directory)
        if lock is None:
            raise IntegrityError("WORKSPACE_LOCKED", f"run {run_id} is locked by another process")
        return cls(root, run_id, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.purge()

    def __repr__(self) -> str:
        return f"PrivateWorkspace(run_id={self.run_id!r})"

    @property
    def folder(self) -> Path:
        """The directory itself, for workers that read and write in it."""
        return self._directory

    def path(self, name: str) -> Path:
        """Return the path of a file or folder in the workspace, whether it exists or not.

        Parameters
        ----------
        name : str
            Name without a folder, see `storage.files.refs.check_file_name`.

        Returns
        -------
        Path
            Path directly under the workspace.

        Raises
        ------
        ConfigurationError
            If the name is malformed.
        """
        return self._directory / check_file_name(name)

    def write_arrays(self, name: str, **arrays: NDArray[Any]) -> ArtifactRef:
        """Write named arrays into one uncompressed npz file, replacing an earlier one.

        Parameters
        ----------
        name : str
            File name, for example ``shard-0001.npz``.
        **arrays : ndarray
            Arrays of any shape and of a numeric, boolean or fixed-width text type.

        Returns
        -------
        ArtifactRef
            Public address of the file. A reader sees the whole file or the previous one.

        Raises
        ------
        ConfigurationError
            If the name is malformed or an array holds Python objects.
        """
        store_arrays(self.path(name), **arrays)
        return ArtifactRef(run_id=self.run_id, name=name)

    def read_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Read the arrays that `write_arrays` stored under `name`.

        Parameters
        ----------
        name : str
            File name.

        Returns
        -------
        dict of str to ndarray
            The arrays by name.

        Raises
        ------
        ConfigurationError
            If the name is malformed.
        IntegrityError
            If the file is missing or damaged.
        """
        return load_arrays(self.path(name))

    def write_once(self, name: str, data: bytes) -> str:
        """Write bytes that no later call can replace, and force them to the disk.

        The bytes are complete under `name` or absent: a crash leaves no partial file there.

        Parameters
        ----------
        name : str
            File name.
        data : bytes
            Content.

        Returns
        -------
        str
            SHA-256 of the content in hexadecimal.

        Raises
        ------
        ConfigurationError
            If the name is malformed.
        IntegrityError
            If the file exists.
        """
        target = self.path(name)

        def write(handle: IO[bytes]) -> None:
            handle.write(data)

        exists = False
        try:
            # A hard link fails if the target exists, like O_EXCL, and appears all at once.
            _stage(self._directory, write, lambda staged: os.link(staged, target), durable=True)
        except FileExistsError:
            exists = True
        if exists:
            raise IntegrityError(
                "ALREADY_WRITTEN", f"file {name} of run {self.run_id} is already written"
            )
        return hashlib.sha256(data).hexdigest()

    def purge(self) -> None:
        """Delete the workspace and free its lock. A second call does nothing."""
        if self._lock is None:
            return
        with _root_locked(self._root):
            shutil.rmtree(self._directory)
            os.close(self._lock)
        self._lock = None


def store_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """Write named arrays into the workspace of a run, for worker processes that know its path.

    Parameters
    ----------
    path : Path
        File directly in the workspace; replaced if it exists, all at once.
    **arrays : ndarray
        As in `PrivateWorkspace.write_arrays`.

    Raises
    ------
    ConfigurationError
        If an array holds Python objects.
    """
    for key, array in arrays.items():
        if array.dtype.hasobject:
            raise ConfigurationError(
                "ARRAY_OF_OBJECTS",
                f"array {key!r} holds Python objects, which would be pickled; "
                "convert it to a numeric or text type",
            )

    def write(handle: IO[bytes]) -> None:
        with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
            for key, array in arrays.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    _stage(path.parent, write, lambda staged: os.replace(staged, path), durable=False)


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read an npz file by its path, for worker processes that are given paths of shards.

    Parameters
    ----------
    path : Path
        File written by `PrivateWorkspace.write_arrays`.

    Returns
    -------
    dict of str to ndarray
        The arrays by name. Pickled content is refused.

    Raises
    ------
    IntegrityError
        If the file is missing or damaged.
    """
    try:
        # Not np.load: it returns plain bytes for a member that is no array.
        with zipfile.ZipFile(path) as archive:
            arrays = {}
            for name in archive.namelist():
                with archive.open(name) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                arrays[name.removesuffix(".npy")] = array
            return arrays
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError):
        pass  # the reason may quote content: raised below without a context
    raise IntegrityError("ARTIFACT_UNREADABLE", f"file {path.name} is missing or damaged")


def live_run_ids(root: Path) -> frozenset[str]:
    """Return the runs whose process is alive.

    Parameters
    ----------
    root : Path
        Parent of all workspaces; may be missing.

    Returns
    -------
    frozenset of str
        Run ids whose lock is held.
    """
    if not root.is_dir():
        return frozenset()
    with _root_locked(root):
        return frozenset(run for run in _run_ids(root) if not _is_abandoned(root / run))


def purge_abandoned(root: Path) -> tuple[str, ...]:
    """Delete the workspaces of dead runs.

    Parameters
    ----------
    root : Path
        Parent of all workspaces; may be missing.

    Returns
    -------
    tuple of str
        Ids of the purged runs in sorted order.
    """
    if not root.is_dir():
        return ()
    purged = []
    with _root_locked(root):
        for run in _run_ids(root):
            if _is_abandoned(root / run):
                shutil.rmtree(root / run)
                purged.append(run)
    return tuple(purged)


def forbid_core_dumps() -> None:
    """Let no crash of this process, or of a process that it starts, write its memory to a disk.

    Cannot be undone in this process.
    """
    # One byte rather than none: the Linux kernel hands a core to a program such as a crash reporter
    # whatever the limit is, except for this one (fs/coredump.c), and no core file fits into a byte.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    byte = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (byte, byte))


def fsync_directory(path: Path) -> None:
    """Force the entries of a directory to the disk.

    Parameters
    ----------
    path : Path
        Existing directory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stage(
    directory: Path,
    write: Callable[[IO[bytes]], None],
    move: Callable[[Path], None],
    *,
    durable: bool,
) -> None:
    staged = directory / f".staged-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(staged, flags, 0o600), "wb") as handle:
            write(handle)
            if durable:
                handle.flush()
                os.fsync(handle.fileno())
        move(staged)
    finally:
        staged.unlink(missing_ok=True)
    if durable:
        fsync_directory(directory)


def _run_ids(root: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))


def _is_abandoned(directory: Path) -> bool:
    lock = _try_lock(directory)
    if lock is None:
        return False
    os.close(lock)
    return True


def _try_lock(directory: Path) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory / _RUN_LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _root_locked(root: Path) -> Iterator[None]:
    """Serialise creating and purging, so that no half-created workspace looks abandoned."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(root / _ROOT_LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
