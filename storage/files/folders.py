"""Private folders that appear whole: written beside their place, forced to the disk, renamed."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from privacy.errors import IntegrityError
from storage.files.private import ensure_private_directory, fsync_directory, write_durably
from storage.files.refs import check_file_name, check_name

_STAGING_PREFIX = ".staging-"


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of mode 0700 with files of mode 0600: all of it or, after a crash, none.

    The parent is made with mode 0700 if missing. It is an IntegrityError if the folder exists, as
    it is never replaced, and a ConfigurationError if a name is malformed (`check_file_name`) or the
    parent is open to others.
    """
    parent = ensure_private_directory(target.parent)
    staging = parent / f"{_STAGING_PREFIX}{target.name}-{os.urandom(4).hex()}"
    staging.mkdir(mode=0o700)
    exists = False
    try:
        for name, content in files.items():
            write_durably(staging / check_file_name(name), content)
        fsync_directory(staging)
        try:
            # The target is missing or, after a crash of another kind, not empty: never replaced.
            os.rename(staging, target)
        except OSError:
            exists = os.path.lexists(target)
            if not exists:
                raise
        fsync_directory(parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if exists:
        raise IntegrityError(
            "ALREADY_WRITTEN", f"folder {target.name} is already written and never replaced"
        )


def staged(parent: Path) -> frozenset[str]:
    """Return the names of the folders that are being written below a folder."""
    found = parent.glob(f"{_STAGING_PREFIX}*-*")
    return frozenset(path.name.removeprefix(_STAGING_PREFIX).rpartition("-")[0] for path in found)


def remove_staging(parent: Path, name: str) -> None:
    """Delete what a crashed writer of this folder left behind. The writer must be dead."""
    for left in parent.glob(f"{_STAGING_PREFIX}{check_name(name)}-*"):
        shutil.rmtree(left, ignore_errors=True)
