"""Sealed measurements as parts of a pool: one signed file each, which another installation reads.

An uncompressed zip file of ``part.json`` with the signature, ``declared.json``, which parts of a
pool have alike, and ``part.npz``, the noisy sums. It holds no row, and nothing in it runs.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray
from pydantic import JsonValue

from privacy.errors import IntegrityError
from privacy.event_records import event_from_dict
from privacy.events import Composed
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from storage.files.documents import FileDigest, ReleaseId, Text, canonical_json, digest_of
from storage.keys.keys import PublicKey, SigningKey
from storage.releases.manifest import Manifest
from storage.releases.measurements import arrays_of_bytes, arrays_to_bytes
from storage.releases.signatures import SignedDocument

MAX_BYTES = 2**28
"""Largest file of a part."""

_FILES = ("declared.json", "part.npz")

ASSUMED = "on the assumption that no patient is in two of the parts; of several, their losses add"


class _SealedPart(SignedDocument):
    """A measurement in a pool, signed by its installation.

    The ledger's entry has paid, for patients of a cohort: those of a partition's part, if any.
    """

    FILE: ClassVar[str] = "part.json"
    MAX_BYTES: ClassVar[int] = 200_000
    CODE: ClassVar[str] = "PART_INVALID"
    REMEDY: ClassVar[str] = "get the file again from its hospital"
    DOMAIN: ClassVar[bytes] = b"clustmix-part-v1\0"

    format_version: Literal[1] = 1
    dataset: Text
    release_id: ReleaseId
    ledger_entry: Text
    cohort: Text
    partition: dict[str, JsonValue] | None
    privacy_unit: Text
    events: tuple[dict[str, JsonValue], ...]
    tainted: bool
    files: dict[str, FileDigest]

    @property
    def rho(self) -> float:
        """Total loss of the events."""
        events = Composed(events=tuple(map(event_from_dict, self.events)))
        return float(GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(events).rho)


class Joint:
    """The guarantee of parts together.

    The patients of parts of one partition are in at most so many of them, by its own rule; of
    others that is assumed, or the losses of all add up.
    """

    def __init__(self, parts: Sequence[_SealedPart], *, assumed: bool) -> None:
        splits = {canonical_json([p.key_id, p.cohort, _without_part(p)]) for p in parts}
        split = parts[0].partition
        by_hash = split is not None and split["parts"] is not None
        places = [(p.partition or {}).get("part") if by_hash else p.ledger_entry for p in parts]
        apart = split is not None and len(splits) == 1 and len(set(places)) == len(parts)
        times, words = len(parts), ""
        if apart and split is not None:
            times, words = int(str(split.get("at_most", 1))), f"one of {len(parts)} parts"
        elif assumed:
            times, words = 1, ASSUMED
        largest = sorted(parts, key=lambda part: -part.rho)[:times]
        self.exchangeable = apart and by_hash
        self.events = tuple(event for part in largest for event in part.events)
        self.unit = ", ".join(filter(None, (parts[0].privacy_unit, words)))


def part_file(
    signer: SigningKey,
    declared: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    **facts: Any,
) -> bytes:
    """Return the signed file of a part with these facts about its measurement."""
    contents = dict(zip(_FILES, (canonical_json(declared), arrays_to_bytes(arrays)), strict=True))
    files = {name: digest_of(content) for name, content in contents.items()}
    signed = _SealedPart.signed(signer, **facts, files=files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {_SealedPart.FILE: signed.to_bytes(), **contents}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def read_part(
    content: bytes, trusted: Sequence[PublicKey]
) -> tuple[_SealedPart, dict[str, Any], dict[str, NDArray[Any]]]:
    """Return a part, what it declares, and its arrays, once signature and digests are right.

    It is an IntegrityError for anything else; no array is read before the signature holds.
    """
    damaged = IntegrityError(
        "PART_INVALID", "expected a file of clustmix export, found another or a damaged one"
    )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # Uncompressed: what is read is no larger than the file.
            kept = [(info.filename, info.compress_type) for info in archive.infolist()]
            if kept != [(name, zipfile.ZIP_STORED) for name in (_SealedPart.FILE, *_FILES)]:
                raise damaged
            text, *contents = (archive.read(info) for info in archive.infolist())
        part = _SealedPart.from_bytes(text)
        part.verify(trusted)
        if part.files != {n: digest_of(c) for n, c in zip(_FILES, contents, strict=True)}:
            raise damaged
        return part, json.loads(contents[0]), arrays_of_bytes(contents[1])
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, KeyError, MemoryError):
        pass  # the reason may quote content
    raise damaged


def require_parts(manifest: Manifest, trusted: Sequence[PublicKey]) -> None:
    """Check the signature of each part of a pool, and that the guarantee is theirs together."""
    parts = [_SealedPart.from_bytes(canonical_json(part)) for part in manifest.pooled]
    for part in parts:
        part.verify(trusted)
    joint = Joint(parts, assumed=bool(manifest.request.get("disjoint")))
    twice = len({part.release_id for part in parts}) < len(parts)
    wrong = (manifest.events, manifest.privacy_unit) != (joint.events, joint.unit)
    if twice or wrong or manifest.tainted != any(part.tainted for part in parts):
        raise IntegrityError(
            "POOL_CLAIM",
            "file manifest.json: expected each part once, and the guarantee of all parts "
            "together, found another; do not rely on it",
        )


def _without_part(part: _SealedPart) -> dict[str, JsonValue]:
    return {key: value for key, value in (part.partition or {}).items() if key != "part"}
