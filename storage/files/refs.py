"""Names that may be shown to anybody: datasets, releases, the files inside them, and hosts."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address

from privacy.errors import refusals

refusal = refusals(__package__)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_RELEASE_ID = re.compile(r"r-[0-9]{8}-[0-9a-f]{8}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}(\.[a-z0-9]{1,8}){0,2}")


def check_name(name: str) -> str:
    """Return a valid name of a dataset or run, which can be a folder's on any file system."""
    if _NAME.fullmatch(name) is None:
        raise refusal("INVALID_NAME", name=name[:80])
    return name


def check_file_name(name: str) -> str:
    """Return a name of a file: no separator, no dot first, two short suffixes at most."""
    if _FILE_NAME.fullmatch(name) is None:
        raise refusal("INVALID_FILE_NAME", name=name[:80])
    return name


def new_release_id() -> str:
    """Make a release id, such as ``r-20250131-0f3a9c21``: UTC date and 32 random bits."""
    return f"r-{datetime.now(UTC):%Y%m%d}-{os.urandom(4).hex()}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its address or as ``localhost``."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRef:
    """The public address of one release; a malformed part is a ConfigurationError."""

    dataset: str
    release_id: str

    def __post_init__(self) -> None:
        check_name(self.dataset)
        if _RELEASE_ID.fullmatch(self.release_id) is None:
            raise refusal("INVALID_RELEASE_ID", found=self.release_id[:80])

    def __str__(self) -> str:
        return f"{self.dataset}/{self.release_id}"
