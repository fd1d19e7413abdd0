"""Caps against a reference that follows every patient of a cohort one by one."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_requests import REQUESTER, charge, row_of

from privacy.charges import RHO_STEP, Caps, Partition
from privacy.errors import BudgetRefused, LedgerError
from privacy.parameters import Adjacency
from privacy.spending import Spending, composed_rho, moment, time_text

START = datetime(2025, 1, 1, tzinfo=UTC)


def adjusted(rho, *, cohort="adult", name="adjustment"):
    row = row_of(charge(1, rho=Decimal(rho), cohort=cohort), "adjusted", name=name)
    return replace(row, dataset="", release_id="", caps=Caps(lifetime_rho=Decimal(10**6)))


def at(day):
    return time_text(START + timedelta(days=day))


def spent_by_patients(rows, payer=None):
    """Follow one patient of every kind, one for each choice of a part of every partition.

    By entry, of every choice of as many charges as a register lets one patient be in.
    """
    split = [row for row in rows if row.partition and row.partition.parts]
    asked = [row.partition for row in split] + [payer] * bool(payer and payer.parts)
    schemes = sorted({(part.scheme, part.parts) for part in asked})
    entered = {row.partition.split for row in rows if row.partition and row.partition.period}
    most = Fraction(0)
    for choice in itertools.product(*(range(parts) for _, parts in schemes)):
        patient = dict(zip(schemes, choice, strict=True))
        if payer in asked and patient[payer.scheme, payer.parts] != payer.part:
            continue
        paid = sum((Fraction(row.rho) for row in rows if row.partition is None), Fraction(0))
        for row in split:
            if patient[row.partition.scheme, row.partition.parts] == row.partition.part:
                paid += Fraction(row.rho)
        for scheme in entered:
            own = [Fraction(r.rho) for r in rows if r.partition and r.partition.split == scheme]
            times = scheme[2] - (payer is not None and payer.split == scheme)
            choices = itertools.combinations(own, min(times, len(own)))
            paid += max(map(sum, choices), default=Fraction(0))
        most = max(most, paid)
    return most


amounts = st.integers(1, 30).map(lambda steps: steps * RHO_STEP) | st.sampled_from(
    [Decimal("0.1"), Decimal("0.2"), Decimal("0.3"), Decimal("0.7"), Decimal("1e-12")]
)
partitions = (
    st.none()
    | st.builds(
        lambda scheme, part: Partition(scheme=scheme, parts=2 if scheme == "a" else 3, part=part),
        scheme=st.sampled_from("ab"),
        part=st.integers(0, 1),
    )
    | st.builds(
        lambda at_most, month, register: Partition(
            scheme="e", parts=None, part=f"2025-0{month}", at_most=at_most, register=register * 16
        ),
        at_most=st.integers(1, 3),
        month=st.integers(1, 2),
        register=st.sampled_from("01"),
    )
)
charges = st.builds(
    lambda number, rho, partition, dataset: charge(
        number, rho=rho, partition=partition, dataset=dataset
    ),
    number=st.integers(0, 10**9),
    rho=amounts,
    partition=partitions,
    dataset=st.sampled_from(["one", "two"]),
)


@given(paid=st.lists(charges, max_size=12), payer=partitions)
def test_the_sum_is_that_of_the_patient_who_pays_most(paid, payer):
    rows = [row_of(one, name=f"e-{place}") for place, one in enumerate(paid)]
    own, worst = composed_rho(rows, payer)
    assert Fraction(own) == spent_by_patients(rows, payer)
    assert Fraction(worst) == spent_by_patients(rows)


@given(
    asked=st.lists(st.tuples(charges, st.floats(0, 20)), max_size=20),
    lifetime=amounts,
    dataset=st.none() | amounts,
    window=st.none() | amounts,
)
def test_a_charge_is_granted_if_and_only_if_no_patient_passes_a_cap(
    asked, lifetime, dataset, window
):
    caps = Caps(
        lifetime_rho=lifetime,
        dataset_rho=dataset,
        window_rho=window,
        window_days=None if window is None else 10,
    )
    spending, rows, day = Spending(), [], 0.0
    for number, (wanted, wait) in enumerate(asked):
        day += wait
        request = replace(wanted, caps=caps, release_id=f"r-{number}")
        new = row_of(request, recorded_at=at(day))
        after = [*rows, new]
        recent = [row for row in after if moment(new.recorded_at) - moment(row.recorded_at) <
                  timedelta(days=10)]  # fmt: skip
        series = [row for row in after if row.dataset == request.dataset]
        fits = (
            spent_by_patients(after) <= Fraction(lifetime)
            and (dataset is None or spent_by_patients(series) <= Fraction(dataset))
            and (window is None or spent_by_patients(recent) <= Fraction(window))
        )
        balance = spending.balance(
            "adult",
            dataset=request.dataset,
            partition=request.partition,
            caps=caps,
            now=new.recorded_at,
        )
        assert (request.rho <= balance.remaining_rho) == fits
        try:
            spending.check_caps(request, now=new.recorded_at)
        except BudgetRefused:
            assert not fits
        else:
            assert fits
            rows.append(new)
            spending.record(new)


def granted(spending, *wanted, day=0):
    for one in wanted:
        spending.check_policy(one)
        spending.check_caps(one, now=at(day))
        spending.record(row_of(one, recorded_at=at(day)))


def refusal(spending, wanted, *, day=0):
    with pytest.raises(BudgetRefused) as caught:
        spending.check_caps(wanted, now=at(day))
    return str(caught.value)


def test_every_cap_can_be_lowered_and_never_raised():
    high = Caps(
        lifetime_rho=Decimal(5), dataset_rho=Decimal(5), window_rho=Decimal(5), window_days=7
    )
    for name in ("lifetime_rho", "dataset_rho", "window_rho"):
        spending = Spending()
        granted(spending, charge(1, caps=high))
        low = replace(high, **{name: Decimal("0.2")})
        granted(spending, charge(2, caps=low))
        expected = f"which the {name.removesuffix('_rho')} cap of"
        assert expected in refusal(spending, charge(3, caps=high))
        # It stays although the entry that named it is void.
        for number in (1, 2):
            spending.record(row_of(charge(number), "void"))
        assert expected in refusal(spending, charge(3, caps=high, rho=Decimal("0.3")))


def test_windows_of_two_lengths_hold_both():
    week = Caps(lifetime_rho=Decimal(9), window_rho=Decimal("0.2"), window_days=7)
    month = Caps(lifetime_rho=Decimal(9), window_rho=Decimal("0.3"), window_days=30)
    spending = Spending()
    granted(spending, charge(1, caps=week))
    refused = refusal(spending, charge(2, caps=week, rho=Decimal("0.11")))
    assert "(rho 0.100000000000 of 0.200000000000 left" in refused
    granted(spending, charge(2, caps=month))
    assert "of cohort 'adult' in 7 days still" in refusal(spending, charge(3, caps=month))
    granted(spending, charge(3, caps=month), day=8)
    assert "of cohort 'adult' in 30 days still" in refusal(spending, charge(4, caps=week), day=9)


def part(number, scheme="hash", parts=4):
    return Partition(scheme=scheme, parts=parts, part=number)


def test_parts_of_one_partition_pay_side_by_side():
    spending = Spending()
    granted(spending, *(charge(n, rho=Decimal("0.3"), partition=part(n)) for n in range(4)))
    assert refusal(spending, charge(9, rho=RHO_STEP, partition=part(2))) == (
        "BUDGET_EXCEEDED: expected an epsilon of at most 0 at delta 1e-06, which the lifetime cap "
        "of cohort 'adult' still allows for part 2 of 4 of scheme 'hash', found a request for 1; "
        "no release like this one is left (rho 0 of 0.300000000000 left, 0.000000000001 asked)"
    )
    # The whole cohort holds every part, and another partition cuts the same patients.
    refusal(spending, charge(9, rho=RHO_STEP))
    refusal(spending, charge(9, rho=RHO_STEP, partition=part(0, parts=5)))
    refusal(spending, charge(9, rho=RHO_STEP, partition=part(0, "other")))


def test_above_the_cap_no_part_may_spend():
    spending = Spending()
    granted(spending, charge(1, rho=Decimal("0.2"), partition=part(0)))
    spending.record(adjusted("0.2"))
    # Part 1 itself has spent 0.2 of 0.3, but the sum that the cap bounds is 0.4.
    assert "(rho 0 of 0.300000000000 left" in refusal(spending, charge(2, partition=part(1)))
    balance = spending.balance("adult", dataset=None, partition=part(1), caps=None, now=at(0))
    assert (balance.spent_rho, balance.remaining_rho) == (Decimal("0.2"), 0)


def test_an_adjustment_counts_under_every_cap_of_its_cohort():
    caps = Caps(lifetime_rho=Decimal(9), dataset_rho=Decimal("0.2"))
    spending = Spending([adjusted("0.15")])
    assert "which the dataset cap of" in refusal(spending, charge(1, caps=caps))
    assert "which the dataset cap of" in refusal(spending, charge(1, caps=caps, dataset="another"))
    granted(spending, charge(1, caps=caps, cohort="others"))
    # The dataset now draws on both cohorts: 0.1 there, 0.15 here.
    assert "an epsilon of at most 0 at delta 1e-06, which the dataset" in refusal(
        spending, charge(2, caps=caps, rho=Decimal("0.01"))
    )
    window = Caps(lifetime_rho=Decimal(9), window_rho=Decimal("0.2"), window_days=7)
    assert "which the window cap" in refusal(Spending([adjusted("0.15")]), charge(1, caps=window))
    lifetime = Caps(lifetime_rho=Decimal("0.2"))
    assert "which the lifetime" in refusal(Spending([adjusted("0.15")]), charge(1, caps=lifetime))
    balance = Spending([adjusted("0.15")]).balance(
        "adult", dataset=None, partition=None, caps=None, now=at(0)
    )
    assert (balance.spent_rho, balance.cap_rho, balance.remaining_rho) == (Decimal("0.15"), None, 0)


def test_an_approval_that_was_needed_once_is_needed_for_ever():
    spending = Spending()
    official = charge(1, requester=REQUESTER, needs_approval=True)
    granted(spending, official)
    spending.record(row_of(official, "void"))
    with pytest.raises(LedgerError, match="APPROVAL_REQUIRED: expected a request that needs an ap"):
        spending.check_policy(charge(2))
    spending.check_policy(charge(2, requester=REQUESTER, needs_approval=True))
    spending.check_policy(charge(2, cohort="other"))


def test_charges_of_a_cohort_have_the_same_neighbours():
    spending = Spending()
    spending.record(adjusted("0.1"))
    replaced = charge(1, adjacency=Adjacency.REPLACE_ONE)
    granted(spending, replaced)
    with pytest.raises(LedgerError, match="ADJACENCY_MIXED: expected the adjacency of the earlier"):
        spending.check_policy(charge(2))
    spending.record(row_of(replaced, "void"))
    spending.check_policy(charge(2))


@pytest.mark.parametrize(
    "text",
    ["", "2025-01-01", "2025-01-01T00:00:00Z", "2025-01-01T00:00:00.0000Z",
     "2025-13-01T00:00:00.000Z", "2025-01-01T00:00:00.000+01", "1969-12-31T00:00:00.000Z"],
)  # fmt: skip
def test_a_time_has_one_form(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the caller names the row
        moment(text)


@given(st.lists(st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1)), max_size=5))
def test_times_sort_as_text(moments):
    texts = [time_text(when) for when in moments]
    assert sorted(texts) == [time_text(when) for when in sorted(moments)]
    assert [time_text(moment(text)) for text in texts] == texts
