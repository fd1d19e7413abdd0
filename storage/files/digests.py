"""Digests of files that tell which byte changed, not only that one did.

Beside its SHA-256 a file has two sums over its bytes ``b_i``, modulo the prime ``p = 2**61 - 1``:
``sum(b_i)`` and ``sum(i * b_i)``. A byte that was replaced at position ``i`` by one larger by ``d``
changes them by ``d`` and ``i * d``, so that both are known from the two differences: the sums are
syndromes of a Reed-Solomon code over the field of ``p`` elements, which corrects one error
(Peterson, "Encoding and error-correction procedures for the Bose-Chaudhuri codes", IRE
Transactions on Information Theory 6, 1960). The sums prove nothing by themselves. The SHA-256 of
the file with the old byte put back does.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from storage.files.private import open_regular

PRIME = 2**61 - 1
"""Modulus of the sums; every file that fits a disk has fewer bytes."""

_WIDTH = 512
_CHUNK_BYTES = _WIDTH**2
_INDEX = np.arange(_WIDTH, dtype=np.int64)

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal, lower case."""

_Residue = Annotated[int, Field(ge=0, lt=PRIME)]


class FileDigest(BaseModel):
    """What identifies the content of a file and locates one changed byte.

    `size` is in bytes, `byte_sum` the sum of all bytes and `position_sum` that of position times
    byte, with positions counted from 0; all modulo ``2**61 - 1``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Sha256
    size: _Residue
    byte_sum: _Residue
    position_sum: _Residue


def digest_of(content: bytes | Path) -> FileDigest:
    """Compute the digest of a content or regular file (else IntegrityError), in bounded memory."""
    sha256 = hashlib.sha256()
    size = byte_sum = position_sum = 0
    for chunk in _chunks(content):
        sha256.update(chunk)
        chunk_sum, chunk_position_sum = _sums(chunk)
        byte_sum += chunk_sum
        position_sum += size * chunk_sum + chunk_position_sum
        size += len(chunk)
    return FileDigest(
        sha256=sha256.hexdigest(),
        size=size,
        byte_sum=byte_sum % PRIME,
        position_sum=position_sum % PRIME,
    )


def changed_byte(expected: FileDigest, content: bytes | Path) -> str:
    """Say how a file differs from the digest of the file as it was; errors as of `digest_of`.

    For example ``byte 1234 is 0x41, expected 0x42``, with positions counted from 0: said only if
    the SHA-256 is right once that byte is put back. Otherwise that the file is longer or shorter
    and by how much, or that more than one byte changed.
    """
    found = digest_of(content)
    if found == expected:
        return "no byte changed"
    if found.sha256 == expected.sha256:
        return "no byte changed, the size or the sums of its digest are wrong"
    if found.size != expected.size:
        count = abs(found.size - expected.size)
        direction = "longer" if found.size > expected.size else "shorter"
        return f"it is {count} {'byte' if count == 1 else 'bytes'} {direction} than expected"
    difference = (found.byte_sum - expected.byte_sum) % PRIME
    if difference > PRIME // 2:
        difference -= PRIME
    if 0 < abs(difference) < 256:
        moved = found.position_sum - expected.position_sum
        position = moved * pow(difference, -1, PRIME) % PRIME
        byte, sha256 = _put_back(content, position, difference)
        if sha256 == expected.sha256:
            return f"byte {position} is 0x{byte:02x}, expected 0x{byte - difference:02x}"
    return "more than one byte changed"


def _chunks(content: bytes | Path) -> Iterator[bytes | memoryview]:
    if isinstance(content, bytes):
        view = memoryview(content)
        for start in range(0, len(content), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]
        return
    with os.fdopen(open_regular(content), "rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            yield chunk


def _sums(chunk: bytes | memoryview) -> tuple[int, int]:
    """Return the sums of the bytes, and of position times byte, of at most `_CHUNK_BYTES`.

    In a grid of `_WIDTH` columns the position is ``row * _WIDTH + column``: sums of rows and of
    columns are enough, and are fast. All stay below 2**44; Python's integers take over from there.
    """
    values = np.frombuffer(chunk, dtype=np.uint8)
    grid = np.pad(values, (0, -len(values) % _WIDTH)).reshape(-1, _WIDTH)
    rows, columns = grid.sum(axis=1, dtype=np.int64), grid.sum(axis=0, dtype=np.int64)
    above = int(rows @ _INDEX[: len(rows)]) * _WIDTH
    return int(rows.sum()), above + int(columns @ _INDEX)


def _put_back(content: bytes | Path, position: int, difference: int) -> tuple[int, str]:
    """Return the byte at a position, and the SHA-256 with that byte made less by the difference.

    Where there is no byte that it can be taken from: -1, and the SHA-256 of the file as it is.
    """
    sha256 = hashlib.sha256()
    start, byte = 0, -1
    for chunk in _chunks(content):
        restored = bytearray(chunk)
        if start <= position < start + len(chunk):
            found = chunk[position - start]
            if 0 <= found - difference < 256:
                byte = found
                restored[position - start] = byte - difference
        sha256.update(restored)
        start += len(chunk)
    return byte, sha256.hexdigest()
