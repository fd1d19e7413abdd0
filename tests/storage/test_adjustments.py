"""What two officers signed for an adjustment, checked from its file alone."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from made_manifests import key_of

from privacy.errors import ConfigurationError, IntegrityError, LedgerError
from storage.files.documents import canonical_json
from storage.ledger.adjustments import Adjustment, keep_adjustment, sign_adjustment
from storage.ledger.ledger_db import LedgerDatabase, new_entry_id

ANNA, BERT, CARLA = (key_of(number) for number in range(1, 4))
OFFICERS = [ANNA.public, BERT.public, CARLA.public]
STATED = {"cohort": "heart-failure", "rho": Decimal("0.25"), "reason": "a table left on paper"}


def signed(keys=(ANNA, BERT), **changes):
    return sign_adjustment(**{"entry_id": "e-0123456789abcdef", **STATED, **changes}, keys=keys)


def test_what_each_of_them_signs():
    adjustment = signed()
    assert adjustment.signers == (ANNA.key_id, BERT.key_id)
    today = adjustment.statement.decided_on
    assert abs((today - datetime.now(UTC).date()).days) <= 1
    for key, part in zip((ANNA, BERT), adjustment.signed, strict=True):
        statement = {
            "cohort": "heart-failure",
            "decided_on": today.isoformat(),
            "entry_id": "e-0123456789abcdef",
            "reason": "a table left on paper",
            "rho": "0.250000000000",
        }
        message = {"format_version": 1, "key_id": key.key_id, "statement": statement}
        assert part.message == b"clustmix-adjustment-v1\0" + canonical_json(message)
        assert part.verify(OFFICERS) == key.public


def test_two_different_people_sign_what_the_ledger_accepts():
    for keys in ((), (ANNA,), (ANNA, ANNA), (ANNA, BERT, CARLA)):
        with pytest.raises(LedgerError, match="TWO_PEOPLE"):
            signed(keys)
    for change, code in (
        ({"rho": Decimal(0)}, "RHO_INVALID"),
        ({"rho": Decimal("1e-13")}, "RHO_INVALID"),
        ({"reason": "two\nlines"}, "LEDGER_TEXT_INVALID"),
        ({"cohort": ""}, "LEDGER_TEXT_INVALID"),
    ):
        with pytest.raises(ConfigurationError, match=code):
            signed(**change)


def test_a_file_is_written_once_and_for_its_owner(tmp_path):
    path = keep_adjustment(tmp_path / "adjustments", signed())
    assert path == tmp_path / "adjustments" / "e-0123456789abcdef.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert Adjustment.from_bytes(path.read_bytes()) == signed()
    with pytest.raises(IntegrityError, match="ALREADY_WRITTEN"):
        keep_adjustment(tmp_path / "adjustments", signed())
    with pytest.raises(IntegrityError, match=r"ADJUSTMENT_INVALID: .* find out who wrote to it"):
        Adjustment.from_bytes(path.read_bytes() + b"\n")


def test_an_entry_is_held_against_what_was_signed(tmp_path):
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite")
    entry_id = new_entry_id()
    adjustment = signed(entry_id=entry_id)
    entry = ledger.adjust(**STATED, signers=adjustment.signers, entry_id=entry_id)
    adjustment.verify(entry, officers=OFFICERS)
    others = (
        replace(entry, rho=Decimal("0.26")),
        replace(entry, cohort="other"),
        replace(entry, note="other"),
        replace(entry, entry_id="e-0000000000000000"),
        replace(entry, signers=(ANNA.key_id, CARLA.key_id)),
    )
    for other in others:
        with pytest.raises(
            IntegrityError,
            match=f"ADJUSTMENT_MISMATCH: expected entry {other.entry_id} to be what two officers",
        ):
            adjustment.verify(other, officers=OFFICERS)
    with pytest.raises(IntegrityError, match="SIGNER_UNKNOWN: file of the adjustment is signed by"):
        adjustment.verify(entry, officers=OFFICERS[:1])
    with pytest.raises(LedgerError, match=f"ENTRY_EXISTS: expected a new entry, found {entry_id}"):
        ledger.adjust(**STATED, signers=adjustment.signers, entry_id=entry_id)
    assert len(ledger.history()) == 1
    ledger.verify()


def test_a_file_of_something_else_is_refused():
    for change, message in (
        (lambda parts: parts.pop(), "field 'signed"),
        (lambda parts: parts.__setitem__(1, parts[0]), "expected the signatures of two keys"),
        (
            lambda parts: parts[1]["statement"].update(rho="0.260000000000"),
            "expected one statement, found two",
        ),
        (lambda parts: parts[0].update(note="x"), "Extra inputs are not permitted"),
    ):
        document = json.loads(signed().to_bytes())
        change(document["signed"])
        with pytest.raises(IntegrityError, match=f"ADJUSTMENT_INVALID: .*{message}"):
            Adjustment.from_bytes(canonical_json(document))
