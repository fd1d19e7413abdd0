"""The landing place, in which a sender puts tables, and the copy of an announced table.

It is a folder of this machine or a remote store. Its content is not trusted, and belongs to the
sender until it is copied: a file is removed only if it did not change since it was read. A copy is
hashed while it is written, and gets its final name only if the digest is right.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Generator
from contextlib import closing
from datetime import datetime
from pathlib import Path

from privacy.errors import InputError
from storage.arrivals.landing_local import LocalPlace
from storage.arrivals.landing_remote import RemotePlace
from storage.arrivals.ready_files import MAX_READY_BYTES, READY_SUFFIX, AnnouncedFile, ReadyFile
from storage.files.documents import refusals
from storage.files.private import fsync_directory, make_durable, open_private

refusal = refusals(__package__)
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
        self._place = RemotePlace(local) if is_remote else LocalPlace(Path(local))

    def ready_names(self) -> list[str]:
        """Return the names of the ready files that wait, in sorted order."""
        return sorted(name for name in self._place.names() if name.endswith(READY_SUFFIX))

    def oldest(self) -> datetime | None:
        """Return the time of the oldest file, None if there is none."""
        return min(filter(None, map(self._place.modified, self._place.names())), default=None)

    def read_ready(self, name: str) -> bytes:
        """Return a ready file, cut off if it is too large; InputError if it cannot be read."""
        content = bytearray()
        with closing(self._place.chunks(name)) as chunks:
            for chunk in chunks:
                content += chunk
                if len(content) > MAX_READY_BYTES:
                    break
        return bytes(content)

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Read a file of a table (``ARRIVAL_INCOMPLETE``; ``ARRIVAL_NAME``: no regular file)."""
        return self._place.chunks(name)

    def version(self, name: str) -> str | None:
        """Return a text that changes when a file is written anew, None if there is no file.

        Ask for it before the file is read, so that `remove` never deletes newer content.
        """
        return self._place.version(name)

    def remove(self, name: str, version: str | None) -> None:
        """Delete a file, unless it was written anew since it had this version."""
        if version is not None and self._place.version(name) == version:
            self._place.remove(name)

    def remove_ready(self, name: str, sha256: str) -> None:
        """Delete a ready file and the empty folders of its table, unless it was written anew."""
        try:
            content = self.read_ready(name)
        except InputError:
            return  # gone already, or replaced by something else
        if hashlib.sha256(content).hexdigest() == sha256:
            self._place.remove_empty(name.removesuffix(READY_SUFFIX))
            self._place.remove(name)

    def refuse(self, name: str) -> None:
        """Rename a ready file, so that it is not read again; its table stays as it is."""
        refused = name + REFUSED_SUFFIX
        too_long = len(os.fsencode(refused)) > _MAX_NAME_BYTES
        if too_long or self._place.version(refused) is not None:
            digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            refused = f"{digest}-{os.urandom(4).hex()}{READY_SUFFIX}{REFUSED_SUFFIX}"
        self._place.rename(name, refused)


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
            versions[name] = landing.version(name)
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


def _copy_verified(
    landing: LandingFolder, name: str, announced: AnnouncedFile, target: Path
) -> None:
    """Copy a file durably, at most its announced size, and compare its digest."""
    digest = hashlib.sha256()
    size = 0
    with open_private(target, "x") as copy, closing(landing.chunks(name)) as chunks:
        for chunk in chunks:
            size += len(chunk)
            if size > announced.size:
                break
            digest.update(chunk)
            copy.write(chunk)
        make_durable(copy)
    if size != announced.size or digest.hexdigest() != announced.sha256:
        raise refusal("ARRIVAL_INCOMPLETE content")
