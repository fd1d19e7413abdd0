# ruff: noqa: S608 - the tests write SQL against a database of their own

from decimal import Decimal

import ledger_backends
import pytest
from ledger_requests import DIGEST, OFFICERS, REQUESTER, charge

from privacy.errors import IntegrityError
from privacy.ledger import GENESIS_HASH, EntryState
from privacy.parameters import Adjacency
from storage.ledger.journal_rows import COLUMNS

BROKEN = "expected the hash that continues the chain"
OTHER = "expected the row that follows by the rules"
UNREADABLE = "expected amounts and a state that can be read"


def fill(ledger, count):
    for number in range(1, count + 1):
        ledger.reserve(charge(number))


STATEMENTS = [
    ("UPDATE {t} SET rho = '0.000000000001'", "UPDATE refused"),
    ("UPDATE {t} SET sequence = sequence + 7 WHERE sequence = 2", "UPDATE refused"),
    ("DELETE FROM {t}", "DELETE refused"),
    ("INSERT INTO {t} SELECT * FROM {t} WHERE sequence = 1", "INSERT must continue it"),
    (
        "INSERT INTO {t} SELECT * FROM {t} WHERE sequence = 1 "
        "ON CONFLICT (sequence) DO UPDATE SET rho = '9'",
        "refused|INSERT must continue it",
    ),
]
ONLY_SQLITE = [("REPLACE INTO {t} SELECT * FROM {t} WHERE sequence = 2", "INSERT must continue it")]
ONLY_POSTGRES = [
    ("TRUNCATE {t}", "TRUNCATE refused"),
    (
        "MERGE INTO {t} USING (SELECT 1) AS s ON sequence = 1 WHEN MATCHED THEN DELETE",
        "DELETE refused",
    ),
    ("SET session_replication_role = replica; DELETE FROM {t}", "DELETE refused"),
]


def test_raw_sql_cannot_change_the_journal(backend):
    ledger = backend.open()
    fill(ledger, 2)
    before = ledger.history()
    more = ONLY_SQLITE if backend.table == "journal" else ONLY_POSTGRES
    for statement, message in (*STATEMENTS, *more):
        with pytest.raises(
            backend.refused, match=f"the journal is append-only: (UPDATE |DELETE )?({message})"
        ):
            backend.execute(statement.format(t=backend.table))
    assert ledger.history() == before
    ledger.verify()


def test_raw_sql_can_append_nothing_but_what_continues_and_that_is_found(backend):
    ledger = backend.open()
    fill(ledger, 2)

    def append(**changes):
        row = backend.rows()[-1]
        row |= {"sequence": 3, "previous_hash": row["hash"], "release_id": "r-9"} | changes
        values = ", ".join("NULL" if v is None else f"'{v}'" for v in row.values())
        backend.execute(f"INSERT INTO {backend.table} VALUES ({values})")

    for changes in ({"sequence": 4}, {"sequence": 2}, {"previous_hash": "0" * 64}):
        with pytest.raises(backend.refused, match="append-only: INSERT must continue it"):
            append(**changes)
    append()
    with pytest.raises(IntegrityError, match=f"LEDGER_DAMAGED: sequence 3: {BROKEN}"):
        ledger.verify()


