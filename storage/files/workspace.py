"""The private workspace of one run: created for it, locked by it, wiped with it."""

import os
import resource
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from privacy.errors import refusals
from storage.files import private
from storage.files.refs import check_file_name, check_name

refusal = refusals(__package__)

_ROOT_LOCK = ".lock"
_RUN_LOCK = ".alive"


class PrivateWorkspace(AbstractContextManager["PrivateWorkspace"]):
    """A directory of mode 0700 for the unnoised intermediates of one run.

    Its process holds a lock on it. However the process dies, the system frees the lock, and
    `purge_abandoned` then finds the directory. Leaving the block of the context manager purges it.

    Privacy
    -------
    Every file is raw or derived from raw data without noise, except what a caller seals with
    `write_once`. Nothing here may be read by another user: modes are 0700 and 0600; from then on
    the process has the umask 077, for libraries that open files themselves, and no core dumps.
    Deleting does not overwrite the disk: put the root on an encrypted file system.
    """

    def __init__(self, root: Path, run_id: str, lock: int) -> None:
        self._root = root
        self.folder = root / run_id
        self._lock: int | None = lock
        self.run_id = run_id

    @classmethod
    def create(cls, root: Path, run_id: str) -> Self:
        """Create and lock a new workspace (else IntegrityError) below a root of mode 0700."""
        check_name(run_id)
        os.umask(0o077)
        forbid_core_dumps()
        private.ensure_private_directory(root)
        with _root_locked(root):
            directory = root / run_id
            if os.path.lexists(directory):
                raise refusal("WORKSPACE_EXISTS", run_id=run_id)
            directory.mkdir(mode=0o700)
            lock = _try_lock(directory)
        if lock is None:
            raise refusal("WORKSPACE_LOCKED", run_id=run_id)
        return cls(root, run_id, lock)

    def __exit__(self, *raised: object) -> None:
        self.purge()

    def path(self, name: str) -> Path:
        """Return the path of a file or folder in the workspace, whether it exists or not."""
        return self.folder / check_file_name(name)

    def write_once(self, name: str, data: bytes) -> None:
        """Write bytes for good (else IntegrityError), whole or absent."""
        staged = _staged(self.folder)
        try:
            private.write_durably(staged, data)
            # A hard link fails if the target exists, like O_EXCL, and appears all at once.
            os.link(staged, self.path(name))
        except FileExistsError:
            raise refusal("ALREADY_WRITTEN file", name=name, run_id=self.run_id) from None
        finally:
            staged.unlink(missing_ok=True)
        private.fsync_directory(self.folder)

    def purge(self) -> None:
        """Delete the workspace and free its lock. A second call does nothing."""
        if self._lock is None:
            return
        with _root_locked(self._root):
            shutil.rmtree(self.folder)
            os.close(self._lock)
        self._lock = None


def store_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """Write named arrays into the workspace of a run, for worker processes that know its path.

    The file lies directly in the workspace and is replaced all at once. Arrays have any shape and a
    numeric, boolean or fixed-width text type (ValueError for objects, which would be pickled).
    """
    with replaced(path) as handle:
        write_npz(handle, arrays)


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file of mode 0600; after the block it replaces `path` atomically."""
    staged = _staged(path.parent)
    try:
        with private.open_private(staged, "x") as handle:
            yield handle
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read what `store_arrays` wrote; IntegrityError if missing, damaged or pickled."""
    try:
        return read_npz(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError):
        pass  # the reason may quote content: raised below without a context
    raise refusal("ARTIFACT_UNREADABLE", name=path.name)


def write_npz(target: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays, uncompressed: no pickles, and the same arrays give the same bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def read_npz(source: Path | IO[bytes]) -> dict[str, NDArray[Any]]:
    """Read what `write_npz` wrote; content with pickles is refused."""
    arrays = {}
    # Not np.load: it returns plain bytes for a member that is no array.
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            arrays[name.removesuffix(".npy")] = array
    return arrays


def live_run_ids(root: Path) -> frozenset[str]:
    """Return the runs whose process is alive, by their locks; the root may be missing."""
    if not root.is_dir():
        return frozenset()
    with _root_locked(root):
        return frozenset(run.name for run in _runs(root) if _lives(run))


def purge_abandoned(root: Path) -> None:
    """Delete the workspaces of dead runs; the root may be missing."""
    if not root.is_dir():
        return
    with _root_locked(root):
        for run in _runs(root):
            if not _lives(run):
                shutil.rmtree(run)


def forbid_core_dumps() -> None:
    """Disable core dumps of this process and its children, permanently."""
    # One byte rather than none: the Linux kernel hands a core to a program such as a crash reporter
    # whatever the limit is, except for this one (fs/coredump.c), and no core file fits into a byte.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    byte = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (byte, byte))


def _staged(directory: Path) -> Path:
    """Return a temporary path with a random name, as workers write in parallel."""
    return directory / f".staged-{os.urandom(8).hex()}"


def _runs(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]


def _lives(directory: Path) -> bool:
    lock = _try_lock(directory)
    if lock is not None:
        os.close(lock)
    return lock is None


def _try_lock(directory: Path) -> int | None:
    descriptor = private.open_lock(directory / _RUN_LOCK)
    if private.locks(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _root_locked(root: Path) -> AbstractContextManager[None]:
    """Serialise creating and purging, so that no half-created workspace looks abandoned."""
    return private.file_locked(root / _ROOT_LOCK)
