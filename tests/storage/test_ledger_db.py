# ruff: noqa: S608 - the tests write SQL against a file of their own
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from privacy.errors import BudgetRefused, ConfigurationError, IntegrityError, LedgerError
from privacy.ledger import GENESIS_HASH, EntryState, LedgerEntry, chain_hash
from privacy.parameters import Adjacency
from storage.ledger_db import LedgerDatabase

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "ab" * 32
TRIGGERS = ("journal_no_update", "journal_no_delete", "journal_continues")


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerDatabase:
    return LedgerDatabase(tmp_path / "ledger.sqlite")


def charge(ledger: LedgerDatabase, release_id: str, **changes: Any) -> LedgerEntry:
    arguments: dict[str, Any] = {
        "dataset": "adult",
        "release_id": release_id,
        "rho": Decimal("0.1"),
        "epsilon": 1.0,
        "delta": 1e-6,
        "adjacency": Adjacency.ADD_REMOVE,
        "unit": "one patient",
        "lifetime_cap_rho": Decimal("0.3"),
    }
    return ledger.reserve(**{**arguments, **changes})


def move(ledger: LedgerDatabase, entry: LedgerEntry, *states: str) -> LedgerEntry:
    for state in map(EntryState, states):
        digest = DIGEST if state is EntryState.SEALED else None
        entry = ledger.transition(entry.entry_id, state, expected_from=entry.state, digest=digest)
    return entry


def tamper(ledger: LedgerDatabase, *statements: str) -> None:
    """Run SQL behind the back of the triggers, which are put back afterwards."""
    with sqlite3.connect(ledger.path) as connection:
        triggers = [
            connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", [name]).fetchone()[0]
            for name in TRIGGERS
        ]
        for name in TRIGGERS:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in (*statements, *triggers):
            connection.execute(statement)
    connection.close()


def test_a_reservation_is_charged_at_once(ledger: LedgerDatabase) -> None:
    entry = charge(ledger, "r-1")
    assert (entry.sequence, entry.state, entry.rho) == (1, "reserved", Decimal("0.1"))
    assert (entry.epsilon, entry.delta, entry.unit) == (1.0, 1e-6, "one patient")
    assert entry.recorded_at.endswith("Z")
    assert entry.previous_hash == GENESIS_HASH
    balance = ledger.balance("adult")
    assert (balance.spent_rho, balance.cap_rho) == (Decimal("0.1"), Decimal("0.3"))
    assert balance.releases_left(Decimal("0.1")) == 2
    assert ledger.entries() == ledger.entries("adult") == (entry,)
    assert ledger.entries("other") == ()
    assert ledger.head() == (1, entry.hash)


def test_the_edge_of_a_cap_is_exact(ledger: LedgerDatabase) -> None:
    # 0.1 + 0.2 > 0.3 in binary fractions.
    charge(ledger, "r-1", rho=Decimal("0.1"))
    charge(ledger, "r-2", rho=Decimal("0.2"))
    with pytest.raises(BudgetRefused) as caught:
        charge(ledger, "r-3", rho=Decimal("0.000000000001"))
    assert str(caught.value) == (
        "BUDGET_EXCEEDED: expected at most rho 0, what is left of the lifetime cap "
        "0.300000000000 of dataset 'adult', found a request for 0.000000000001; 0 releases like "
        "this one are left"
    )
    assert len(ledger.history()) == 2
    charge(ledger, "r-3", dataset="other")


def test_a_cap_can_be_lowered_and_never_raised(ledger: LedgerDatabase) -> None:
    charge(ledger, "r-1", lifetime_cap_rho=Decimal("0.3"))
    assert charge(ledger, "r-2", lifetime_cap_rho=Decimal("0.2")).cap_rho == Decimal("0.2")
    with pytest.raises(BudgetRefused, match=r"cap 0\.200000000000 of dataset 'adult'"):
        charge(ledger, "r-3", lifetime_cap_rho=Decimal(10))