J = ledger_backends.PostgresBackend.table
REFUSE_NOTHING = (
    "CREATE OR REPLACE FUNCTION clustmix_ledger.refuse() RETURNS trigger LANGUAGE plpgsql "
    "SET search_path = pg_catalog AS 'BEGIN RETURN NULL; END'"
)
CHANGED_TABLES = {
    "sqlite": [
        "DROP TRIGGER journal_no_update", "DROP TRIGGER journal_no_delete",
        "DROP TRIGGER journal_continues", "CREATE TABLE other (x)", "CREATE VIEW other AS SELECT 1",
        "CREATE TRIGGER other AFTER INSERT ON journal BEGIN SELECT 1; END",
        "ALTER TABLE journal ADD COLUMN other TEXT", "DROP TABLE journal",
    ],
    "postgres": [
        f"ALTER TABLE {J} DISABLE TRIGGER journal_append_only",
        f"ALTER TABLE {J} DISABLE TRIGGER journal_continues",
        f"ALTER TABLE {J} ENABLE TRIGGER journal_append_only",
        f"ALTER TABLE {J} ENABLE REPLICA TRIGGER journal_continues",
        f"DROP TRIGGER journal_append_only ON {J}",
        f"DROP TRIGGER journal_continues ON {J}; CREATE TRIGGER journal_continues AFTER INSERT "
        f"ON {J} FOR EACH ROW EXECUTE FUNCTION clustmix_ledger.continues()",
        f"CREATE TRIGGER other AFTER INSERT ON {J} EXECUTE FUNCTION clustmix_ledger.continues()",
        REFUSE_NOTHING,
        "ALTER FUNCTION clustmix_ledger.continues() SECURITY DEFINER",
        "ALTER FUNCTION clustmix_ledger.continues() SET search_path = public",
        "ALTER FUNCTION clustmix_ledger.refuse() RENAME TO refuses",
        f"ALTER TABLE {J} ADD COLUMN other text",
        f"ALTER TABLE {J} ALTER COLUMN rho DROP NOT NULL",
        f"ALTER TABLE {J} ALTER COLUMN note SET DEFAULT 'x'",
        f"ALTER TABLE {J} ALTER COLUMN note TYPE varchar(10)",
        f"ALTER TABLE {J} DROP CONSTRAINT journal_pkey",
        f"ALTER TABLE {J} ADD CHECK (sequence < 100)",
        f"ALTER TABLE {J} SET UNLOGGED",
        f"ALTER TABLE {J} ENABLE ROW LEVEL SECURITY",
        f"CREATE RULE other AS ON INSERT TO {J} DO INSTEAD NOTHING",
        f"CREATE TABLE heir () INHERITS ({J})",
        "CREATE TABLE clustmix_ledger.other (x int)",
        "CREATE VIEW clustmix_ledger.other AS SELECT 1",
        f"DROP TABLE {J}",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "statement"),
    [(name, statement) for name, listed in CHANGED_TABLES.items() for statement in listed],
)
def test_a_journal_that_is_not_as_it_was_created_is_found(tmp_path, name, statement):
    backend = ledger_backends.backend(name, tmp_path)
    ledger = backend.open()
    ledger.reserve(charge(1))
    backend.execute(statement)
    actions = [ledger.verify, lambda: ledger.reserve(charge(2))]
    if not statement.startswith("DROP TABLE"):  # where a ledger may begin
        actions.append(backend.open)
    for action in actions:
        with pytest.raises(IntegrityError, match="LEDGER_DAMAGED: sequence 0: expected the journa"):
            action()
    if name == "postgres":
        backend.execute("DROP TABLE IF EXISTS heir")


def test_a_changed_field_is_found_and_named(backend):
    ledger = backend.open()
    fill(ledger, 3)
    rows = backend.rows()
    found = f"LEDGER_DAMAGED: sequence 2: ({BROKEN}|{UNREADABLE})"
    for column in sorted(set(COLUMNS) - {"sequence"}):
        value = "0.000000000002" if column.endswith("rho") else "x"
        backend.tamper(f"UPDATE {backend.table} SET {column} = '{value}' WHERE sequence = 2")
        with pytest.raises(IntegrityError, match=found):
            ledger.verify()
        backend.replace(rows)
    ledger.verify()
    backend.tamper(f"UPDATE {backend.table} SET note = 'x' WHERE sequence = 2")
    with pytest.raises(IntegrityError, match=r"sequence 2: .*; publish nothing and restore the le"):
        ledger.reserve(charge(4, cohort="other"))
    assert len(ledger.history()) == 3


def test_a_removed_row_is_found_and_named(backend):
    ledger = backend.open()
    fill(ledger, 3)
    for sequence in (2, 1):
        backend.tamper(f"DELETE FROM {backend.table} WHERE sequence = {sequence}")
        with pytest.raises(IntegrityError, match=f"sequence {sequence}: {BROKEN}"):
            ledger.verify()


def reserved(rows, **changes):
    return {
        **rows[0],
        "sequence": len(rows) + 1,
        "entry_id": "e-9",
        "release_id": "r-9",
        "recorded_at": rows[-1]["recorded_at"],
        **changes,
    }


