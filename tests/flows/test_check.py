import hashlib
import json
import os
import time
from decimal import Decimal

import made_up_release as made
import pytest
from desks import CANARY, HOME

from flows import check
from flows.installation import Installation
from flows.site.request import job_of
from flows.site.site_file import load_site
from flows.watching.outbox import Cursor, notices
from privacy.errors import InputError
from privacy.ledger import GENESIS_HASH
from storage.files.diagnostics import KEPT_DAYS, MAX_BYTES, DiagnosticsFile, remove_old_diagnostics
from storage.ledger.ledger_db import LedgerDatabase
from storage.schema.declarations import Declarations
from storage.settings import load_settings

OPEN = {"name": "smoker", "kind": "categorical", "levels": ["y", "n", "else"], "other": "else"}
AT_THE_START = Cursor(sequence=0, row_hash=GENESIS_HASH)


@pytest.fixture
def desk(desk):
    desk.declare_cohort(made.made_up_cohort())
    return desk


def spoil(desk, rows=(3, 41), **columns):
    frame = made.made_up_cohort().astype(object)
    for column, value in columns.items():
        frame.loc[list(rows), column] = value
    frame.to_csv(desk.table, index=False)


def entries(desk):
    return LedgerDatabase(HOME / "ledger.sqlite").entries(desk.site["dataset"])


def spent(desk):
    return LedgerDatabase(HOME / "ledger.sqlite").balance(desk.site["dataset"]).spent_rho


def corrected(desk):
    manifest = json.loads((desk.bundle / "manifest.json").read_text("utf-8"))
    return manifest.get("corrected_after_checks", 0)


def declared(desk, release_id):
    return job_of(load_site(desk.path), release_id).declarations


def test_a_table_that_keeps_its_rules_passes_and_costs_nothing(desk):
    assert desk.run("check") == 0
    words = f"the table of {desk.site['dataset']} passes; nothing is charged"
    assert desk.output.startswith(f"{words}; add --show ")
    [entry] = entries(desk)
    assert (entry.state.value, entry.code) == ("void", "CHECK_PASSED")
    assert entry.digest == declared(desk, entry.release_id).sha256
    assert spent(desk) == Decimal(0)
    assert not (HOME / "private" / entry.release_id).exists()
    # The owner is shown the cells all the same.
    (record,) = DiagnosticsFile(HOME / "diagnostics" / f"{entry.release_id}.jsonl").records()
    assert set(record["fine"]) == {*made.made_up_cohort().columns} - {"note"}
    assert desk.release() == 0
    assert corrected(desk) == 0


def test_what_a_table_breaks_is_in_the_restricted_file_and_nowhere_else(desk):
    spoil(desk, smoker=CANARY, lactate="inf")
    assert desk.run("check") == 2
    assert desk.line == (
        f"CHECK_FAILED: the table of {desk.site['dataset']} does not pass; what it breaks is in "
        "ID.jsonl (restricted; folder diagnostics of CLUSTMIX_HOME). Correct the source, or "
        "declare what clustmix check --show proposes, where the codebook agrees; nothing is charged"
    )
    assert desk.output == ""
    *broken, said = desk.diagnostics
    assert {(record["column"], row["row"]) for record in broken for row in record["rows"]} == {
        (column, row) for column in ("smoker", "lactate") for row in (3, 41)
    }
    assert "column smoker: expected declared levels only" in said["rule"]
    [entry] = entries(desk)
    assert (entry.state.value, entry.code) == ("void", "CHECK_FAILED")
    assert spent(desk) == Decimal(0)
    # Nobody is told but who asked.
    rows = LedgerDatabase(HOME / "ledger.sqlite").history()
    told = {event.resource_id for event in notices(rows, AT_THE_START, owner=entry.owner)}
    assert f"clustmix.release.{entry.release_id}" not in told


def test_a_source_is_declared_but_for_where_it_is():
    site = {"schema": {}, "privacy_unit": {}, "source": {"kind": "png", "size": 28, "folder": "a"}}
    moved = site | {"source": site["source"] | {"folder": "b"}}
    other = site | {"source": site["source"] | {"size": 32}}
    first, second, third = (Declarations.of(one).sha256 for one in (site, moved, other))
    assert first == second != third


