from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from ledger_requests import DIGEST, OFFICERS, REQUESTER, charge

from privacy.charges import Caps, Partition
from privacy.errors import BudgetRefused, ConfigurationError, LedgerError
from privacy.ledger import GENESIS_HASH, EntryState
from storage.ledger.ledger_db import new_entry_id


@pytest.fixture
def ledger(backend):
    return backend.open()


def reserve(ledger, number, **changes):
    reservation = ledger.reserve(charge(number, **changes))
    assert reservation.created
    return reservation.entry


def move(ledger, entry, *states, **how):
    for state in map(EntryState, states):
        digest = DIGEST if state is EntryState.SEALED else None
        entry = ledger.transition(
            entry.entry_id, state, expected_from=entry.state, digest=digest, **how
        )
    return entry


def test_a_reservation_is_charged_at_once(ledger):
    caps = Caps(
        lifetime_rho=Decimal("0.3"),
        dataset_rho=Decimal("0.25"),
        window_rho=Decimal("0.2"),
        window_days=30,
    )
    # Texts of any script are kept.
    texts = {"cohort": "Größe 患者", "unit": 'it\'s "one"; DROP TABLE journal --'}
    people = {"requester": REQUESTER, "needs_approval": True}
    part = Partition(scheme="hash", parts=3, part=2)
    wanted = charge(1, partition=part, caps=caps, **texts, **people)
    entry = ledger.reserve(wanted).entry
    assert (entry.sequence, entry.state, entry.rho) == (1, "reserved", Decimal("0.1"))
    assert entry.charge == wanted
    assert (entry.digest, entry.note, entry.signers) == (None, None, ())
    assert entry.recorded_at.endswith("Z")
    assert entry.previous_hash == GENESIS_HASH
    balance = ledger.balance(texts["cohort"])
    assert (balance.spent_rho, balance.cap_rho) == (Decimal("0.1"), Decimal("0.3"))
    assert ledger.history() == ledger.entries() == ledger.entries(texts["cohort"]) == (entry,)
    assert ledger.entry(entry.entry_id) == entry
    assert ledger.entries("adult-yearly") == ()
    assert ledger.head() == (1, entry.hash)
    ledger.verify()


def test_the_edge_of_a_cap_is_exact(ledger):
    # 0.1 + 0.2 > 0.3 in binary fractions.
    reserve(ledger, 1, rho=Decimal("0.1"))
    reserve(ledger, 2, rho=Decimal("0.2"))
    with pytest.raises(BudgetRefused) as caught:
        reserve(ledger, 3, rho=Decimal("0.000000000001"))
    assert str(caught.value) == (
        "BUDGET_EXCEEDED: expected an epsilon of at most 0 at delta 1e-06, which the lifetime cap "
        "of cohort 'adult' still allows, found a request for 1; no release like this one is left "
        "(rho 0 of 0.300000000000 left, 0.000000000001 asked)"
    )
    assert len(ledger.history()) == 2
    reserve(ledger, 3, cohort="other")


def test_a_clock_that_is_set_back_shortens_no_window(backend, monkeypatch):
    ledger = backend.open()
    caps = Caps(lifetime_rho=Decimal(1), window_rho=Decimal("0.1"), window_days=7)
    backend.set_clock(monkeypatch, "2025-01-10T00:00:00.000Z")
    entry = reserve(ledger, 1, caps=caps)
    for earlier in ("2025-01-09T00:00:00.000Z", "2020-01-01T00:00:00.000Z"):
        backend.set_clock(monkeypatch, earlier)
        with pytest.raises(BudgetRefused, match="window cap"):
            reserve(ledger, 2, caps=caps)
        assert ledger.balance("adult").remaining_rho == 0
    assert move(ledger, entry, "executing").recorded_at == "2025-01-10T00:00:00.000Z"
    # The window is of the time that was recorded, not of the one that the clock fell back to.
    backend.set_clock(monkeypatch, "2025-01-16T23:59:59.999Z")
    with pytest.raises(BudgetRefused, match="window cap"):
        reserve(ledger, 2, caps=caps)
    backend.set_clock(monkeypatch, "2025-01-17T00:00:00.000Z")
    reserve(ledger, 2, caps=caps)
    times = [row.recorded_at for row in ledger.history()]
    assert times == sorted(times)
    ledger.verify()


@pytest.mark.parametrize(
    ("way", "new_draw", "spent"),
    [(["void"], False, 1), (["executing", "burned"], False, 2), ([], True, 2)],
)
def test_a_request_that_left_nothing_or_wants_new_noise_is_charged_anew(
    ledger, way, new_draw, spent
):
    move(ledger, reserve(ledger, 1), *way)
    second = ledger.reserve(charge(1, release_id="r-again"), new_draw=new_draw)
    assert second.created
    assert ledger.balance("adult").spent_rho == spent * Decimal("0.1")
    assert ledger.reserve(charge(1, release_id="r-third")).entry == second.entry
    ledger.verify()


