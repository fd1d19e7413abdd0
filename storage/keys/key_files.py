"""Files of keys: written whole and never replaced, read only if nobody else could have read them.

No message holds a part of a file.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.private import folder_locked, open_regular, replace_durably

SECRET_BYTES = 32
"""Length of a secret that keys a digest."""

_MAX_KEY_BYTES = 10_000


def read_key_file(path: Path, *, private: bool) -> bytes:
    """Read a regular file of at most 10,000 bytes, not a link.

    A private one has to be this user's, with mode 0600 or 0400. The ConfigurationError is
    ``KEY_MISSING``, ``KEY_NOT_REGULAR``, ``KEY_OWNER``, ``KEY_MODE`` or ``KEY_INVALID``.
    """
    problem = None
    try:
        descriptor = open_regular(path)
    except IntegrityError as error:
        problem = error
    if problem is not None:
        code = problem.code.replace("FILE", "KEY")
        raise ConfigurationError(code, f"expected a key in {path}: {problem.message}")
    with os.fdopen(descriptor, "rb") as handle:
        status = os.fstat(handle.fileno())
        if private and status.st_uid != os.geteuid():
            raise ConfigurationError(
                "KEY_OWNER",
                f"expected the private key {path} to be yours, found another owner; run as its "
                "owner or use your own key",
            )
        mode = stat.S_IMODE(status.st_mode)
        if private and mode not in (0o600, 0o400):
            raise ConfigurationError(
                "KEY_MODE",
                f"expected mode 0600 of the private key {path}, found {mode:04o}; replace the key "
                f"if others could read it, else run: chmod 600 {path}",
            )
        content = handle.read(_MAX_KEY_BYTES + 1)
    if len(content) > _MAX_KEY_BYTES:
        raise key_invalid(path, f"at most {_MAX_KEY_BYTES} bytes")
    return content


def write_key_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file that appears whole and forced to the disk, and replaces none.

    The ConfigurationError is ``KEY_EXISTS`` or ``KEY_UNWRITABLE``.
    """
    try:
        with folder_locked(path.parent):
            if os.path.lexists(path):
                raise key_exists(path)
            # Appears all at once and leaves no second name of a key behind, as a link would.
            replace_durably(path, content, mode=mode)
    except OSError as error:
        raise ConfigurationError(
            "KEY_UNWRITABLE",
            f"expected to write the key {path}, found: {error.strerror}; choose an existing "
            "folder that you may write to",
        ) from None


def read_secret(path: Path) -> bytes:
    """Read a file of 32 random bytes, as a private key is read by `read_key_file`."""
    secret = read_key_file(path, private=True)
    if len(secret) != SECRET_BYTES:
        raise key_invalid(path, f"{SECRET_BYTES} bytes")
    return secret


def make_secret(path: Path) -> bytes:
    """Return the 32 bytes of a file, made by the operating system at the first use.

    Any number of processes may call it for the first time at once: all get the same bytes. No seed
    is taken. Errors are those of `read_secret` and `write_key_file`.
    """
    if not os.path.lexists(path):
        write_if_first(
            lambda place: write_key_file(place, os.urandom(SECRET_BYTES), mode=0o600), path
        )
    return read_secret(path)


def write_if_first(write: Callable[[Path], None], path: Path) -> None:
    """Call `write` for a key that other processes may be writing too; the first one is kept."""
    try:
        write(path)
    except ConfigurationError as error:
        if error.code != "KEY_EXISTS":
            raise


def key_exists(path: Path) -> ConfigurationError:
    """Return the error for a key that would be replaced."""
    return ConfigurationError(
        "KEY_EXISTS", f"key {path} exists and is never replaced; choose another name"
    )


def key_invalid(path: Path, expected: str) -> ConfigurationError:
    """Return the error for a file that does not hold what it should."""
    return ConfigurationError(
        "KEY_INVALID", f"expected {expected}, found something else in {path}; replace the file"
    )
