"""Private files and folders: no link is followed, and a file is whole, durable or not there."""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from privacy.errors import IntegrityError, refusals
from storage.files.refs import check_file_name, check_name

refusal = refusals(__package__)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def ensure_private_directory(path: Path) -> Path:
    """Create a directory that only its owner can enter, or check that an existing one is such.

    Missing parents are created with the same mode. The mode of an existing directory is never
    changed: a wrong setting must not lock others out of a folder that is not ours. It is a
    ConfigurationError if the path cannot be made or written to, is a symbolic link or a file,
    belongs to another user, or can be entered by group or others.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        for folder in reversed(missing):
            # Another process may create it first; the checks below decide.
            folder.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise refusal("DIRECTORY_UNUSABLE made", path=path, fault=error.strerror) from None
    if not stat.S_ISDIR(status.st_mode):
        raise refusal("NOT_A_DIRECTORY", path=path)
    if status.st_uid != os.geteuid():
        raise refusal("DIRECTORY_OWNER", path=path)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 or mode & 0o700 != 0o700:
        raise refusal("DIRECTORY_MODE", path=path, mode=mode)
    if not os.access(path, os.W_OK | os.X_OK):
        raise refusal("DIRECTORY_UNUSABLE written", path=path)
    return path


def open_private(path: Path, how: Literal["x", "a"]) -> BinaryIO:
    """Open a file of mode 0600, to write a new one (``x``) or to append to it (``a``).

    No link is followed: a planted one could publish the content. ``x`` may raise FileExistsError.
    """
    flags = os.O_EXCL if how == "x" else os.O_APPEND
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb" if how == "x" else "ab")


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a new file (else IntegrityError) and force it to the disk, but not its folder."""
    try:
        handle = open_private(path, "x")
    except FileExistsError:
        raise refusal("ALREADY_WRITTEN", name=path.name) from None
    with handle:
        handle.write(content)
        make_durable(handle, mode=mode)


def make_durable(handle: BinaryIO, *, mode: int = 0o600) -> None:
    """Force what was written to the disk, then let the file have its mode."""
    handle.flush()
    os.fchmod(handle.fileno(), mode)
    os.fsync(handle.fileno())


def replace_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically and durably; several writers need a lock of their own."""
    staged = path.with_name(f".{path.name}.new")
    staged.unlink(missing_ok=True)  # of a process that died here
    try:
        write_durably(staged, content, mode=mode)
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Force the entries of a directory to the disk."""
    descriptor = os.open(path, _FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> int:
    """Open a regular file for reading (``FILE_MISSING``, ``FILE_NOT_REGULAR``); no link."""
    code, problem = "FILE_NOT_REGULAR", "is a symbolic link or not a regular file; remove it"
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            code, problem = "FILE_MISSING", "is missing or unreadable"
    raise IntegrityError(code, f"file {path.name} {problem}")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read at most `max_bytes` + 1 bytes of a regular file; the caller refuses the last one."""
    with os.fdopen(open_regular(path), "rb") as handle:
        return handle.read(max_bytes + 1)


def folder_locked(folder: Path) -> AbstractContextManager[None]:
    """Let one process at a time change the files of a folder."""
    return _locked(os.open(folder, _FOLDER))


def file_locked(path: Path) -> AbstractContextManager[None]:
    """Let one process at a time into a block, by a lock file, which is created if absent."""
    return _locked(open_lock(path))


def open_lock(path: Path) -> int:
    """Open a lock file, which is created with mode 0600 if it is absent."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def locks(descriptor: int) -> bool:
    """Lock a file or a folder, unless another process has locked it; without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_STAGING_PREFIX = ".staging-"


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of mode 0700 with files of mode 0600: all of it or, after a crash, none.

    A missing parent is made with mode 0700. It is an IntegrityError if the folder exists, as it is
    never replaced, and a ConfigurationError if a name is malformed or the parent is open to others.
    """
    parent = ensure_private_directory(target.parent)
    staging = parent / f"{_STAGING_PREFIX}{target.name}-{os.urandom(4).hex()}"
    staging.mkdir(mode=0o700)
    try:
        for name, content in files.items():
            write_durably(staging / check_file_name(name), content)
        fsync_directory(staging)
        try:
            # The target is missing or, after a crash of another kind, not empty: never replaced.
            os.rename(staging, target)
        except OSError:
            if not os.path.lexists(target):
                raise
            raise refusal("ALREADY_WRITTEN folder", name=target.name) from None
        fsync_directory(parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def staged(parent: Path) -> frozenset[str]:
    """Return the names of the folders that are being written below a folder."""
    found = parent.glob(f"{_STAGING_PREFIX}*-*")
    return frozenset(path.name.removeprefix(_STAGING_PREFIX).rpartition("-")[0] for path in found)


def remove_staging(parent: Path, name: str) -> None:
    """Delete what a crashed writer of this folder left behind. The writer must be dead."""
    for left in parent.glob(f"{_STAGING_PREFIX}{check_name(name)}-*"):
        shutil.rmtree(left, ignore_errors=True)
