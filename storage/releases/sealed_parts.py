"""Parts of pools: signed files of sealed measurements, and the guarantee of several together."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray
from pydantic import JsonValue

from privacy.errors import refusals
from privacy.events import Composed, event_from_dict
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from storage.files.documents import FileDigest, ReleaseId, Text, canonical_json, digest_of
from storage.files.workspace import read_npz, write_npz
from storage.keys.keys import PublicKey, SigningKey
from storage.releases.manifest import Manifest
from storage.releases.signatures import SignedDocument

refusal = refusals(__package__)

MAX_PART_BYTES = 2**28
"""Largest file of a part."""

_ASSUMED = "on the assumption that no patient is in two hospitals; of several, their losses add"


class _SealedPart(SignedDocument):
    """A measurement in a pool, signed by its installation: the charge, its patients, its sums.

    The patients are those of a partition's part, if any. The file of a part is this document in a
    line, then the arrays of the digest as an npz file. It holds no row, and nothing in it runs.
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
    arrays: FileDigest

    @property
    def rho(self) -> float:
        """Total loss of the events."""
        events = Composed(events=tuple(map(event_from_dict, self.events)))
        return float(GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(events).rho)


def part_file(signer: SigningKey, arrays: Mapping[str, NDArray[Any]], **facts: Any) -> bytes:
    """Return the signed file of a part with these facts about its measurement."""
    buffer = io.BytesIO()
    write_npz(buffer, arrays)
    signed = _SealedPart.signed(signer, **facts, arrays=digest_of(buffer.getvalue()))
    return signed.to_bytes() + b"\n" + buffer.getvalue()


def read_part(
    content: bytes, trusted: Sequence[PublicKey]
) -> tuple[_SealedPart, dict[str, NDArray[Any]]]:
    """Return a part and its arrays, once signature and digest are right (else IntegrityError)."""
    text, _, npz = content.partition(b"\n")
    part = _SealedPart.from_bytes(text)
    part.verify(trusted)
    try:
        if digest_of(npz) == part.arrays:
            return part, read_npz(io.BytesIO(npz))
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, MemoryError):
        pass  # the reason may quote content
    raise refusal("PART_INVALID", remedy=_SealedPart.REMEDY)


def joint(parts: Sequence[_SealedPart]) -> tuple[tuple[dict[str, JsonValue], ...], str]:
    """Return the events that bound the loss of a patient of a pool, and the unit in words.

    A patient is in at most `at_most` parts of the partition of a cohort, so the largest of them
    count; IntegrityError if several lack a common partition. Cohorts are assumed to be disjoint.
    """
    cohorts, entries = dict[tuple[str, str], list[_SealedPart]](), set[str]()
    for part in parts:
        # A hospital may have signed the same measurement with two keys.
        if part.ledger_entry in entries:
            raise refusal("PARTS_OVERLAP", cohort=part.cohort)
        entries.add(part.ledger_entry)
        cohorts.setdefault((part.key_id, part.cohort), []).append(part)
    largest: list[_SealedPart] = []
    for own in cohorts.values():
        rules = [part.partition or {} for part in own]
        by_hash = rules[0].get("parts") is not None
        schemes = {canonical_json({**rule, "part": None}) for rule in rules}
        places = {r["part"] if by_hash else p.ledger_entry for r, p in zip(rules, own, strict=True)}
        if len(own) > 1 and (not rules[0] or len(schemes) > 1 or len(places) < len(own)):
            raise refusal("PARTS_OVERLAP", cohort=own[0].cohort)
        read = int(str(rules[0].get("at_most", 1)))
        ordered = sorted(own, key=lambda part: -part.rho)[:read]
        largest = max(largest, ordered, key=lambda some: sum(part.rho for part in some))
    words = f"one of {len(parts)} parts" if len(cohorts) == 1 else _ASSUMED
    events = tuple(event for part in largest for event in part.events)
    return events, f"{parts[0].privacy_unit}, {words}"


def require_parts(manifest: Manifest, trusted: Sequence[PublicKey]) -> None:
    """Check the signature of each part of a pool, and that the guarantee is theirs together."""
    parts = [_SealedPart.from_bytes(canonical_json(part)) for part in manifest.pooled]
    for part in parts:
        part.verify(trusted)
    stated = (manifest.events, manifest.privacy_unit)
    if stated != joint(parts) or any(part.tainted for part in parts):
        raise refusal("POOL_CLAIM")