def test_a_release_is_charged_once(ledger: LedgerDatabase) -> None:
    charge(ledger, "r-1")
    with pytest.raises(LedgerError, match="RELEASE_CHARGED: expected a release without an entry"):
        charge(ledger, "r-1", dataset="other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 0.1}, "RHO_INVALID"),
        ({"rho": Decimal("NaN")}, "RHO_INVALID"),
        ({"lifetime_cap_rho": Decimal(-1)}, "RHO_INVALID"),
        ({"epsilon": float("inf")}, "EPSILON_INVALID"),
        ({"delta": 0.5}, "DELTA_INVALID"),
        ({"dataset": ""}, "LEDGER_TEXT_INVALID: expected dataset as one line of 1 to 200 print"),
        ({"unit": "two\nlines"}, "LEDGER_TEXT_INVALID: expected unit as one line"),
    ],
)
def test_arguments_outside_their_range_are_refused(
    ledger: LedgerDatabase, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        charge(ledger, "r-1", **changes)
    assert ledger.history() == ()


def test_an_entry_goes_its_way_and_keeps_its_amounts(ledger: LedgerDatabase) -> None:
    entry = charge(ledger, "r-1")
    last = move(ledger, entry, "executing", "sealed", "approved", "published", "revoked")
    rows = ledger.history()
    assert [row.sequence for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {(row.entry_id, row.rho, row.cap_rho) for row in rows} == {
        (entry.entry_id, entry.rho, entry.cap_rho)
    }
    assert [row.digest for row in rows] == [None, None, *[DIGEST] * 4]
    assert ledger.entries() == (last,)
    assert ledger.balance("adult").spent_rho == Decimal("0.1")
    ledger.verify()


@pytest.mark.parametrize(
    ("way", "spent"),
    [
        (["void"], 0),
        (["executing", "burned"], 1),
        (["executing", "sealed", "withheld"], 1),
        (["executing", "sealed", "approved", "withheld"], 1),
    ],
)
def test_only_a_reservation_can_be_given_back(
    ledger: LedgerDatabase, way: list[str], spent: int
) -> None:
    move(ledger, charge(ledger, "r-1"), *way)
    assert ledger.balance("adult").spent_rho == spent * Decimal("0.1")
    ledger.verify()


def test_a_void_entry_makes_room_for_another_release(ledger: LedgerDatabase) -> None:
    move(ledger, charge(ledger, "r-1", rho=Decimal("0.3")), "void")
    charge(ledger, "r-2", rho=Decimal("0.3"))
    ledger.verify()


def test_a_transition_from_another_state_is_refused(ledger: LedgerDatabase) -> None:
    entry = charge(ledger, "r-1")
    move(ledger, entry, "executing")
    with pytest.raises(
        LedgerError, match=r"STATE_CHANGED: expected entry .* to be reserved, found"
    ):
        move(ledger, entry, "executing")
    with pytest.raises(LedgerError, match="TRANSITION_REFUSED"):
        ledger.transition(entry.entry_id, EntryState.VOID, expected_from=EntryState.EXECUTING)
    with pytest.raises(LedgerError, match="ENTRY_UNKNOWN: expected an entry, found no 'e-0'"):
        ledger.transition("e-0", EntryState.VOID, expected_from=EntryState.RESERVED)


def test_a_seal_needs_a_digest_and_a_note_is_one_line(ledger: LedgerDatabase) -> None:
    entry = move(ledger, charge(ledger, "r-1"), "executing")
    sealing = {"expected_from": EntryState.EXECUTING}
    with pytest.raises(LedgerError, match="DIGEST_MISSING: expected the digest of the result"):
        ledger.transition(entry.entry_id, EntryState.SEALED, **sealing)
    with pytest.raises(ConfigurationError, match="DIGEST_INVALID: expected a SHA-256 digest of 64"):
        ledger.transition(entry.entry_id, EntryState.SEALED, **sealing, digest="AB" * 32)
    with pytest.raises(ConfigurationError, match="expected note as one line"):
        ledger.transition(entry.entry_id, EntryState.BURNED, **sealing, note="a\nb")
    burned = ledger.transition(entry.entry_id, EntryState.BURNED, **sealing, note="DRAW_FAILED")
    assert burned.note == "DRAW_FAILED"


def test_entries_of_dead_runs_are_closed(ledger: LedgerDatabase) -> None:
    move(ledger, charge(ledger, "dead-1", rho=Decimal("0.05")), "executing")
    charge(ledger, "dead-2", rho=Decimal("0.05"))
    move(ledger, charge(ledger, "live-1", rho=Decimal("0.05")), "executing")
    charge(ledger, "live-2", rho=Decimal("0.05"))
    move(ledger, charge(ledger, "done", rho=Decimal("0.05")), "executing", "sealed")
    closed = ledger.burn_abandoned({"live-1", "live-2"})
    assert [(row.release_id, row.state, row.note) for row in closed] == [
        ("dead-1", "burned", "ABANDONED"),
        ("dead-2", "void", "ABANDONED"),
    ]
    states = {row.release_id: row.state.value for row in ledger.entries()}
    assert states == {
        "dead-1": "burned",
        "dead-2": "void",
        "live-1": "executing",
        "live-2": "reserved",
        "done": "sealed",
    }
    assert ledger.balance("adult").spent_rho == Decimal("0.2")
    assert ledger.burn_abandoned({"live-1", "live-2"}) == ()
    ledger.verify()


def test_the_file_is_for_its_owner_alone_and_on_disk_at_commit(ledger: LedgerDatabase) -> None:
    charge(ledger, "r-1")
    with ledger._transaction(write=True) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        modes = {path.name: path.stat().st_mode & 0o777 for path in ledger.path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"], 0o600
    )


def test_a_ledger_that_others_can_read_is_refused(ledger: LedgerDatabase) -> None:
    ledger.path.chmod(0o640)
    with pytest.raises(LedgerError, match="LEDGER_PERMISSIONS: expected the ledger to be readable"):
        LedgerDatabase(ledger.path)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="expected the directory of the ledger to exist; create"):
        LedgerDatabase(tmp_path / "missing" / "ledger.sqlite")


def test_a_ledger_that_vanished_is_not_replaced_by_an_empty_one(ledger: LedgerDatabase) -> None:
    charge(ledger, "r-1")
    ledger.path.unlink()
    with pytest.raises(LedgerError, match="LEDGER_UNAVAILABLE: expected a ledger that can be read"):
        ledger.balance("adult")
    assert not ledger.path.exists()


def test_a_file_that_is_not_a_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database" * 1000)
    path.chmod(0o600)
    with pytest.raises(LedgerError, match="found: file is not a database; check the file"):
        LedgerDatabase(path)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE journal SET rho = '0.000000000001'", "UPDATE refused"),
        ("DELETE FROM journal WHERE sequence = 2", "DELETE refused"),
        ("DELETE FROM journal", "DELETE refused"),
        ("INSERT OR REPLACE INTO journal SELECT * FROM journal WHERE sequence = 1", "INSERT must"),
        ("REPLACE INTO journal SELECT * FROM journal WHERE sequence = 2", "INSERT must continue"),
        (
            "INSERT INTO journal (entry_id, state, dataset, release_id, rho, epsilon, delta, "
            "adjacency, unit, cap_rho, recorded_at, previous_hash, hash) VALUES "
            "('e', 'reserved', 'd', 'r', '1', '1', '1', 'a', 'u', '1', 't', '0', '0')",
            "INSERT must continue it",
        ),
        (
            "INSERT INTO journal SELECT 3, 'e', state, dataset, 'r-9', rho, epsilon, delta, "
            "adjacency, unit, cap_rho, digest, note, recorded_at, 'wrong', hash FROM journal "
            "WHERE sequence = 1",
            "INSERT must continue it",
        ),
        (
            "INSERT INTO journal SELECT * FROM journal WHERE sequence = 1 "
            "ON CONFLICT (sequence) DO UPDATE SET rho = '9'",
            "INSERT must continue it",
        ),
    ],
)
def test_raw_sql_cannot_change_the_journal(
    ledger: LedgerDatabase, statement: str, message: str
) -> None:
    charge(ledger, "r-1")
    charge(ledger, "r-2")
    before = ledger.history()
    connection = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError, match=f"the journal is append-only: {message}"):
        connection.execute(statement)
    connection.close()
    assert ledger.history() == before
    ledger.verify()


