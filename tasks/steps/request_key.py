"""The key of a measurement: a table that was measured before is not measured again.

The key is an HMAC, because a plain digest of a small table could be guessed and looked up. Nothing
of the program enters it but two version numbers, so that an upgrade charges nobody.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from storage.files.documents import canonical_json

ENCODING_VERSION = 1
"""Version of the way from a cell to a code and a weight, by any method.

Raise it if the same rows and settings give a method other codes, other weights or other patients:
every table that is released again is then measured again, and charged. The version of one method is
`tasks.methods.registry.MethodEntry.version`. `tests/tasks/test_golden_arrays.py` fails where
arrays change and their number does not.
"""


def request_key(
    secret: bytes, *, content_sha256: str, settings: Mapping[str, Any], method_version: int
) -> str:
    """Return the idempotency key of a measurement, 64 hexadecimal digits.

    The settings are the public ones that shape the measurement; the order of a list matters, the
    order of keys does not. The key reveals nothing of the content to those who lack the secret.
    """
    message = canonical_json(
        {
            "content": content_sha256,
            "settings": dict(settings),
            "version": [ENCODING_VERSION, method_version],
        }
    )
    return hmac.new(secret, b"clustmix-request-v1\0" + message, hashlib.sha256).hexdigest()
