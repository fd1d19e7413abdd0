import base64
import json
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from made_manifests import SHA, fields_of, key_of, revocation

from privacy.errors import IntegrityError, LedgerError
from storage.files.documents import canonical_json, digest_of
from storage.ledger.adjustments import Adjustment, sign_adjustment
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.manifest import Manifest
from storage.releases.revocations import _RevocationList
from storage.releases.signatures import (
    Approval,
    ApprovalStatement,
    Signature,
    require_approval,
    sign_approval,
)

PIPELINE, ANNA, BERT, STRANGER = (key_of(number) for number in range(1, 5))
OFFICERS = [ANNA.public, BERT.public]
FIELDS = fields_of(needs_approval=True, requester=BERT.key_id)
MANIFEST = Manifest(**FIELDS)
STATEMENT = ApprovalStatement(
    ledger_entry="17",
    release_id="r-20250131-0f3a9c21",
    measurement_sha256=SHA,
    guarantee=MANIFEST.guarantee,
    requester=BERT.key_id,
    decision="approve",
    reason="Geprüft: Garantie und Karte.",
    decided_on=date(2025, 2, 1),
)
ENTRY = "e-0123456789abcdef"
SPENT = {"cohort": "heart-failure", "rho": Decimal("0.25"), "reason": "a table left on paper"}


def adjustment(keys=(ANNA, BERT), **changes):
    return sign_adjustment(**{"entry_id": ENTRY, **SPENT, **changes}, keys=keys)


SIGNATURE = Signature.signed(PIPELINE, manifest=digest_of(MANIFEST.to_bytes()))
APPROVAL = sign_approval(STATEMENT, ANNA)
LISTED = _RevocationList.signed(PIPELINE, revocations=(revocation(1), revocation(2)))
ADJUSTMENT = adjustment()
SIGNED = {
    "manifest": SIGNATURE,
    "approval": APPROVAL,
    "revoked": LISTED,
    "adjustment": ADJUSTMENT.signed[0],
}
"""A document of each kind, by the name of the kind in what is signed."""


@pytest.mark.parametrize("kind", SIGNED)
def test_a_signature_covers_kind_key_and_all_fields(kind):
    document = SIGNED[kind]
    fields = json.loads(document.to_bytes())
    signature = base64.b64decode(fields.pop("signature"))
    key = PIPELINE if kind in ("manifest", "revoked") else ANNA
    assert (fields["format_version"], fields["key_id"]) == (1, key.key_id)
    message = f"clustmix-{kind}-v1\0".encode() + canonical_json(fields)
    assert document.message == message
    assert signature == key.sign(message)
    assert document.verify([STRANGER.public, key.public]) == key.public
    with pytest.raises(IntegrityError, match=rf"SIGNER_UNKNOWN: file .*{key.key_id}, expected one"):
        document.verify([STRANGER.public])


@pytest.mark.parametrize("document", [SIGNATURE, APPROVAL], ids=lambda one: type(one).__name__)
def test_no_substituted_byte_of_a_document_is_accepted(document):
    content = document.to_bytes()
    codes = set()
    for position in range(len(content)):
        for byte in {content[position] ^ 1, content[position] ^ 32, ord("0")} - {content[position]}:
            changed = content[:position] + bytes([byte]) + content[position + 1 :]
            with pytest.raises(IntegrityError) as caught:
                type(document).from_bytes(changed).verify([PIPELINE.public, ANNA.public])
            codes.add(caught.value.code)
    assert codes == {document.CODE, "SIGNATURE_WRONG", "SIGNER_UNKNOWN"}


def rewritten(document, **fields):
    return canonical_json({**json.loads(document.to_bytes()), **fields})


def stated(**fields):
    return rewritten(APPROVAL, statement={**STATEMENT.model_dump(mode="json"), **fields})


def revoked(*numbers, **fields):
    rows = [json.loads(revocation(number).model_dump_json()) | fields for number in numbers]
    return rewritten(LISTED, revocations=rows)


def twice_signed(change):
    document = json.loads(ADJUSTMENT.to_bytes())
    change(document["signed"])
    return canonical_json(document)


