import json
import os
import signal
import time
from collections import Counter
from decimal import Decimal

import ledger_backends
import numpy as np
import postgres_server
import pytest
from ledger_requests import DIGEST, charge, race, stream

from privacy.charges import Caps
from privacy.errors import LedgerError
from privacy.ledger import EntryState
from storage.ledger.ledger_db import LedgerDatabase

WIDE = Caps(lifetime_rho=Decimal(1000))
ONCE = pytest.mark.integration
OFTEN = [pytest.mark.soak, pytest.mark.timeout(1800)]
SEED = 20250101


def in_turns(often):
    """Once for `make integration`, and often for `make soak`."""
    turns = [pytest.param(1, marks=ONCE), pytest.param(often, marks=OFTEN)]
    return pytest.mark.parametrize("turns", turns)


def answers_in(lines):
    """Return the answers of a process, but for one that it was killed at."""
    return [json.loads(line) for line in lines if line.endswith("\n")]


def granted_in(answers):
    return [answer["release_id"] for answer in answers if answer["granted"]]


@in_turns(50)
def test_of_eight_identical_requests_one_is_charged(backend, turns):
    # The ledger itself is created in the first race.
    for turn in range(turns):
        jobs = [
            {"kind": "reserve", "request": turn, "release_id": f"r-{turn}-{n}", "cap": "1000"}
            for n in range(8)
        ]
        outcomes = race(backend.location, jobs)
        assert Counter(outcome["outcome"] for outcome in outcomes) == {"created": 1, "repeated": 7}
        assert len({outcome["entry"] for outcome in outcomes}) == 1
    ledger = backend.open()
    assert len(ledger.history()) == turns
    ledger.verify()


@in_turns(25)
@pytest.mark.parametrize("name", ledger_backends.BOTH)
def test_of_thirty_two_requests_a_cap_for_ten_grants_ten(name, tmp_path, turns):
    jobs = [
        {"kind": "reserve", "request": n, "release_id": f"r-{n}", "cap": "1.0"} for n in range(32)
    ]
    for turn in range(turns):
        (tmp_path / str(turn)).mkdir()
        backend = ledger_backends.backend(name, tmp_path / str(turn))
        outcomes = race(backend.location, jobs)
        assert Counter(outcome["outcome"] for outcome in outcomes) == {
            "created": 10,
            "BUDGET_EXCEEDED": 22,
        }
        ledger = backend.open()
        granted = {outcome["entry"] for outcome in outcomes if outcome["outcome"] == "created"}
        assert {row.entry_id for row in ledger.entries()} == granted
        assert ledger.balance("adult").spent_rho == Decimal(1)
        ledger.verify()


@in_turns(50)
def test_of_eight_that_take_one_entry_one_executes(backend, turns):
    ledger = backend.open()
    for turn in range(turns):
        entry = ledger.reserve(charge(turn, rho=Decimal("0.001"))).entry
        job = {"kind": "move", "entry": entry.entry_id, "from": "reserved", "to": "executing"}
        outcomes = Counter(outcome["outcome"] for outcome in race(backend.location, [job] * 8))
        assert outcomes == {"executing": 1, "STATE_CHANGED": 7}
        # Sealing and burning are raced for as well: exactly one of them is true.
        jobs = [
            {**job, "from": "executing", "to": to, "digest": digest}
            for to, digest in (("sealed", DIGEST), ("burned", None))
        ]
        outcomes = Counter(outcome["outcome"] for outcome in race(backend.location, jobs * 4))
        assert sum(outcomes[to] for to in ("sealed", "burned")) == 1
        assert outcomes["STATE_CHANGED"] == 7
    assert len(ledger.history()) == 3 * turns
    ledger.verify()


@pytest.mark.parametrize(
    ("seed", "kills"),
    [pytest.param(0, 1, marks=ONCE), *(pytest.param(n, 20, marks=OFTEN) for n in range(10))],
)
def test_a_killed_process_never_loses_what_it_was_granted(backend, tmp_path, seed, kills):
    head_file = tmp_path / "releases" / "head"
    ledger = backend.open(head_file=head_file)
    granted = []
    for number, delay in enumerate(np.random.default_rng([SEED, seed]).uniform(0, 0.3, kills)):
        with stream(backend.location, head_file=head_file, first=number * 10**6) as worker:
            # From the first answer on: before it the process only starts.
            lines = [worker.stdout.readline()]
            time.sleep(delay)
            os.kill(worker.pid, signal.SIGKILL)
            lines += worker.stdout.readlines()
        assert worker.returncode == -signal.SIGKILL
        granted += granted_in(answers_in(lines))
        ledger.verify()
        rows = [row.release_id for row in ledger.entries()]
        assert [release for release in rows if release in granted] == granted
        # Those that were being granted at the moment of death may be there without an answer.
        assert len(rows) - len(granted) <= number + 1
    # The ledger goes on; those are void after clean-up, for nobody has read data under them.
    for entry in ledger.entries():
        if entry.release_id not in granted:
            ledger.transition(entry.entry_id, EntryState.VOID, expected_from=EntryState.RESERVED)
    assert ledger.balance("adult").spent_rho == len(granted) * Decimal("0.1")
    ledger.reserve(charge(10**9, caps=WIDE))
    ledger.verify()


