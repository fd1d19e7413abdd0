"""A landing place in a folder of this machine, which others may write to.

No link is followed, not even one that appears between two steps: each part of a name is opened from
the descriptor of the folder above it.
"""

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from privacy.errors import InputError
from storage.files.documents import refusals

refusal = refusals(__package__)
_CHUNK_BYTES = 2**20
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for a writer.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LocalPlace:
    """A folder of this machine, created with mode 0700 in an existing parent."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[str]:
        """Return the names directly in the folder."""
        with self._folder("") as (folder, _):
            return os.listdir(folder)

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Read a regular file whose path has no link."""
        with self._folder(name) as (folder, last):
            try:
                descriptor = os.open(last, _FILE_FLAGS, dir_fd=folder)
            except OSError as error:
                raise _refusal(error) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise refusal("ARRIVAL_NAME")
        with os.fdopen(descriptor, "rb") as handle:
            try:
                while chunk := handle.read(_CHUNK_BYTES):
                    yield chunk
            except OSError as error:
                raise _refusal(error) from None

    def version(self, name: str) -> str | None:
        """Return inode, time and size of a file, None if there is none."""
        try:
            with self._folder(name) as (folder, last):
                status = os.stat(last, dir_fd=folder, follow_symlinks=False)
        except (InputError, OSError):
            return None
        return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    def modified(self, name: str) -> datetime | None:
        """Return the time of a file directly in the folder, None if it is gone."""
        with self._folder("") as (folder, _), suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return datetime.fromtimestamp(status.st_mtime, UTC)
        return None

    def remove(self, name: str) -> None:
        """Delete a file."""
        with self._writing(), self._folder(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def rename(self, name: str, new: str) -> None:
        """Rename a file of the folder, or a link itself; the new name may exist."""
        with self._writing(), self._folder("") as (folder, _):
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)

    def remove_empty(self, folder: str) -> None:
        """Delete the empty folders of a table."""
        for path, _, _ in os.walk(self._root / folder, topdown=False):
            try:
                Path(path).rmdir()
            except OSError:
                continue  # holds a file that was not announced, which stays

    @contextmanager
    def _folder(self, name: str) -> Iterator[tuple[int, str]]:
        """Open the folder of a name without following a link; yield it with the last part."""
        *above, last = name.split("/")
        descriptor = self._open_root()
        try:
            for part in above:
                try:
                    inner = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
                except OSError as error:
                    raise _refusal(error) from None
                os.close(descriptor)
                descriptor = inner
            yield descriptor, last
        finally:
            os.close(descriptor)

    def _open_root(self) -> int:
        try:
            if not os.path.lexists(self._root):
                self._root.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._root, _FOLDER_FLAGS)
        except OSError as error:
            raise refusal("LANDING_UNREADABLE folder", found=error.strerror) from None
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o007 == 0 and os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            return descriptor
        os.close(descriptor)
        if mode & 0o007:
            raise refusal("LANDING_OPEN", mode=mode)
        raise refusal("LANDING_UNWRITABLE", found="Permission denied")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # the sender has taken it away
        except OSError as error:
            raise refusal("LANDING_UNWRITABLE", found=error.strerror) from None


def _refusal(error: OSError) -> Exception:
    """Return the error for a file that cannot be opened: a fault of the sender, or of the disk."""
    # A link: ELOOP, or ENOTDIR where a folder was expected. ENXIO: a socket.
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
        return refusal("ARRIVAL_NAME")
    if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
        return refusal("ARRIVAL_INCOMPLETE file")
    return refusal("LANDING_UNREADABLE disk", found=error.strerror)
