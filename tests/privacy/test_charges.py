import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_requests import charge

from privacy.charges import Caps, Partition, charged_rho, check_digest, check_key_ids, checked_rho
from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency


@given(rho=st.floats(1e-20, 1e6))
def test_a_charge_is_rounded_up_by_less_than_a_step(rho):
    charged = Fraction(charged_rho(rho))
    step = Fraction(1, 10**12)
    assert 0 <= charged - Fraction(rho) < step
    assert charged % step == 0


def test_amounts_add_up_without_binary_fractions():
    total = charged_rho(0.5) + checked_rho(Decimal("0.1")) + checked_rho(Decimal("0.2"))
    assert total == Decimal("0.8")
    assert f"{checked_rho(Decimal('0.1')):f}" == "0.100000000000"
    # The float 0.1 is a little more than a tenth, and is charged as such.
    assert charged_rho(0.1) == Decimal("0.100000000001")


@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf, 1.1e6])
def test_an_amount_outside_its_range_is_refused(rho):
    with pytest.raises(ConfigurationError, match="RHO_INVALID: expected rho as a Decimal above 0"):
        charged_rho(rho)


@pytest.mark.parametrize(
    "rho",
    [0.5, 1, "0.5", Decimal("NaN"), Decimal("Infinity"), Decimal(0), Decimal("1e-13"), Decimal(-1)],
)
def test_what_is_not_a_ledger_amount_is_refused(rho):
    with pytest.raises(ConfigurationError, match=r"with at most 12 decimals, found .*; round a ch"):
        checked_rho(rho)


def test_caps_are_amounts_of_the_ledger():
    caps = Caps(lifetime_rho=Decimal(1), window_rho=Decimal("0.5"), window_days=30)
    assert str(caps.lifetime_rho) == "1.000000000000"
    assert (caps.dataset_rho, caps.window_days) == (None, 30)
    for name in ("lifetime_rho", "dataset_rho"):
        with pytest.raises(ConfigurationError, match="RHO_INVALID"):
            replace(caps, **{name: Decimal(0)})
    with pytest.raises(ConfigurationError, match="RHO_INVALID"):
        replace(caps, lifetime_rho=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rho", "days"),
    [(None, 30), (Decimal(1), None), (Decimal(1), 0), (Decimal(1), 36_501), (Decimal(1), 1.0),
     (Decimal(1), True)],
)  # fmt: skip
def test_a_window_has_a_cap_and_a_length(rho, days):
    with pytest.raises(
        ConfigurationError,
        match="WINDOW_INVALID: expected a window cap together with its length of 1 to 36500 whole",
    ):
        Caps(lifetime_rho=Decimal(1), window_rho=rho, window_days=days)


@pytest.mark.parametrize(
    ("parts", "part"), [(1, 0), (1001, 0), (4, 4), (4, -1), (4.0, 1), (4, "1")]
)
def test_a_part_is_one_of_a_scheme_with_a_name(parts, part):
    with pytest.raises(ConfigurationError, match="PARTITION_INVALID: expected 2 to 1000 parts and"):
        Partition(scheme="hash", parts=parts, part=part)
    with pytest.raises(ConfigurationError, match="LEDGER_TEXT_INVALID: expected scheme as one"):
        Partition(scheme="", parts=4, part=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 0.1}, "RHO_INVALID"),
        ({"rho": Decimal("NaN")}, "RHO_INVALID"),
        ({"epsilon": float("inf")}, "EPSILON_INVALID"),
        ({"delta": 0.5}, "DELTA_INVALID"),
        ({"cohort": ""}, "LEDGER_TEXT_INVALID: expected cohort as one line of 1 to 200 printable"),
        ({"dataset": "x" * 201}, "LEDGER_TEXT_INVALID: expected dataset as one line"),
        ({"owner": None}, "LEDGER_TEXT_INVALID: expected owner as one line"),
        ({"unit": "two\nlines"}, "LEDGER_TEXT_INVALID: expected unit as one line"),
        ({"request_key": "AB" * 32}, "DIGEST_INVALID: expected a SHA-256 digest of 64 lower-cas"),
        ({"requester": "Ada"}, "KEY_ID_INVALID: expected the id of a key, 16 lower-case hexadec"),
        ({"needs_approval": True}, "REQUESTER_MISSING: expected the key of the requester where an"),
    ],
)
def test_a_charge_outside_its_range_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        charge(1, **changes)


def test_a_part_is_charged_under_add_remove_only():
    part = Partition(scheme="hash", parts=2, part=0)
    assert charge(1, partition=part).partition == part
    with pytest.raises(
        ConfigurationError,
        match="PARTITION_ADJACENCY: expected add_remove for part 0 of 2 of scheme 'hash', fou",
    ):
        charge(1, partition=part, adjacency=Adjacency.REPLACE_ONE)


def test_digests_and_key_ids_have_one_form():
    check_digest("ab" * 32)
    check_key_ids(("0123456789abcdef",))
    with pytest.raises(ConfigurationError, match="DIGEST_INVALID: expected a SHA-256 digest of 64"):
        check_digest("ab" * 31)
    with pytest.raises(ConfigurationError, match="KEY_ID_INVALID"):
        check_key_ids(("0123456789abcdef", "0123456789ABCDEF"))
