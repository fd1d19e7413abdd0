from dataclasses import replace
from decimal import Decimal

import pytest
from ledger_requests import OFFICERS, REQUESTER, charge, row_of

from privacy.errors import ConfigurationError, LedgerError
from privacy.ledger import (
    GENESIS_HASH,
    Balance,
    EntryState,
    chain_hash,
    check_signers,
    check_transition,
)

ALLOWED = {
    ("reserved", "executing"),
    ("reserved", "void"),
    ("executing", "sealed"),
    ("executing", "burned"),
    ("sealed", "approved"),
    ("sealed", "withheld"),
    ("approved", "published"),
    ("approved", "withheld"),
    ("published", "revoked"),
}


@pytest.mark.parametrize("current", EntryState)
@pytest.mark.parametrize("following", EntryState)
def test_transitions_are_those_of_the_table(current, following):
    if (current.value, following.value) in ALLOWED:
        check_transition(current, following)
        return
    with pytest.raises(
        LedgerError, match=f"TRANSITION_REFUSED: .* found {following.value}"
    ) as caught:
        check_transition(current, following)
    is_last = current not in {before for before, _ in ALLOWED}
    assert (f"expected no further state after {current.value}" in str(caught.value)) == is_last


def test_every_state_but_void_counts():
    for state in EntryState:
        assert row_of(charge(1), state).counts == (state != "void")


OFFICIAL_CHARGE = charge(1, requester=REQUESTER, needs_approval=True)
PLAIN, OFFICIAL = row_of(charge(1), "sealed"), row_of(OFFICIAL_CHARGE, "sealed")


def test_a_row_holds_its_charge():
    assert OFFICIAL.charge == OFFICIAL_CHARGE
    with pytest.raises(ConfigurationError, match="EPSILON_INVALID"):
        _ = replace(OFFICIAL, epsilon=float("inf")).charge


def test_an_approval_is_signed_by_one_who_did_not_ask():
    check_signers(OFFICIAL, EntryState.APPROVED, [OFFICERS[0]])
    with pytest.raises(
        LedgerError, match="APPROVER_IS_REQUESTER: expected entry r-1 to be approved"
    ):
        check_signers(OFFICIAL, EntryState.APPROVED, [REQUESTER])
    for signers in ([], OFFICERS, [OFFICERS[0], REQUESTER]):
        with pytest.raises(
            LedgerError,
            match=f"APPROVAL_MISSING: expected exactly one signer .* found {len(signers)}; an off",
        ):
            check_signers(OFFICIAL, EntryState.APPROVED, signers)


def test_an_approval_that_nobody_asks_for_may_be_signed():
    check_signers(PLAIN, EntryState.APPROVED, [])
    check_signers(PLAIN, EntryState.APPROVED, [OFFICERS[0]])
    with pytest.raises(LedgerError, match="SIGNERS_REFUSED: expected 0 or 1 signers for approved"):
        check_signers(PLAIN, EntryState.APPROVED, OFFICERS)


def test_an_adjustment_is_signed_by_two_people():
    check_signers(None, EntryState.ADJUSTED, OFFICERS)
    for signers, found in (([], 0), (OFFICERS[:1], 1), (OFFICERS[:1] * 2, 1)):
        with pytest.raises(
            LedgerError, match=f"TWO_PEOPLE: .* two different keys, found {found}; ask a second per"
        ):
            check_signers(None, EntryState.ADJUSTED, signers)
    with pytest.raises(LedgerError, match="TWO_PEOPLE"):
        check_signers(None, EntryState.ADJUSTED, [*OFFICERS, REQUESTER])


def test_other_states_are_signed_by_nobody():
    signed = {state for state in EntryState if _may_be_signed(state)}
    assert signed == {"approved", "withheld", "revoked"}
    with pytest.raises(LedgerError, match="SIGNERS_REFUSED: expected 0 signers for sealed, found "):
        check_signers(PLAIN, EntryState.SEALED, OFFICERS[:1])
    with pytest.raises(ConfigurationError, match="KEY_ID_INVALID"):
        check_signers(PLAIN, EntryState.WITHHELD, ["Ada"])


def _may_be_signed(state):
    try:
        check_signers(PLAIN, state, OFFICERS[:1])
    except LedgerError:
        return False
    return True


@pytest.mark.parametrize(
    ("spent", "cap", "rho", "left"),
    [
        ("0", "1", "0.25", 4),
        ("0.000000000001", "1", "0.25", 3),
        ("1", "1", "0.25", 0),
        ("2", "1", "0.25", 0),
        ("0.7", "1", "0.1", 3),
    ],
)
def test_releases_left_are_counted_exactly(spent, cap, rho, left):
    balance = Balance(spent_rho=Decimal(spent), cap_rho=Decimal(cap))
    assert balance.releases_left(Decimal(rho)) == left


def test_a_tighter_cap_leaves_less():
    balance = Balance(spent_rho=Decimal(1), cap_rho=Decimal(2), tightest_rho=Decimal("0.5"))
    assert balance.remaining_rho == Decimal("0.5")
    assert replace(balance, tightest_rho=Decimal(3)).remaining_rho == 3
    assert replace(balance, tightest_rho=None).remaining_rho == 1


def test_the_hash_depends_on_every_field_and_on_all_before():
    fields = {"sequence": 1, "rho": "0.1", "note": None}
    base = chain_hash(GENESIS_HASH, fields)
    # Fixed for all time: journals on disk depend on it.
    assert base == "261f6e4ff1eeb98258d8a3f2112e8cdc17805b2d4746201ef4924d70a8d4da65"
    assert base == chain_hash(GENESIS_HASH, dict(reversed(fields.items())))
    for name, value in (("sequence", 2), ("rho", "0.10"), ("note", "")):
        assert chain_hash(GENESIS_HASH, {**fields, name: value}) != base
    assert chain_hash("1" * 64, fields) != base
