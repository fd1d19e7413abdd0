"""Signatures: of the pipeline under a manifest, and of an officer under an approval.

Each document is a canonical JSON file beside the manifest. The signature covers all its other
fields, after a prefix of the kind of document, so that it never holds for another kind.
"""

import base64
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, StringConstraints, field_validator

from privacy.errors import refusals
from storage.files.documents import (
    Document,
    FileDigest,
    Record,
    ReleaseId,
    Sha256,
    Text,
    canonical_json,
)
from storage.keys.keys import KeyId, PublicKey, SigningKey
from storage.releases.manifest import Manifest

refusal = refusals(__package__)

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
            raise refusal("SIGNER_UNKNOWN", file=self.FILE, key=self.key_id, known=known)
        for key in candidates:
            if key.verifies(base64.b64decode(self.signature), self.message):
                return key
        raise refusal("SIGNATURE_WRONG", file=self.FILE, key=self.key_id, remedy=self.REMEDY)

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
    raise refusal("REASON_INVALID", most=MAX_REASON_CHARACTERS)


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
            raise refusal("APPROVAL_UNEXPECTED", release=manifest.ref)
        today = datetime.now(UTC).date()
        return cls(**_decided(manifest), decision=decision, reason=reason, decided_on=today)


def _decided(manifest: Manifest) -> dict[str, Any]:
    """Return the fields of a statement that identify the subject of a decision."""
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
        raise refusal("APPROVER_IS_REQUESTER", key=officer.key_id)
    return Approval.signed(officer, statement=statement)


def require_approval(
    approval: Approval, manifest: Manifest, *, signer: PublicKey, officers: Sequence[PublicKey]
) -> PublicKey:
    """Check that a decision is an approval; other errors are those of `require_decision`."""
    officer = require_decision(approval, manifest, signer=signer, officers=officers)
    if approval.statement.decision != "approve":
        raise refusal("APPROVAL_REJECTED")
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
    if officer.key_id == manifest.requester:
        raise refusal("APPROVER_IS_REQUESTER file", key=officer.key_id)
    if officer.key_id == signer.key_id:
        raise refusal("APPROVER_IS_PIPELINE", key=officer.key_id)
    for name, value in _decided(manifest).items():
        if getattr(statement, name) != value:
            raise refusal("APPROVAL_MISMATCH", name=name)
    return officer
