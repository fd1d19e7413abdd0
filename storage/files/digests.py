"""Digests of files: SHA-256 and size."""

import hashlib
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from storage.files.documents import Record
from storage.files.private import open_regular

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal, lower case."""


class FileDigest(Record):
    """SHA-256 of a file, and its size in bytes."""

    sha256: Sha256
    size: Annotated[int, Field(ge=0)]


def digest_of(content: bytes | Path) -> FileDigest:
    """Return the digest of a content or regular file (else IntegrityError), in bounded memory."""
    if isinstance(content, bytes):
        return FileDigest(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    with os.fdopen(open_regular(content), "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(sha256=found, size=file.tell())