PART = {"partition_scheme": "h", "partition_parts": "2", "partition_part": "1"}
REPLACED = {"adjacency": Adjacency.REPLACE_ONE.value}
CHANGED = {
    "amount": (3, {"rho": "0.000000000001"}, None),
    "approval": (3, {"needs_approval": "no"}, None),
    "state": (3, {"state": "void"}, "TRANSITION_REFUSED"),
    "first state": (1, {"state": "sealed"}, "ENTRY_UNKNOWN"),
    "no digest": (3, {"digest": None}, "DIGEST_MISSING"),
    "digest": (3, {"digest": "short"}, "DIGEST_INVALID"),
    "digest lost": (4, {"digest": None}, None),
    "early digest": (1, {"digest": DIGEST}, None),
    "early signer": (1, {"signers": OFFICERS[0]}, None),
    "release": (5, {"release_id": "r-1"}, "RELEASE_CHARGED"),
    "lifetime cap": (5, {"rho": "0.250000000000"}, "BUDGET"),
    "lowered cap": (5, {"lifetime_cap_rho": "0.150000000000"}, "BUDGET"),
    "dataset cap": (5, {"dataset_cap_rho": "0.150000000000"}, "BUDGET"),
    "window cap": (5, {"window_cap_rho": "0.150000000000", "window_days": "1"}, "BUDGET"),
    "part of replace-one": (5, PART | REPLACED, "PARTITION_ADJACENCY"),
    "other neighbours": (5, REPLACED, "ADJACENCY_MIXED"),
    "signer": (3, {"signers": OFFICERS[0]}, "SIGNERS_REFUSED"),
    "requester approves": (4, {"signers": REQUESTER}, "APPROVER_IS_REQUESTER"),
    "nobody approves": (4, {"signers": ""}, "APPROVAL_MISSING"),
    "no approval": (5, {"needs_approval": "no"}, "APPROVAL_REQUIRED"),
    "epsilon": (5, {"epsilon": "inf"}, "EPSILON_INVALID"),
    "time": (5, {"recorded_at": "2025-01-01T00:00:00.000Z"}, None),
}
"""Changes to a row of `five_rows` by its sequence, each with the rule that refuses it."""
UNREADABLE_CELLS = [
    ("state", "free"), ("rho", "nothing"), ("rho", "-1"), ("rho", "0.1"), ("adjacency", "x"),
    ("epsilon", "one"), ("epsilon", "1"), ("lifetime_cap_rho", "0"), ("window_days", "7"),
    ("partition_scheme", "hash"), ("needs_approval", "maybe"), ("recorded_at", "yesterday"),
]  # fmt: skip
CHANGED |= {f"{name} {cell}": (1, {name: cell}, UNREADABLE) for name, cell in UNREADABLE_CELLS}
APPENDED = {
    "part": (lambda rows: [reserved(rows, **PART, rho="0.200000000000")], "BUDGET"),
    "entry": (lambda rows: [reserved(rows, entry_id=rows[0]["entry_id"])], "ENTRY_EXISTS"),
    "one person": (lambda rows: [adjusted(rows, signers=OFFICERS[0])], "TWO_PEOPLE"),
    "adjustment with a cap": (
        lambda rows: [adjusted(rows, lifetime_cap_rho="9.000000000000")],
        None,
    ),
    "adjustment of a release": (lambda rows: [adjusted(rows, release_id="r-9")], None),
    "adjustment that goes on": (
        lambda rows: [adjusted(rows), adjusted(rows, sequence=7, state="void", signers="")],
        "TRANSITION_REFUSED",
    ),
}


def adjusted(rows, **changes):
    empty = {name: "" if required else None for name, required in COLUMNS.items()}
    return {
        **empty,
        "sequence": len(rows) + 1,
        "entry_id": "e-9",
        "state": "adjusted",
        "cohort": "adult",
        "rho": "0.100000000000",
        "epsilon": "inf",
        "delta": "0.0",
        "adjacency": "add_remove",
        "lifetime_cap_rho": "1000000.000000000000",
        "needs_approval": "no",
        "note": "a pilot",
        "signers": ",".join(OFFICERS),
        "recorded_at": rows[-1]["recorded_at"],
        **changes,
    }


def five_rows(backend):
    ledger = backend.open()
    official = {"requester": REQUESTER, "needs_approval": True}
    entry = ledger.reserve(charge(1, **official)).entry
    for state, how in (
        (EntryState.EXECUTING, {}),
        (EntryState.SEALED, {"digest": DIGEST}),
        (EntryState.APPROVED, {"signers": OFFICERS[:1]}),
    ):
        entry = ledger.transition(entry.entry_id, state, expected_from=entry.state, **how)
    ledger.reserve(charge(2, **official))
    ledger.verify()
    return ledger