def test_the_card_says_how_often_a_check_told_what_to_declare(desk):
    spoil(desk, smoker=CANARY)
    assert desk.run("check") == 2
    assert desk.release() == 2
    desk.site["schema"] = {**made.SCHEMA, "columns": [*made.SCHEMA["columns"][:3], OPEN]}
    # The same declarations: a check by them changes nothing.
    assert desk.run("check") == 0
    assert desk.release() == 0
    assert desk.states == ["void", "void", "void", "published"]
    assert corrected(desk) == 2
    for file in (desk.bundle, *desk.bundle.iterdir()):
        assert file.stat().st_mtime % 86_400 == 0  # when a run ended is nobody's business
    sentence = (
        "Declarations were corrected after 2 checks of the table, which show its owner how records "
        "keep them"
    )
    for name in ("data_card.md", "report.html"):
        assert sentence in (desk.bundle / name).read_text("utf-8")
    paid = entries(desk)[-1]
    changed = Installation.open(load_settings()).entries.changed_since_check(
        paid.entry_id, declared(desk, paid.release_id)
    )
    assert [line for line in changed if "else" in line] == ['+     "else"', '+    "other": "else",']


@pytest.mark.parametrize("passes", [False, True])
def test_a_check_of_the_same_file_counts_by_any_name_of_dataset_and_cohort(desk, passes):
    own = desk.site["dataset"], dict(desk.site["budget"])
    spoil(desk, (9,), smoker="y" if passes else CANARY)
    desk.site["dataset"] = "another-name"
    desk.site["budget"] = {**desk.site["budget"], "cohort": "another-cohort"}
    assert desk.run("check") == (0 if passes else 2)
    desk.site["dataset"], desk.site["budget"] = own
    desk.site["schema"] = {**made.SCHEMA, "columns": [*made.SCHEMA["columns"][:3], OPEN]}
    assert desk.release() == 0
    assert corrected(desk) == 1
    assert "corrected after 1 check of" in (desk.bundle / "data_card.md").read_text("utf-8")
    # The ledger holds a digest under a key of the installation, which nobody can guess.
    plain = hashlib.sha256(desk.table.read_bytes()).hexdigest()
    nested = hashlib.sha256(bytes.fromhex(plain)).hexdigest()
    tables = [row.table for row in LedgerDatabase(HOME / "ledger.sqlite").history() if row.table]
    assert tables[-1] == tables[-2] not in (plain[:32], nested[:32])
    # Nor does another name give the same patients a budget of their own.
    desk.site["budget"] = {**desk.site["budget"], "cohort": "another-cohort"}
    assert desk.release() == 3
    assert f"expected `cohort: {own[0]}` under `budget`" in desk.line
    refused = LedgerDatabase(HOME / "ledger.sqlite").entries("another-cohort")
    assert {entry.state.value for entry in refused} == {"void"}


def test_what_was_written_of_broken_rows_is_bounded_and_does_not_stay(tmp_path):
    tmp_path.chmod(0o700)
    file = DiagnosticsFile(tmp_path / "r.jsonl")
    for number in range(20):
        file.add("a", f"rule {number}", range(1_000), ["x" * 100_000] * 1_000)
    assert MAX_BYTES <= (tmp_path / "r.jsonl").stat().st_size < MAX_BYTES + 2_100_000
    DiagnosticsFile(tmp_path / "new.jsonl").add("a", "rule", [1], ["x"])
    old = time.time() - (KEPT_DAYS + 1) * 86_400
    os.utime(tmp_path / "r.jsonl", (old, old))
    remove_old_diagnostics(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]


def test_a_check_that_stops_leaves_no_file_that_the_ledger_does_not_know(desk, monkeypatch):
    spoil(desk, smoker=CANARY)
    whole = check.ingest_steps.ingest

    def stops(*arguments, **named):
        with pytest.raises(InputError):
            whole(*arguments, **named)
        raise OSError

    monkeypatch.setattr(check.ingest_steps, "ingest", stops)
    assert desk.run("check") == 1
    [entry] = entries(desk)
    assert (entry.state.value, entry.digest) == ("void", None)
    assert not (HOME / "diagnostics" / f"{entry.release_id}.jsonl").exists()