@pytest.mark.parametrize(
    "column",
    ["entry_id", "dataset", "release_id", "rho", "epsilon", "delta", "unit", "cap_rho", "digest",
     "note", "recorded_at", "previous_hash", "hash"],
)  # fmt: skip
def test_a_changed_field_is_found_and_named(ledger: LedgerDatabase, column: str) -> None:
    for release_id in ("r-1", "r-2", "r-3"):
        charge(ledger, release_id)
    value = "0.000000000002" if column in {"rho", "epsilon", "delta", "cap_rho"} else "x"
    tamper(ledger, f"UPDATE journal SET {column} = '{value}' WHERE sequence = 2")
    with pytest.raises(IntegrityError, match=r"LEDGER_DAMAGED: sequence 2: expected the hash that"):
        ledger.verify()
    # Nothing is spent on a damaged ledger.
    with pytest.raises(IntegrityError, match=r"sequence 2: .*; publish nothing and restore"):
        charge(ledger, "r-4", dataset="other")


@pytest.mark.parametrize(
    ("column", "value"),
    [("state", "free"), ("rho", "nothing"), ("rho", "-1"), ("adjacency", "x"), ("epsilon", "one")],
)
def test_a_row_that_cannot_be_read_is_named(
    ledger: LedgerDatabase, column: str, value: str
) -> None:
    charge(ledger, "r-1")
    tamper(ledger, f"UPDATE journal SET {column} = '{value}' WHERE sequence = 1")
    with pytest.raises(
        IntegrityError, match="sequence 1: expected amounts and a state that can be"
    ):
        ledger.verify()


