"""The copy of an announced table: hashed while it is written, in its place only if it is right."""

import hashlib
import os
import re
import shutil
from contextlib import closing
from pathlib import Path

from privacy.errors import ConfigurationError, InputError
from storage.arrivals.landing import LandingFolder
from storage.arrivals.ready_files import AnnouncedFile, ReadyFile
from storage.files.private import fsync_directory, make_durable, open_private

_SPARE_BYTES = 256 * 2**20  # for the ledger, which may share the disk
_OURS = re.compile(r"(\.staging-)?a-[0-9]{8}-[0-9a-f]{8}")


def is_ours(name: str) -> bool:
    """Return whether a name is that of an arrival's folder, or of one that is being written."""
    return _OURS.fullmatch(name) is not None


def content_name(ready: ReadyFile) -> str:
    """Return the name of a table inside of its folder.

    The name that the sender chose would appear in messages. Readers look at this suffix alone.
    """
    is_compressed = not ready.is_folder and next(iter(ready.files)).lower().endswith(".gz")
    return "table.gz" if is_compressed else "table"


def copy_table(ready: ReadyFile, landing: LandingFolder, folder: Path) -> dict[str, str | None]:
    """Copy a table into a new folder, which appears when everything in it is verified and durable.

    The signature and the names of the announcement were checked. The folder is new, of mode 0700,
    in an existing private folder; files have mode 0600. Returns the version of each file in the
    landing place, as it was before it was read. Errors are ``ARRIVAL_INCOMPLETE`` and
    ``ARRIVAL_NAME`` of the table, ``ARRIVALS_FULL`` and ``ARRIVALS_UNWRITABLE`` of this place.
    """
    if ready.size_bytes + _SPARE_BYTES > shutil.disk_usage(folder.parent).free:
        raise ConfigurationError(
            "ARRIVALS_FULL",
            "expected room below CLUSTMIX_HOME for a table that has arrived, found too little; "
            "make room, the table waits in the landing place",
        )
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
        raise ConfigurationError(
            "ARRIVALS_UNWRITABLE",
            "expected to keep a table that has arrived below CLUSTMIX_HOME, found: "
            f"{error.strerror}; mend the disk, the table waits in the landing place",
        ) from None
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
    """Copy a file to the disk, no byte more than announced, and compare its digest."""
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
        raise InputError(
            "ARRIVAL_INCOMPLETE",
            "expected files of the announced size and digest, found another; write the table "
            "whole, then announce it anew (clustmix ready)",
        )
