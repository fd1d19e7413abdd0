import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import ConfigurationError, LedgerError
from privacy.ledger import (
    COUNTING_STATES,
    GENESIS_HASH,
    TRANSITIONS,
    Balance,
    EntryState,
    LedgerEntry,
    balance_of,
    chain_hash,
    charged_rho,
    check_transition,
    checked_rho,
    latest_entries,
)
from privacy.parameters import Adjacency


def journal_row(sequence: int, entry_id: str, state: str, rho: str, cap: str) -> LedgerEntry:
    return LedgerEntry(
        sequence=sequence,
        entry_id=entry_id,
        state=EntryState(state),
        dataset="adult",
        release_id=f"release-of-{entry_id}",
        rho=Decimal(rho),
        epsilon=1.0,
        delta=1e-6,
        adjacency=Adjacency.ADD_REMOVE,
        unit="patient",
        cap_rho=Decimal(cap),
        digest=None,
        note=None,
        recorded_at="2025-01-01T00:00:00.000Z",
        previous_hash=GENESIS_HASH,
        hash=GENESIS_HASH,
    )


@given(rho=st.floats(1e-20, 1e6))
def test_a_charge_is_rounded_up_by_less_than_a_step(rho: float) -> None:
    charge = Fraction(charged_rho(rho))
    step = Fraction(1, 10**12)
    assert 0 <= charge - Fraction(rho) < step
    assert charge % step == 0


def test_amounts_add_up_without_binary_fractions() -> None:
    total = charged_rho(0.5) + checked_rho(Decimal("0.1")) + checked_rho(Decimal("0.2"))
    assert total == Decimal("0.8")
    assert f"{checked_rho(Decimal('0.1')):f}" == "0.100000000000"
    # The float 0.1 is a little more than a tenth, and is charged as such.
    assert charged_rho(0.1) == Decimal("0.100000000001")


@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf, 1.1e6])
def test_an_amount_outside_its_range_is_refused(rho: float) -> None:
    with pytest.raises(ConfigurationError, match="RHO_INVALID: expected rho as a Decimal above 0"):
        charged_rho(rho)


@pytest.mark.parametrize(
    "rho",
    [0.5, 1, "0.5", Decimal("NaN"), Decimal("Infinity"), Decimal(0), Decimal("1e-13"), Decimal(-1)],
)
def test_what_is_not_a_ledger_amount_is_refused(rho: Decimal) -> None:
    with pytest.raises(ConfigurationError, match=r"with at most 12 decimals, found .*; round a ch"):
        checked_rho(rho)


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
def test_transitions_are_those_of_the_table(current: EntryState, following: EntryState) -> None:
    if (current.value, following.value) in ALLOWED:
        check_transition(current, following)
    else:
        with pytest.raises(LedgerError, match=f"TRANSITION_REFUSED: .* found {following.value}"):
            check_transition(current, following)


def test_nothing_leads_back_and_only_a_reservation_can_be_void() -> None:
    for state in EntryState:
        reached, todo = set(), set(TRANSITIONS[state])
        while todo:
            following = todo.pop()
            reached.add(following)
            todo |= TRANSITIONS[following]
        assert state not in reached
    assert [state for state in EntryState if EntryState.VOID in TRANSITIONS[state]] == ["reserved"]
    assert set(EntryState) - {"void"} == COUNTING_STATES
    with pytest.raises(LedgerError, match="expected no further state after burned"):
        check_transition(EntryState.BURNED, EntryState.SEALED)


def test_every_state_but_void_counts() -> None:
    for state in EntryState:
        rows = [
            journal_row(1, "e", "reserved", "0.25", "1"),
            journal_row(2, "e", state, "0.25", "1"),
        ]
        assert rows[1].counts == (state != "void")
        assert balance_of(rows).spent_rho == (0 if state == "void" else Decimal("0.25"))


def test_a_cap_can_be_lowered_and_never_raised() -> None:
    rows = [
        journal_row(1, "a", "reserved", "0.1", "1"),
        journal_row(2, "b", "reserved", "0.1", "0.5"),
        journal_row(3, "b", "void", "0.1", "0.5"),
        journal_row(4, "c", "reserved", "0.1", "0.9"),
    ]
    balance = balance_of(rows)
    assert (balance.cap_rho, balance.spent_rho) == (Decimal("0.5"), Decimal("0.2"))
    assert balance.remaining_rho == Decimal("0.3")


def test_the_amount_of_an_entry_is_that_of_its_reservation() -> None:
    rows = [
        journal_row(1, "a", "reserved", "0.1", "1"),
        journal_row(2, "a", "executing", "0.000000000001", "9"),
    ]
    assert balance_of(rows) == Balance(spent_rho=Decimal("0.1"), cap_rho=Decimal(1))


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
def test_releases_left_are_counted_exactly(spent: str, cap: str, rho: str, left: int) -> None:
    balance = Balance(spent_rho=Decimal(spent), cap_rho=Decimal(cap))
    assert balance.releases_left(Decimal(rho)) == left


def test_a_balance_without_a_cap_allows_nothing() -> None:
    balance = balance_of([])
    assert balance == Balance(spent_rho=Decimal(0), cap_rho=None)
    assert balance.remaining_rho == 0
    assert balance.releases_left(Decimal(1)) == 0


def test_the_latest_row_is_the_state_of_an_entry() -> None:
    rows = [
        journal_row(1, "a", "reserved", "0.1", "1"),
        journal_row(2, "b", "reserved", "0.1", "1"),
        journal_row(3, "a", "executing", "0.1", "1"),
    ]
    assert latest_entries(rows) == {"a": rows[2], "b": rows[1]}
    assert list(latest_entries(rows)) == ["a", "b"]


def test_the_hash_depends_on_every_field_and_on_all_before() -> None:
    fields = {"sequence": 1, "rho": "0.1", "note": None}
    base = chain_hash(GENESIS_HASH, fields)
    # Fixed for all time: journals on disk depend on it.
    assert base == "261f6e4ff1eeb98258d8a3f2112e8cdc17805b2d4746201ef4924d70a8d4da65"
    assert base == chain_hash(GENESIS_HASH, dict(reversed(fields.items())))
    for name, value in (("sequence", 2), ("rho", "0.10"), ("note", "")):
        assert chain_hash(GENESIS_HASH, {**fields, name: value}) != base
    assert chain_hash("1" * 64, fields) != base


def test_an_entry_cannot_be_changed() -> None:
    row = journal_row(1, "a", "reserved", "0.1", "1")
    with pytest.raises(AttributeError):
        row.rho = Decimal(0)  # type: ignore[misc]
    assert replace(row, note="x").rho == row.rho