REFUSED = {
    Signature: [
        (rewritten(SIGNATURE, note="x"), "field 'note': Extra inputs are not permitted"),
        (rewritten(SIGNATURE, format_version=2), "field 'format_version': Input should be 1"),
        (rewritten(SIGNATURE, signature="A" * 88), "field 'signature': String should match"),
        (rewritten(SIGNATURE, signature="A" * 85 + "B=="), "field 'signature': .* 64 bytes in bas"),
        (APPROVAL.to_bytes(), "field 'manifest': Field required"),
        (b" " * 4001, "is larger than 4,000 bytes"),
    ],
    Approval: [
        (b" " * 100_001, "is larger than 100,000 bytes"),
        *(
            (stated(**{field: value}), f"field 'statement.{field}")
            for field, value in (
                ("ledger_entry", ""), ("release_id", "../x"), ("measurement_sha256", "abc"),
                ("guarantee", "x" * 10_001), ("requester", None), ("requester", "anna"),
                ("decision", "maybe"), ("decided_on", "today"),
                ("epsilon", 1.0),
            )
        ),
        (stated(reason="two\nlines"), "expected a reason of 1 to 200 printable characters"),
    ],
    _RevocationList: [
        (b"", "field '': Invalid JSON: .*; get the list again from the publisher"),
        (LISTED.to_bytes() + b"\n", "is not in canonical form"),
        (b" " * 16_000_001, "is larger than 16,000,000"),
        (revoked(1, 1), "a release is listed twice"),
        (revoked(), "field 'revocations': .* at least 1"),
        (revoked(1, dataset="../x"), "a name has 1 to 63"),
        (revoked(1, release_id="r-1"), r"field 'revocations\.0\.release_id'"),
        (revoked(1, manifest_sha256="ab"), r"field 'revocations\.0\.manifest_sha256'"),
        (revoked(1, revoked_by="anna"), r"field 'revocations\.0\.revoked_by'"),
        (revoked(1, rows=5), r"field 'revocations\.0\.rows': Extra"),
    ],
    Adjustment: [
        (twice_signed(lambda parts: parts.pop()), "field 'signed"),
        (twice_signed(lambda parts: parts.reverse() or parts.pop()), "field 'signed"),
        (twice_signed(lambda p: p.__setitem__(1, p[0])), "expected the signatures of two keys"),
        (
            twice_signed(lambda parts: parts[1]["statement"].update(rho="0.260000000000")),
            "expected one statement, found two",
        ),
        (twice_signed(lambda parts: parts[0].update(note="x")), "Extra inputs are not permitted"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [(kind, *case) for kind, cases in REFUSED.items() for case in cases],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_document_is_strict(kind, content, message):
    with pytest.raises(IntegrityError, match=f"{kind.CODE}: file {kind.FILE} .*{message}"):
        kind.from_bytes(content)


def said(**changes):
    return sign_approval(STATEMENT.model_copy(update=changes), ANNA)


def required(approval, manifest=MANIFEST, officers=OFFICERS):
    return require_approval(approval, manifest, signer=PIPELINE.public, officers=officers)


def forged(requester):
    """Return an approval by Bert, made without this program."""
    statement = STATEMENT.model_copy(update={"requester": requester})
    draft = APPROVAL.model_copy(update={"statement": statement, "key_id": BERT.key_id})
    signature = base64.b64encode(BERT.sign(draft.message)).decode()
    return draft.model_copy(update={"signature": signature})


WITH_PIPELINE = [*OFFICERS, PIPELINE.public]


@pytest.mark.parametrize(
    ("approval", "officers", "message"),
    [
        *(
            (said(**{field: value}), OFFICERS, f"APPROVAL_MISMATCH: .*expected the {field} of the")
            for field, value in (
                ("ledger_entry", "18"),
                ("release_id", "r-20250131-00000000"),
                ("measurement_sha256", "0" * 64),
                ("guarantee", "Ein anderer Satz."),
                ("requester", STRANGER.key_id),
            )
        ),
        (said(decision="reject"), OFFICERS, r"APPROVAL_REJECTED: file approval\.json rejects the"),
        # A requester, as oneself and in the name of another.
        (forged(BERT.key_id), OFFICERS, f"APPROVER_IS_REQUESTER: .* signed by key {BERT.key_id}"),
        (forged(ANNA.key_id), OFFICERS, f"APPROVER_IS_REQUESTER: .* signed by key {BERT.key_id}"),
        (sign_approval(STATEMENT, PIPELINE), OFFICERS, "SIGNER_UNKNOWN"),
        (sign_approval(STATEMENT, PIPELINE), WITH_PIPELINE, "APPROVER_IS_PIPELINE: .* key "),
        (sign_approval(STATEMENT, STRANGER), OFFICERS, r"SIGNER_UNKNOWN: file approval\.json"),
    ],
)
def test_an_approval_of_something_else_or_by_somebody_else_is_refused(approval, officers, message):
    with pytest.raises(IntegrityError, match=message):
        required(approval, officers=officers)


# --- a charge entered by hand, which two officers sign


def test_an_entry_is_held_against_what_was_signed(tmp_path):
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite")
    entry = ledger.adjust(**SPENT, signers=ADJUSTMENT.signers, entry_id=ENTRY)
    ADJUSTMENT.verify(entry, officers=OFFICERS)
    for changes in (
        {"rho": Decimal("0.26")},
        {"cohort": "other"},
        {"note": "other"},
        {"entry_id": "e-0000000000000000"},
        {"signers": (ANNA.key_id, STRANGER.key_id)},
    ):
        with pytest.raises(IntegrityError, match=r"ADJUSTMENT_MISMATCH: .* to be what two off"):
            ADJUSTMENT.verify(replace(entry, **changes), officers=OFFICERS)
    with pytest.raises(IntegrityError, match="SIGNER_UNKNOWN: file of the adjustment is signed by"):
        ADJUSTMENT.verify(entry, officers=OFFICERS[:1])
    with pytest.raises(LedgerError, match=f"ENTRY_EXISTS: expected a new entry, found {ENTRY}"):
        ledger.adjust(**SPENT, signers=ADJUSTMENT.signers, entry_id=ENTRY)
    ledger.verify()