def test_a_request_key_stands_for_one_charge_and_so_does_a_release(ledger):
    reserve(ledger, 1)
    for changes in (
        {"cohort": "other"},
        {"dataset": "other"},
        {"rho": Decimal("0.05")},
        {"unit": "one row"},
        {"partition": Partition(scheme="hash", parts=2, part=0)},
    ):
        with pytest.raises(LedgerError, match=r"REQUEST_KEY_USED: expected the charge of entry e-"):
            ledger.reserve(charge(1, release_id="r-again", **changes))
    for wanted, new_draw in (
        (charge(2, release_id="r-1", cohort="other"), False),
        (charge(1), True),
    ):
        with pytest.raises(LedgerError, match="RELEASE_CHARGED: expected a release without an ent"):
            ledger.reserve(wanted, new_draw=new_draw)


def test_a_transition_from_another_state_is_refused(ledger):
    entry = reserve(ledger, 1)
    move(ledger, entry, "executing")
    with pytest.raises(LedgerError, match=r"STATE_CHANGED: expected entry .* to be reserved, foun"):
        move(ledger, entry, "executing")
    with pytest.raises(LedgerError, match="TRANSITION_REFUSED"):
        ledger.transition(entry.entry_id, EntryState.VOID, expected_from=EntryState.EXECUTING)
    with pytest.raises(LedgerError, match="ENTRY_UNKNOWN: expected an entry, found no 'e-0'"):
        ledger.transition("e-0", EntryState.VOID, expected_from=EntryState.RESERVED)


def test_an_approval_is_signed_by_another_person(ledger):
    official = {"requester": REQUESTER, "needs_approval": True}
    entry = move(ledger, reserve(ledger, 1, **official), "executing", "sealed")
    for signers, code in (((), "APPROVAL_MISSING"), ((REQUESTER,), "APPROVER_IS_REQUESTER")):
        with pytest.raises(LedgerError, match=code):
            move(ledger, entry, "approved", signers=signers)
    approved = move(ledger, entry, "approved", signers=OFFICERS[:1], note="a reason")
    assert approved.signers == OFFICERS[:1]
    assert move(ledger, approved, "published").signers == ()
    with pytest.raises(LedgerError, match="APPROVAL_REQUIRED"):
        ledger.reserve(charge(2))
    reserve(ledger, 2, **official)
    ledger.verify()


def test_two_people_enter_what_was_spent_elsewhere(ledger):
    spent = {"cohort": "adult", "rho": Decimal("0.2"), "reason": "a pilot of 2019"}
    given = {**spent, "signers": OFFICERS}
    for changes, error, message in (
        ({"signers": OFFICERS[:1]}, LedgerError, "TWO_PEOPLE: expected an adjustment to be sig"),
        ({"rho": Decimal(-1)}, ConfigurationError, "RHO_INVALID"),
        ({"reason": ""}, ConfigurationError, "expected reason as one line"),
        ({"cohort": "a\tb"}, ConfigurationError, "expected cohort as one line"),
    ):
        with pytest.raises(error, match=message):
            ledger.adjust(**{**given, **changes}, entry_id=new_entry_id())
    entry = ledger.adjust(**given, entry_id=new_entry_id())
    assert ledger.history() == (entry,)
    assert (entry.state, entry.rho, entry.note) == ("adjusted", Decimal("0.2"), "a pilot of 2019")
    assert (entry.signers, entry.release_id, entry.counts) == (OFFICERS, "", True)
    assert ledger.balance("adult").spent_rho == Decimal("0.2")
    reserve(ledger, 1)
    with pytest.raises(BudgetRefused, match="lifetime cap"):
        reserve(ledger, 2, rho=Decimal("0.000000000001"))
    # It records what has happened, also above the cap.
    ledger.adjust(**spent, signers=OFFICERS[::-1], entry_id=new_entry_id())
    balance = ledger.balance("adult")
    assert (balance.spent_rho, balance.remaining_rho) == (Decimal("0.5"), 0)
    ledger.verify()


def test_threads_that_share_a_ledger_never_spend_twice(ledger):
    caps = Caps(lifetime_rho=Decimal("0.5"))

    def ask(number):
        try:
            return ledger.reserve(charge(number % 12, caps=caps)).created
        except BudgetRefused:
            return False

    with ThreadPoolExecutor(8) as threads:
        granted = list(threads.map(ask, range(24)))
    assert sum(granted) == len(ledger.entries()) == 5
    assert ledger.balance("adult").spent_rho == Decimal("0.5")
    ledger.verify()
