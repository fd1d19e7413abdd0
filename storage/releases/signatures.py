"""Signatures: of the pipeline under a manifest, and of an officer under an approval.

Each document is a canonical JSON file beside the manifest. The signature covers all its other
fields, after a prefix that names the kind of document, so that a signature under one kind never
holds for another. A part of a pool is a sealed measurement of an installation: an uncompressed zip
file of ``part.json``, with the signature, ``declared.json``, which all parts have alike, and
``part.npz``, the noisy sums. It holds no row, and nothing in it runs.
"""

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from numpy.typing import NDArray
from pydantic import AfterValidator, JsonValue, StringConstraints, field_validator

from privacy.errors import ConfigurationError, IntegrityError
from privacy.event_records import event_from_dict
from privacy.events import Composed
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from storage.files.documents import (
    Document,
    FileDigest,
    Record,
    ReleaseId,
    Sha256,
    Text,
    canonical_json,
    digest_of,
)
from storage.files.workspace import read_npz, write_npz
from storage.keys.keys import KeyId, PublicKey, SigningKey
from storage.releases.manifest import Manifest

SIGNATURE_FILE = "signature.json"
APPROVAL_FILE = "approval.json"
MAX_REASON_CHARACTERS = 200

_Base64 = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9+/]{86}==$")]


class SignedDocument(Document):
    """A document with a signature over its other fields, 64 bytes of Ed25519 in base64."""

    DOMAIN: ClassVar[bytes]
    """Prefix of every message, which names the kind of document and ends in a zero byte."""

    key_id: KeyId
    signature: _Base64

    @field_validator("signature")
    @classmethod
    def _one_form(cls, signature: str) -> str:
        # The last digit holds four bits that base64 ignores.
        if base64.b64encode(base64.b64decode(signature)).decode("ascii") != signature:
            raise ValueError("expected 64 bytes in base64")
        return signature

    @property
    def message(self) -> bytes:
        """The signed bytes: `DOMAIN`, then the canonical JSON without the signature."""
        return self.DOMAIN + canonical_json(self.model_dump(mode="json", exclude={"signature"}))

    def verify(self, trusted: Sequence[PublicKey]) -> PublicKey:
        """Return the trusted key that signed this (``SIGNER_UNKNOWN``, ``SIGNATURE_WRONG``)."""
        candidates = [key for key in trusted if key.key_id == self.key_id]
        if not candidates:
            known = ", ".join(key.key_id for key in trusted) or "none"
            raise IntegrityError(
                "SIGNER_UNKNOWN",
                f"file {self.FILE} is signed by key {self.key_id}, expected one of {known}; ask "
                "the publisher for the public key by a way that you trust",
            )
        for key in candidates:
            if key.verifies(base64.b64decode(self.signature), self.message):
                return key
        raise IntegrityError(
            "SIGNATURE_WRONG",
            f"file {self.FILE}: the signature of key {self.key_id} does not verify, the file was "
            f"changed after it was signed; {self.REMEDY}",
        )

    @classmethod
    def signed(cls, key: SigningKey, **fields: Any) -> Self:
        """Return the document with these fields, signed with the key."""
        unsigned = cls(key_id=key.key_id, signature=_UNSIGNED, **fields)
        signature = base64.b64encode(key.sign(unsigned.message)).decode("ascii")
        return unsigned.model_copy(update={"signature": signature})


_UNSIGNED = "A" * 86 + "=="
"""Placeholder of a signature."""


class Signature(SignedDocument):
    """Signature under a manifest, in `SIGNATURE_FILE`; a manifest has the digests of all files."""

    FILE: ClassVar[str] = SIGNATURE_FILE
    MAX_BYTES: ClassVar[int] = 4_000
    CODE: ClassVar[str] = "SIGNATURE_INVALID"
    DOMAIN: ClassVar[bytes] = b"clustmix-manifest-v1\0"

    format_version: Literal[1] = 1
    manifest: FileDigest