@pytest.mark.parametrize("name", [*CHANGED, *APPENDED])
def test_a_forged_chain_must_still_keep_the_rules(tmp_path, name):
    # The rules are the same for both databases.
    backend = ledger_backends.SqliteBackend(tmp_path)
    ledger = five_rows(backend)
    if name in CHANGED:
        sequence, changes, rule = CHANGED[name]
        backend.rewrite(lambda rows: rows[sequence - 1].update(changes))
    else:
        more, rule = APPENDED[name]
        backend.rewrite(lambda rows: rows.extend(more(rows)))
        sequence = len(backend.rows())
    if rule is None:
        found = OTHER
    elif rule == UNREADABLE:
        found = UNREADABLE
    elif rule == "BUDGET":
        found = "expected the balance to stay under every cap"
    else:
        found = f"expected a row that keeps the rules .{rule}"
    with pytest.raises(IntegrityError, match=f"LEDGER_DAMAGED: sequence {sequence}: {found}"):
        ledger.verify()


def test_what_is_forged_within_the_rules_is_not_found_without_a_head(backend):
    # The forgeries above are found for what they change and not for how they are made.
    ledger = five_rows(backend)
    backend.rewrite(lambda rows: rows.append(adjusted(rows)))
    ledger.verify()
    backend.rewrite(lambda rows: rows.append(reserved(rows, entry_id="e-10", cohort="other")))
    ledger.verify()
    assert len(ledger.history()) == 7


def test_a_rollback_is_found_by_an_exported_head(backend):
    ledger = backend.open()
    ledger.verify(expected_head=ledger.head())
    ledger.reserve(charge(1))
    old_copy = backend.rows()
    ledger.reserve(charge(2))
    exported = ledger.head()
    ledger.reserve(charge(3))
    ledger.verify(exported)
    backend.replace(old_copy)
    ledger.verify()
    for head in (exported, (2, GENESIS_HASH), (0, "1" * 64), (-1, exported[1])):
        with pytest.raises(
            IntegrityError,
            match=f"LEDGER_ROLLED_BACK: sequence {head[0]}: expected the row of the exported head",
        ):
            ledger.verify(expected_head=head)


def test_a_rollback_is_found_by_the_head_file(backend, tmp_path):
    head_file = tmp_path / "elsewhere" / ".ledger-head"
    ledger = backend.open(head_file=head_file)
    entry = ledger.reserve(charge(1)).entry
    old_copy = backend.rows()
    ledger.reserve(charge(2))
    backend.replace(old_copy)
    writes = (
        ledger.verify,
        lambda: ledger.reserve(charge(2)),
        lambda: ledger.reserve(charge(1)),
        lambda: ledger.transition(
            entry.entry_id, EntryState.EXECUTING, expected_from=EntryState.RESERVED
        ),
        lambda: ledger.adjust(
            cohort="adult", rho=Decimal(1), reason="x", signers=OFFICERS, entry_id="e-2"
        ),
    )
    for write in writes:
        with pytest.raises(IntegrityError, match=r"LEDGER_ROLLED_BACK: sequence 2: .* older copy "):
            write()
    assert backend.rows() == old_copy
    backend.replace([])
    with pytest.raises(IntegrityError, match="LEDGER_ROLLED_BACK: sequence 2"):
        ledger.reserve(charge(4))
    backend.replace(old_copy)
    # Another installation without the head file goes on: the next row is not the one that was.
    backend.open().reserve(charge(3))
    with pytest.raises(IntegrityError, match="LEDGER_ROLLED_BACK: sequence 2"):
        ledger.reserve(charge(4))


def test_both_databases_write_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("storage.ledger.ledger_db.new_entry_id", lambda: "e-1")
    written = []
    for name in ledger_backends.BOTH:
        backend = ledger_backends.backend(name, tmp_path)
        backend.set_clock(monkeypatch, "2025-01-01T00:00:00.000Z")
        ledger = backend.open()
        ledger.reserve(charge(1))
        spent = {"cohort": "adult", "rho": Decimal("0.1"), "reason": "a pilot"}
        ledger.adjust(**spent, signers=OFFICERS, entry_id="e-9")
        written.append(backend.rows())
    assert written[0] == written[1]
    # Fixed for all time: journals on disk depend on it.
    assert [row["hash"] for row in written[0]] == [
        "c501ee4fb905b71a82e88dd21abdcb6ef7a020a9f32adad346929033929727e9",
        "db86a10b1112d9ee056186eb2e42ad7723d7b5e910d0e447303daba6593288cc",
    ]