@pytest.mark.parametrize("sequence", [1, 2])
def test_a_removed_row_is_found_and_named(ledger: LedgerDatabase, sequence: int) -> None:
    for release_id in ("r-1", "r-2", "r-3"):
        charge(ledger, release_id)
    tamper(ledger, f"DELETE FROM journal WHERE sequence = {sequence}")
    with pytest.raises(IntegrityError, match=f"sequence {sequence}: expected a row, found none"):
        ledger.verify()


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_missing_trigger_is_found(ledger: LedgerDatabase, trigger: str) -> None:
    charge(ledger, "r-1")
    with sqlite3.connect(ledger.path) as connection:
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.close()
    for action in (
        ledger.verify,
        lambda: charge(ledger, "r-2"),
        lambda: LedgerDatabase(ledger.path),
    ):
        with pytest.raises(IntegrityError, match="expected the journal table with its three trig"):
            action()


def rewrite(ledger: LedgerDatabase, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change rows and compute every hash anew, as somebody who knows the format would."""
    with sqlite3.connect(ledger.path) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM journal ORDER BY sequence")]
    connection.close()
    change(rows)
    previous_hash, statements = GENESIS_HASH, ["DELETE FROM journal"]
    for row in rows:
        del row["hash"], row["previous_hash"]
        row_hash = chain_hash(previous_hash, row)
        values = [*row.values(), previous_hash, row_hash]
        quoted = ", ".join("NULL" if v is None else f"'{v}'" for v in values)
        statements.append(f"INSERT INTO journal VALUES ({quoted})")
        previous_hash = row_hash
    tamper(ledger, *statements)


@pytest.mark.parametrize(
    ("sequence", "changes", "message"),
    [
        (3, {"rho": "0.000000000001"}, "sequence 3: expected the amounts of the reservation"),
        (3, {"state": "void"}, "sequence 3: expected a state that may follow executing"),
        (1, {"state": "sealed"}, "sequence 1: expected an entry to begin as reserved"),
        (4, {"release_id": "r-1"}, "sequence 4: expected one entry per release"),
        (4, {"rho": "0.250000000000"}, "sequence 4: expected the balance to stay under the cap"),
        (4, {"cap_rho": "0.150000000000"}, "sequence 4: expected the balance to stay under"),
    ],
)
def test_a_forged_chain_must_still_keep_the_rules(
    ledger: LedgerDatabase, sequence: int, changes: dict[str, str], message: str
) -> None:
    move(ledger, charge(ledger, "r-1"), "executing", "sealed")
    charge(ledger, "r-2")
    rewrite(ledger, lambda rows: rows[sequence - 1].update(changes))
    with pytest.raises(IntegrityError, match=message):
        ledger.verify()


def test_a_rollback_is_found_by_an_exported_head(ledger: LedgerDatabase, tmp_path: Path) -> None:
    ledger.verify(expected_head=ledger.head())
    charge(ledger, "r-1")
    backup = tmp_path / "backup.sqlite"
    shutil.copy(ledger.path, backup)
    charge(ledger, "r-2")
    exported = ledger.head()
    charge(ledger, "r-3")
    ledger.verify(expected_head=exported)
    shutil.copy(backup, ledger.path)
    ledger.verify()
    with pytest.raises(IntegrityError, match="sequence 2: expected the row of the exported head"):
        ledger.verify(expected_head=exported)


def test_a_history_that_was_written_anew_is_found_by_an_exported_head(
    ledger: LedgerDatabase,
) -> None:
    charge(ledger, "r-1")
    exported = ledger.head()
    rewrite(ledger, lambda rows: rows[0].update(rho="0.000000000001"))
    ledger.verify()
    with pytest.raises(IntegrityError, match=r"sequence 1: .* was rolled back or rewritten"):
        ledger.verify(expected_head=exported)


def test_threads_race_for_a_cap_and_the_cap_is_kept(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def race(worker: int) -> int:
        barrier.wait()
        ledger = LedgerDatabase(tmp_path / "ledger.sqlite")
        granted = 0
        for attempt in range(3):
            try:
                charge(ledger, f"r-{worker}-{attempt}", lifetime_cap_rho=Decimal("1.1"))
                granted += 1
            except BudgetRefused:
                pass
        return granted

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 11
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite")
    assert ledger.balance("adult").remaining_rho == 0
    ledger.verify()


def test_threads_race_for_one_entry_and_one_wins(ledger: LedgerDatabase) -> None:
    entry = charge(ledger, "r-1")
    barrier = threading.Barrier(8)

    def race(_: int) -> str:
        barrier.wait()
        try:
            return move(ledger, entry, "executing").state.value
        except LedgerError as error:
            return error.code

    with ThreadPoolExecutor(8) as pool:
        outcomes = Counter(pool.map(race, range(8)))
    assert outcomes == {"executing": 1, "STATE_CHANGED": 7}
    ledger.verify()


# A process that charges releases and says so only after the ledger has agreed.
WORKER = """
import sys
from decimal import Decimal
from pathlib import Path
from privacy.errors import BudgetRefused
from privacy.ledger import EntryState
from privacy.parameters import Adjacency
from storage.ledger_db import LedgerDatabase

ledger = LedgerDatabase(Path(sys.argv[1]))
for attempt in range(int(sys.argv[3])):
    try:
        entry = ledger.reserve(
            dataset="adult", release_id=f"{sys.argv[2]}-{attempt}", rho=Decimal("0.1"),
            epsilon=1.0, delta=1e-6, adjacency=Adjacency.ADD_REMOVE, unit="one patient",
            lifetime_cap_rho=Decimal(sys.argv[4]),
        )
    except BudgetRefused:
        continue
    sys.stdout.write(f"{entry.release_id}\\n")
    sys.stdout.flush()
    ledger.transition(entry.entry_id, EntryState.EXECUTING, expected_from=EntryState.RESERVED)
"""


def start_worker(path: Path, name: str, *, attempts: int, cap: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), name, str(attempts), cap],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.parametrize("acknowledged_before_the_kill", [1, 2, 5, 9])
def test_a_killed_process_never_loses_what_it_was_granted(
    tmp_path: Path, acknowledged_before_the_kill: int
) -> None:
    path = tmp_path / "ledger.sqlite"
    with start_worker(path, "r", attempts=10**6, cap="1000") as worker:
        assert worker.stdout is not None
        acknowledged = [worker.stdout.readline() for _ in range(acknowledged_before_the_kill)]
        os.kill(worker.pid, signal.SIGKILL)
        acknowledged += worker.stdout.readlines()
    assert worker.returncode == -signal.SIGKILL
    ledger = LedgerDatabase(path)
    ledger.verify()
    granted = [row.release_id for row in ledger.entries()]
    # The one that was being granted at the moment of death may be there without an answer.
    names = [line.strip() for line in acknowledged if line.endswith("\n")]
    assert granted[: len(names)] == names
    assert len(granted) - len(names) <= 1
    assert ledger.balance("adult").spent_rho >= len(names) * Decimal("0.1")
    # The ledger goes on, and what may have been drawn stays charged.
    before = ledger.balance("adult").spent_rho
    closed = ledger.burn_abandoned(())
    voided = sum((row.rho for row in closed if row.state is EntryState.VOID), start=Decimal(0))
    assert voided <= Decimal("0.1")
    assert ledger.balance("adult").spent_rho == before - voided
    charge(ledger, "after", lifetime_cap_rho=Decimal(1000))
    ledger.verify()


def test_processes_race_for_a_cap_and_the_cap_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    workers = [start_worker(path, f"w{n}", attempts=4, cap="1.3") for n in range(4)]
    outputs = [worker.communicate()[0].split() for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    assert sum(map(len, outputs)) == 13
    ledger = LedgerDatabase(path)
    assert ledger.balance("adult").spent_rho == Decimal("1.3")
    assert {row.release_id for row in ledger.entries()} == {name for o in outputs for name in o}
    ledger.verify()


def test_the_journal_is_json_ready_text(ledger: LedgerDatabase) -> None:
    # An auditor without this software can compute the chain: plain text, integers and NULL.
    entry = charge(ledger, "r-1")
    connection = sqlite3.connect(ledger.path)
    connection.row_factory = sqlite3.Row
    row = dict(connection.execute("SELECT * FROM journal").fetchone())
    connection.close()
    assert row["rho"] == "0.100000000000"
    assert row["delta"] == "1e-06"
    del row["previous_hash"], row["hash"]
    assert json.loads(json.dumps(row)) == row
    assert chain_hash(GENESIS_HASH, row) == entry.hash