def check_reason(text: str) -> str:
    """Return a reason: one line of 1 to 200 printable characters, no blank at its ends."""
    if 0 < len(text) <= MAX_REASON_CHARACTERS and text.isprintable() and text == text.strip():
        return text
    raise ConfigurationError(
        "REASON_INVALID",
        f"expected a reason of 1 to {MAX_REASON_CHARACTERS} printable characters on one "
        "line, found something else; write why, for anybody to read",
    )


Reason = Annotated[str, AfterValidator(check_reason)]
"""Text that `check_reason` returns."""


class ApprovalStatement(Record):
    """The decision of an officer about a release, published with it.

    It names the charge, the release, its sealed measurement and its guarantee in plain words.
    `requester` is the key id of the person who asked, `reason` is one public line of 1 to 200
    printable characters, and `decided_on` is a UTC date.
    """

    ledger_entry: Text
    release_id: ReleaseId
    measurement_sha256: Sha256
    guarantee: Text
    requester: KeyId
    decision: Literal["approve", "reject"]
    reason: Reason
    decided_on: date

    @classmethod
    def of(cls, manifest: Manifest, *, decision: Literal["approve", "reject"], reason: str) -> Self:
        """Return the decision of today about a release that waits (ConfigurationError)."""
        if not manifest.needs_approval or manifest.requester is None:
            raise ConfigurationError(
                "APPROVAL_UNEXPECTED",
                f"release {manifest.ref} needs no approval; it is published as it is",
            )
        today = datetime.now(UTC).date()
        return cls(**_decided(manifest), decision=decision, reason=reason, decided_on=today)


def _decided(manifest: Manifest) -> dict[str, Any]:
    """Return what a decision is about, by the field of the statement."""
    return {
        "ledger_entry": manifest.ledger_entry,
        "release_id": manifest.resampled_from or manifest.release_id,
        "measurement_sha256": manifest.measurement_sha256,
        "guarantee": manifest.guarantee,
        "requester": manifest.requester,
    }


class Approval(SignedDocument):
    """A decision signed by an officer, in `APPROVAL_FILE`."""

    FILE: ClassVar[str] = APPROVAL_FILE
    MAX_BYTES: ClassVar[int] = 100_000
    CODE: ClassVar[str] = "APPROVAL_INVALID"
    DOMAIN: ClassVar[bytes] = b"clustmix-approval-v1\0"

    format_version: Literal[1] = 1
    statement: ApprovalStatement


def sign_approval(statement: ApprovalStatement, officer: SigningKey) -> Approval:
    """Sign a decision; it is a ConfigurationError if the officer is the requester."""
    if officer.key_id == statement.requester:
        raise ConfigurationError(
            "APPROVER_IS_REQUESTER",
            f"expected the key of another person than the one who asked, found {officer.key_id} "
            "for both; let an officer decide",
        )
    return Approval.signed(officer, statement=statement)


def require_approval(
    approval: Approval, manifest: Manifest, *, signer: PublicKey, officers: Sequence[PublicKey]
) -> PublicKey:
    """Check that a decision is an approval; other errors are those of `require_decision`."""
    officer = require_decision(approval, manifest, signer=signer, officers=officers)
    if approval.statement.decision != "approve":
        raise IntegrityError(
            "APPROVAL_REJECTED",
            f"file {APPROVAL_FILE} rejects the release; do not use it and ask who published it",
        )
    return officer