def answers_of(location, **how):
    with stream(location, **how) as worker:
        return answers_in(worker.stdout)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(40_000, marks=ONCE),
        *(pytest.param(size, marks=pytest.mark.soak) for size in range(33_000, 53_000, 2_000)),
    ],
)
def test_a_full_disk_refuses_and_what_was_granted_is_charged(tmp_path, size):
    location, head_file = tmp_path / "ledger.sqlite", tmp_path / "releases" / "head"
    # SQLite's shared memory takes 32768 bytes; the limit is met by the rows, at about the 75th.
    answers = answers_of(location, head_file=head_file, bytes_per_file=size)
    *before, last = answers
    assert len(before) > 10 or size < 40_000
    assert all(answer["granted"] for answer in before)
    assert (last["granted"], last["code"]) == (False, "LEDGER_UNAVAILABLE")
    ledger = LedgerDatabase(location, head_file=head_file)
    ledger.verify()
    assert set(granted_in(answers)) == {row.release_id for row in ledger.entries()}
    ledger.reserve(charge(10**6, caps=WIDE))


@in_turns(20)
def test_a_server_that_crashes_forgets_nothing_that_it_granted(turns):
    backend = ledger_backends.PostgresBackend()
    server = postgres_server.server()
    ledger = backend.open()
    workers = [
        stream(backend.location, keep_going=True, first=n * 10**6, cap="900000") for n in range(3)
    ]
    try:
        lines = [worker.stdout.readline() for worker in workers]
        for delay in np.random.default_rng(SEED).uniform(0, 1.0, size=turns):
            time.sleep(delay)
            server.stop("immediate")
            time.sleep(0.3)  # a worker that is refused asks again after 0.2 seconds
            server.start()
            recovered = len(ledger.history())
            while len(ledger.history()) == recovered:
                time.sleep(0.05)  # until one is granted after the crash
    finally:
        for worker in workers:
            worker.kill()
    for worker in workers:
        with worker:
            lines += worker.stdout.readlines()
    answers = answers_in(lines)
    assert {answer.get("code", "granted") for answer in answers} == {
        "granted",
        "LEDGER_UNAVAILABLE",
    }
    granted = set(granted_in(answers))
    ledger.verify()
    rows = {row.release_id for row in ledger.entries()}
    assert granted <= rows
    # Without an answer: one of each worker at each crash, and at its end.
    assert len(rows - granted) <= len(workers) * (turns + 1)
    assert ledger.balance("adult").spent_rho == len(rows) * Decimal("0.1")
    # A second request for a charge without an answer pays once.
    for answer in answers:
        if not answer["granted"]:
            number = int(answer["release_id"].removeprefix("r-"))
            again = ledger.reserve(charge(number, caps=Caps(lifetime_rho=Decimal(900_000))))
            assert again.created is (answer["release_id"] not in rows)
    ledger.verify()


@ONCE
def test_a_server_that_crashes_before_the_commit_has_charged_nothing(monkeypatch):
    backend = ledger_backends.PostgresBackend()
    server = postgres_server.server()
    ledger = backend.open()
    entry = ledger.reserve(charge(1)).entry

    def crash(connection, query):
        server.stop("immediate")
        return "2100-01-01T00:00:00.000Z"

    with monkeypatch.context() as patch:
        patch.setattr("storage.ledger.journal.read_clock", crash)
        with pytest.raises(LedgerError, match="LEDGER_UNAVAILABLE: expected the PostgreSQL ledger"):
            ledger.transition(
                entry.entry_id, EntryState.EXECUTING, expected_from=EntryState.RESERVED
            )
    try:
        with pytest.raises(LedgerError, match="LEDGER_UNAVAILABLE"):
            ledger.history()
    finally:
        server.start()
    assert ledger.history() == (entry,)
