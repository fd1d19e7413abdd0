import base64
import json
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_manifests import SHA, fields_of, key_of
from pydantic import ValidationError

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.digests import digest_of
from storage.files.documents import canonical_json
from storage.releases.manifest import Manifest
from storage.releases.signatures import (
    Approval,
    ApprovalStatement,
    Signature,
    is_reason,
    require_approval,
    sign_approval,
)

PIPELINE, ANNA, BERT, STRANGER = (key_of(number) for number in range(1, 5))
OFFICERS = [ANNA.public, BERT.public]
FIELDS = fields_of(needs_approval=True, requester=BERT.key_id)
MANIFEST = Manifest(**FIELDS)
CONTENT = MANIFEST.to_bytes()
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
SIGNATURE = Signature.signed(PIPELINE, manifest=digest_of(CONTENT))
APPROVAL = sign_approval(STATEMENT, ANNA)
PARSERS = [(Signature, SIGNATURE, "SIGNATURE"), (Approval, APPROVAL, "APPROVAL")]


def stated(**changes):
    return sign_approval(STATEMENT.model_copy(update=changes), ANNA)


def test_what_is_signed():
    digest = canonical_json(digest_of(CONTENT).model_dump())
    begun = '{"format_version":1,"key_id":"%s",'
    expected = (
        b"clustmix-manifest-v1\0" + (begun % PIPELINE.key_id).encode() + b'"manifest":%b}' % digest
    )
    assert SIGNATURE.message == expected
    assert base64.b64decode(SIGNATURE.signature) == PIPELINE.sign(expected)
    assert SIGNATURE.manifest == digest_of(CONTENT)
    statement = canonical_json(STATEMENT.model_dump(mode="json"))
    assert APPROVAL.message == (
        b"clustmix-approval-v1\0" + (begun % ANNA.key_id).encode() + b'"statement":%b}' % statement
    )


@pytest.mark.parametrize(("parse", "document", "kind"), PARSERS)
def test_no_substituted_byte_of_a_document_is_accepted(parse, document, kind):
    content = document.to_bytes()
    codes = set()
    for position in range(len(content)):
        for byte in (content[position] ^ 1, content[position] ^ 32, ord("0"), ord("A")):
            if byte == content[position]:
                continue
            changed = content[:position] + bytes([byte]) + content[position + 1 :]
            with pytest.raises(IntegrityError) as caught:
                parse.from_bytes(changed).verify([PIPELINE.public, ANNA.public])
            codes.add(caught.value.code)
    assert codes == {f"{kind}_INVALID", "SIGNATURE_WRONG", "SIGNER_UNKNOWN"}


def rewritten(document, **fields):
    return canonical_json({**json.loads(document.to_bytes()), **fields})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rewritten(SIGNATURE, note="x"), "field 'note': Extra inputs are not permitted"),
        (rewritten(SIGNATURE, format_version=2), "field 'format_version': Input should be 1"),
        (rewritten(SIGNATURE, signature="A" * 88), "field 'signature': String should match"),
        (rewritten(SIGNATURE, signature="A" * 85 + "B=="), "field 'signature': .* 64 bytes in bas"),
        (APPROVAL.to_bytes(), "field 'manifest': Field required"),
        (b" " * 4001, "is larger than 4,000 bytes"),
    ],
)
def test_parse_signature_refuses(content, message):
    with pytest.raises(IntegrityError, match=f"SIGNATURE_INVALID: file signature.json .*{message}"):
        Signature.from_bytes(content)


STRICT = {
    "ledger_entry": [""],
    "release_id": ["../x"],
    "measurement_sha256": ["abc"],
    "guarantee": ["", "x" * 10_001],
    "requester": [None, "anna"],
    "decision": ["maybe"],
    "reason": ["", "x" * 201, "two\nlines"],
    "decided_on": ["today"],
    "epsilon": [1.0],
}


@pytest.mark.parametrize("field", STRICT)
def test_a_statement_is_strict(field):
    for value in STRICT[field]:
        fields = {**STATEMENT.model_dump(mode="json"), field: value}
        with pytest.raises(ValidationError, match=field):
            ApprovalStatement(**fields)
        wrong = f"APPROVAL_INVALID: file approval.json field 'statement.{field}"
        with pytest.raises(IntegrityError, match=wrong):
            Approval.from_bytes(rewritten(APPROVAL, statement=fields))


def test_reasons():
    for text in ("x", "x" * 200, "Geprüft, in Ordnung.", "数据"):
        assert is_reason(text)
        assert Approval.from_bytes(stated(reason=text).to_bytes()).statement.reason == text
    no_reasons = ["", " ", " x", "x ", "x" * 201, "a\nb", "a\tb", "\x1b[2J", "a\u202eb", "\ud800"]
    for text in no_reasons:
        assert not is_reason(text)
        with pytest.raises(ConfigurationError, match="REASON_INVALID: expected a reason of 1 to 2"):
            ApprovalStatement.of(MANIFEST, decision="approve", reason=text)


