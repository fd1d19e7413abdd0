"""Folders that only their owner can enter."""

import os
import stat
from pathlib import Path

from privacy.errors import ConfigurationError


def ensure_private_directory(path: Path) -> Path:
    """Create a directory that only its owner can enter, or check that an existing one is such.

    Missing parents are created with the same mode. The mode of an existing directory is never
    changed: a wrong setting must not lock others out of a folder that is not ours.

    Parameters
    ----------
    path : Path
        Directory to create or check.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        If the path cannot be made or written to, is a symbolic link or a file, belongs to another
        user, or can be entered by group or others.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        for folder in reversed(missing):
            # Another process may create it first; the checks below decide.
            folder.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise ConfigurationError(
            "DIRECTORY_UNUSABLE",
            f"expected to make the private directory {path}, found: {error.strerror}; choose "
            "another place (CLUSTMIX_HOME) or mend its permissions",
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigurationError(
            "NOT_A_DIRECTORY",
            f"expected a directory at {path}, found a file or a symbolic link; remove it or "
            "choose another place",
        )
    if status.st_uid != os.geteuid():
        raise ConfigurationError(
            "DIRECTORY_OWNER",
            f"directory {path} belongs to another user; run as its owner or choose another place",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 or mode & 0o700 != 0o700:
        raise ConfigurationError(
            "DIRECTORY_MODE",
            f"directory {path} holds private data and must have mode 0700, found {mode:04o}; "
            f"run: chmod 700 {path}",
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(
            "DIRECTORY_UNUSABLE",
            f"expected to write to the private directory {path}, found it read-only; choose "
            "another place (CLUSTMIX_HOME)",
        )
    return path