def require_decision(
    approval: Approval, manifest: Manifest, *, signer: PublicKey, officers: Sequence[PublicKey]
) -> PublicKey:
    """Check that an officer decided about this release, and return the officer's key.

    The approval of a release covers its resamples. `signer` is the key of the pipeline. It is an
    IntegrityError if the signature is wrong or its key unknown, if the decision is about another
    charge, release, measurement, guarantee or requester, or if requester or pipeline signed it.
    """
    officer = approval.verify(officers)
    statement = approval.statement
    for code, key_id, what in (
        ("REQUESTER", manifest.requester, "asked for the release; expected another person"),
        ("PIPELINE", signer.key_id, "signed the manifest; expected a person"),
    ):
        if officer.key_id == key_id:
            raise IntegrityError(
                f"APPROVER_IS_{code}",
                f"file {APPROVAL_FILE} is signed by key {key_id}, which {what} to approve it",
            )
    for name, value in _decided(manifest).items():
        if getattr(statement, name) != value:
            raise IntegrityError(
                "APPROVAL_MISMATCH",
                f"file {APPROVAL_FILE}: expected the {name} of the manifest, found another: the "
                "approval is not one of this release; do not rely on it",
            )
    return officer


MAX_PART_BYTES = 2**28
"""Largest file of a part."""

_PART_FILES = ("declared.json", "part.npz")

_ASSUMED = "on the assumption that no patient is in two of the parts; of several, their losses add"


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


def joint(
    parts: Sequence[_SealedPart], *, assumed: bool
) -> tuple[tuple[dict[str, JsonValue], ...], str]:
    """Return the events that bound the loss of a patient of a pool, and the unit in words.

    The patients of parts of one partition are in at most so many of them, by its own rule; of
    others that is assumed, or the losses of all add up.
    """
    split, times, words = parts[0].partition, len(parts), ""
    by_hash = split is not None and split["parts"] is not None
    rules = [{k: v for k, v in (p.partition or {}).items() if k != "part"} for p in parts]
    splits = {canonical_json([p.key_id, p.cohort, r]) for p, r in zip(parts, rules, strict=True)}
    places = {(p.partition or {}).get("part") if by_hash else p.ledger_entry for p in parts}
    if split is not None and len(splits) == 1 and len(places) == len(parts):
        times, words = int(str(split.get("at_most", 1))), f"one of {len(parts)} parts"
    elif assumed:
        times, words = 1, _ASSUMED
    largest = sorted(parts, key=lambda part: -part.rho)[:times]
    unit = ", ".join(filter(None, (parts[0].privacy_unit, words)))
    return tuple(event for part in largest for event in part.events), unit


def part_file(
    signer: SigningKey,
    declared: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    **facts: Any,
) -> bytes:
    """Return the signed file of a part with these facts about its measurement."""
    npz = io.BytesIO()
    write_npz(npz, arrays)
    contents = dict(zip(_PART_FILES, (canonical_json(declared), npz.getvalue()), strict=True))
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
            if kept != [(name, zipfile.ZIP_STORED) for name in (_SealedPart.FILE, *_PART_FILES)]:
                raise damaged
            text, *contents = (archive.read(info) for info in archive.infolist())
        part = _SealedPart.from_bytes(text)
        part.verify(trusted)
        if part.files != {n: digest_of(c) for n, c in zip(_PART_FILES, contents, strict=True)}:
            raise damaged
        return part, json.loads(contents[0]), read_npz(io.BytesIO(contents[1]))
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, KeyError, MemoryError):
        pass  # the reason may quote content
    raise damaged


def require_parts(manifest: Manifest, trusted: Sequence[PublicKey]) -> None:
    """Check the signature of each part of a pool, and that the guarantee is theirs together."""
    parts = [_SealedPart.from_bytes(canonical_json(part)) for part in manifest.pooled]
    for part in parts:
        part.verify(trusted)
    assumed, ids = bool(manifest.request.get("disjoint")), {part.release_id for part in parts}
    stated = (manifest.events, manifest.privacy_unit)
    tainted = any(part.tainted for part in parts)
    if len(ids) < len(parts) or stated != joint(parts, assumed=assumed) or tainted:
        raise IntegrityError(
            "POOL_CLAIM",
            "file manifest.json: expected each part once, and the guarantee of all parts "
            "together, found another; do not rely on it",
        )
