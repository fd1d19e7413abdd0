"""The key of a measurement: the same content, settings and code are measured once.

The key is an HMAC, because a plain digest of a small table could be guessed and looked up.
"""

import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from storage.files.documents import canonical_json

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("clustmix", "flows", "privacy", "storage", "tasks")


def request_key(
    secret: bytes, *, content_sha256: str, settings: Mapping[str, Any], code: str | None = None
) -> str:
    """Return the idempotency key of a measurement, 64 hexadecimal digits.

    The settings are all that is public and shapes it, with order that means something in lists; the
    code is the digest of the program, this one if left out. Without the secret the key tells
    nothing of the content.
    """
    message = canonical_json(
        {"content": content_sha256, "settings": dict(settings), "code": code or code_sha256()}
    )
    return hmac.new(secret, b"clustmix-request-v1\0" + message, hashlib.sha256).hexdigest()


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """Return the digest of this program: name and content of each module and list, in order."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        found = (path for kind in ("*.py", "*.toml") for path in (_ROOT / package).rglob(kind))
        for path in sorted(found):
            name = path.relative_to(_ROOT).as_posix()
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