def test_a_full_statement_is_below_the_size_limit():
    full = STATEMENT.model_copy(update={"guarantee": "\x01" * 10_000, "reason": "数" * 200})
    content = sign_approval(full, ANNA).to_bytes()
    assert len(content) < Approval.MAX_BYTES
    assert Approval.from_bytes(content).statement == full
    with pytest.raises(IntegrityError, match=r"APPROVAL_INVALID: .* is larger than 100,000 bytes"):
        Approval.from_bytes(b" " * (Approval.MAX_BYTES + 1))


@given(
    st.binary(max_size=100)
    | st.sampled_from([SIGNATURE.to_bytes(), APPROVAL.to_bytes()])
    | st.builds(
        rewritten,
        st.sampled_from([SIGNATURE, APPROVAL]),
        key_id=st.text(st.characters(codec="utf-8"), max_size=20),
        signature=st.text(st.characters(codec="utf-8"), max_size=90),
    )
)
def test_hostile_content_is_refused_or_is_a_document(content):
    for parse, document, kind in PARSERS:
        refused = None
        try:
            assert parse.from_bytes(content).to_bytes() == content
            parse.from_bytes(content).verify([PIPELINE.public, ANNA.public])
        except IntegrityError as error:
            refused = error
        assert (refused is None) == (content == document.to_bytes())
        if refused is not None:
            assert refused.code in (f"{kind}_INVALID", "SIGNATURE_WRONG", "SIGNER_UNKNOWN")
            assert str(refused).isprintable()


def required(approval, manifest=MANIFEST, officers=OFFICERS):
    return require_approval(approval, manifest, signer=PIPELINE.public, officers=officers)


def test_a_statement_is_made_from_the_manifest():
    made = ApprovalStatement.of(MANIFEST, decision="approve", reason=STATEMENT.reason)
    assert abs((made.decided_on - datetime.now(UTC).date()).days) <= 1
    assert made.model_copy(update={"decided_on": STATEMENT.decided_on}) == STATEMENT
    free = Manifest(**{**FIELDS, "needs_approval": False, "requester": None})
    with pytest.raises(ConfigurationError, match=r"APPROVAL_UNEXPECTED: release adult/r-2025.* ne"):
        ApprovalStatement.of(free, decision="approve", reason="x")


def test_an_approval_of_something_else_is_refused():
    for field, value in {
        "ledger_entry": "18",
        "release_id": "r-20250131-00000000",
        "measurement_sha256": "0" * 64,
        "guarantee": "Ein anderer Satz.",
        "requester": STRANGER.key_id,
    }.items():
        mismatch = f"APPROVAL_MISMATCH: .*approval.json: expected the {field} of the manifest, fou"
        with pytest.raises(IntegrityError, match=mismatch):
            required(stated(**{field: value}))
    with pytest.raises(IntegrityError, match=r"APPROVAL_REJECTED: file approval\.json rejects the"):
        required(stated(decision="reject"))


def test_nobody_approves_their_own_request():
    with pytest.raises(
        ConfigurationError,
        match=f"APPROVER_IS_REQUESTER: expected the key of another person .*"
        f"found {BERT.key_id} for both; let an officer decide",
    ):
        sign_approval(STATEMENT, BERT)
    # A requester who signs without this program, as oneself and in the name of another.
    for requester in (BERT.key_id, ANNA.key_id):
        statement = STATEMENT.model_copy(update={"requester": requester})
        draft = APPROVAL.model_copy(update={"statement": statement, "key_id": BERT.key_id})
        signature = base64.b64encode(BERT.sign(draft.message)).decode()
        forged = draft.model_copy(update={"signature": signature})
        with pytest.raises(
            IntegrityError, match=f"APPROVER_IS_REQUESTER: .* signed by key {BERT.key_id}, which a"
        ):
            required(forged)


def test_the_pipeline_and_strangers_approve_nothing():
    by_pipeline = sign_approval(STATEMENT, PIPELINE)
    with pytest.raises(IntegrityError, match="SIGNER_UNKNOWN"):
        required(by_pipeline)
    with pytest.raises(IntegrityError, match=f"APPROVER_IS_PIPELINE: .* key {PIPELINE.key_id}, wh"):
        required(by_pipeline, officers=[*OFFICERS, PIPELINE.public])
    with pytest.raises(IntegrityError, match=r"SIGNER_UNKNOWN: file approval\.json is signed by "):
        required(sign_approval(STATEMENT, STRANGER))


def test_a_resample_carries_the_approval_of_its_original():
    fields = {**FIELDS, "release_id": "r-20250301-00000001"}
    resample = Manifest(**{**fields, "resampled_from": FIELDS["release_id"], "rows": 5})
    assert required(APPROVAL, resample) == ANNA.public
    of_itself = stated(release_id="r-20250301-00000001")
    with pytest.raises(IntegrityError, match=r"APPROVAL_MISMATCH: .* the release_id of the manife"):
        required(of_itself, resample)
