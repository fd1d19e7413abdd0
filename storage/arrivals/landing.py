"""The landing place: where a sender puts tables. A folder of this machine, or a remote store.

What lies there is not trusted, and belongs to the sender until it was copied: a file is removed
only as long as it is what was read.
"""

import hashlib
import os
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from privacy.errors import InputError
from storage.arrivals.landing_local import LocalPlace
from storage.arrivals.landing_remote import RemotePlace
from storage.arrivals.ready_files import MAX_READY_BYTES, READY_SUFFIX

REFUSED_SUFFIX = ".refused"

_MAX_NAME_BYTES = 255


class Place(Protocol):
    """What a landing place can do; names are relative to it, with ``/`` between their parts."""

    def names(self) -> list[str]:
        """Return the names that lie directly in the place."""

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Read a file from its beginning."""

    def version(self, name: str) -> str | None:
        """Return a text that changes when a file is written anew, None if there is no file."""

    def remove(self, name: str) -> None:
        """Delete a file."""

    def rename(self, name: str, new: str) -> None:
        """Rename a file that lies directly in the place; one of the new name is replaced."""

    def remove_empty(self, folder: str) -> None:
        """Delete a folder and those below it, as far as they are empty."""


class LandingFolder:
    """The landing place of an installation: a folder, or an address that fsspec knows.

    An address (``s3://bucket/prefix``) of a kind that is not installed is a ConfigurationError
    (``LANDING_UNSUPPORTED``); every method raises one whose code begins with ``LANDING_`` if the
    place cannot be used.
    """

    def __init__(self, place: str) -> None:
        local = place.removeprefix("file://")
        self._place: Place = (
            RemotePlace(local) if "://" in local or "::" in local else LocalPlace(Path(local))
        )

    def ready_names(self) -> list[str]:
        """Return the names of the ready files that wait, in sorted order."""
        return sorted(name for name in self._place.names() if name.endswith(READY_SUFFIX))

    def read_ready(self, name: str) -> bytes:
        """Return a ready file; of one that is too large, enough to be refused.

        It is an InputError if it is gone, is a link or cannot be read.
        """
        content = bytearray()
        with closing(self._place.chunks(name)) as chunks:
            for chunk in chunks:
                content += chunk
                if len(content) > MAX_READY_BYTES:
                    break
        return bytes(content)

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Read a file of a table, whose name was checked, from its beginning.

        Raises
        ------
        InputError
            ``ARRIVAL_INCOMPLETE`` if it is absent or unreadable, ``ARRIVAL_NAME`` if it is no
            regular file or there is a link on the way.
        """
        return self._place.chunks(name)

    def version(self, name: str) -> str | None:
        """Return a text that changes when a file is written anew, None if there is no file.

        Ask before the file is read: what is removed later under this version is then what was
        read, or older.
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
            return  # gone already, or something else has taken its place
        if hashlib.sha256(content).hexdigest() == sha256:
            self._place.remove_empty(name.removesuffix(READY_SUFFIX))
            self._place.remove(name)

    def refuse(self, name: str) -> None:
        """Rename a ready file, so that it is not looked at again; its table stays as it is."""
        refused = name + REFUSED_SUFFIX
        too_long = len(os.fsencode(refused)) > _MAX_NAME_BYTES
        if too_long or self._place.version(refused) is not None:
            digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            refused = f"{digest}-{os.urandom(4).hex()}{READY_SUFFIX}{REFUSED_SUFFIX}"
        self._place.rename(name, refused)
