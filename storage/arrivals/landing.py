"""The landing place, in which a sender puts tables, and the copy of an announced table.

It is a folder of this machine or a remote store. Its content is not trusted, and belongs to the
sender until it is copied: a file is removed only if it did not change since it was read. A copy is
hashed while it is written, and gets its final name only if the digest is right. In a folder no link
is followed, not even one that appears between two steps: each part of a name is opened from the
descriptor of the folder above it.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from privacy.errors import InputError, refusals
from storage.arrivals.landing_remote import RemotePlace
from storage.arrivals.ready_files import MAX_READY_BYTES, READY_SUFFIX, ReadyFile
from storage.files.documents import FileDigest
from storage.files.private import fsync_directory, make_durable, open_private

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
        """Read a regular file whose path has no link (``ARRIVAL_INCOMPLETE``, ``ARRIVAL_NAME``)."""
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
        """Return inode, time and size of a file, None if there is none; ask before it is read."""
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


REFUSED_SUFFIX = ".refused"

_MAX_NAME_BYTES = 255


class LandingFolder:
    """The landing place of an installation: a folder, or an address that fsspec knows.

    Names are relative to it, with ``/`` between their parts. An address (``s3://bucket/prefix``)
    without an installed driver is a ConfigurationError (``LANDING_UNSUPPORTED``). If the place
    cannot be used, every method raises one with a code that begins with ``LANDING_``.
    """

    def __init__(self, place: str) -> None:
        local = place.removeprefix("file://")
        is_remote = "://" in local or "::" in local
        self.place = RemotePlace(local) if is_remote else LocalPlace(Path(local))

    def ready_names(self) -> list[str]:
        """Return the names of the ready files that wait, in sorted order."""
        return sorted(name for name in self.place.names() if name.endswith(READY_SUFFIX))

    def oldest(self) -> datetime | None:
        """Return the time of the oldest file, None if there is none."""
        return min(filter(None, map(self.place.modified, self.place.names())), default=None)

    def read_ready(self, name: str) -> bytes:
        """Return a ready file, cut off if it is too large; InputError if it cannot be read."""
        content = bytearray()
        with closing(self.place.chunks(name)) as chunks:
            for chunk in chunks:
                content += chunk
                if len(content) > MAX_READY_BYTES:
                    break
        return bytes(content)

    def remove(self, name: str, version: str | None) -> None:
        """Delete a file if it still has this version."""
        if version is not None and self.place.version(name) == version:
            self.place.remove(name)

    def remove_ready(self, name: str, sha256: str) -> None:
        """Delete a ready file and the empty folders of its table, unless it was written anew."""
        try:
            content = self.read_ready(name)
        except InputError:
            return  # gone already, or replaced by something else
        if hashlib.sha256(content).hexdigest() == sha256:
            self.place.remove_empty(name.removesuffix(READY_SUFFIX))
            self.place.remove(name)

    def refuse(self, name: str) -> None:
        """Rename a ready file, so that it is not read again; its table stays as it is."""
        refused = name + REFUSED_SUFFIX
        too_long = len(os.fsencode(refused)) > _MAX_NAME_BYTES
        if too_long or self.place.version(refused) is not None:
            digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            refused = f"{digest}-{os.urandom(4).hex()}{READY_SUFFIX}{REFUSED_SUFFIX}"
        self.place.rename(name, refused)


_SPARE_BYTES = 256 * 2**20  # for the ledger, which may share the disk
_OURS = re.compile(r"(\.staging-)?a-[0-9]{8}-[0-9a-f]{8}")


def is_ours(name: str) -> bool:
    """Return whether a name is that of an arrival's folder, or of its staging folder."""
    return _OURS.fullmatch(name) is not None


def content_name(ready: ReadyFile) -> str:
    """Return our name of a table, which messages show; it keeps the suffix ``.gz``."""
    is_compressed = not ready.is_folder and next(iter(ready.files)).lower().endswith(".gz")
    return "table.gz" if is_compressed else "table"


def copy_table(ready: ReadyFile, landing: LandingFolder, folder: Path) -> dict[str, str | None]:
    """Copy a table into a new folder, which appears once its content is verified and durable.

    The signature and the names of the announcement were checked before. The folder, of mode 0700,
    lies in an existing private folder; files have mode 0600. Returns the version of each file in
    the landing place, taken before it was read. Errors are ``ARRIVAL_INCOMPLETE`` and
    ``ARRIVAL_NAME`` of the table, ``ARRIVALS_FULL`` and ``ARRIVALS_UNWRITABLE`` of this disk.
    """
    if ready.size_bytes + _SPARE_BYTES > shutil.disk_usage(folder.parent).free:
        raise refusal("ARRIVALS_FULL")
    staging = folder.with_name(f".staging-{folder.name}")
    table = staging / content_name(ready)
    versions = {}
    try:
        staging.mkdir(mode=0o700)
        for name, announced in ready.files.items():
            target = table / name.partition("/")[2] if ready.is_folder else table
            _make_folders(target.parent)
            versions[name] = landing.place.version(name)
            _copy_verified(landing, name, announced, target)
        for inner, _, _ in os.walk(staging):
            fsync_directory(Path(inner))
        os.rename(staging, folder)
        fsync_directory(folder.parent)
    except OSError as error:
        raise refusal("ARRIVALS_UNWRITABLE", found=error.strerror) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return versions


def _make_folders(folder: Path) -> None:
    if not folder.is_dir():
        _make_folders(folder.parent)
        folder.mkdir(mode=0o700)


def _copy_verified(landing: LandingFolder, name: str, announced: FileDigest, target: Path) -> None:
    """Copy a file durably, at most its announced size, and compare its digest."""
    digest = hashlib.sha256()
    size = 0
    with open_private(target, "x") as copy, closing(landing.place.chunks(name)) as chunks:
        for chunk in chunks:
            size += len(chunk)
            if size > announced.size:
                break
            digest.update(chunk)
            copy.write(chunk)
        make_durable(copy)
    if size != announced.size or digest.hexdigest() != announced.sha256:
        raise refusal("ARRIVAL_INCOMPLETE content")
