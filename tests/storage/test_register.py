"""Random histories of patients and runs: who is read, and who has paid."""

import shutil
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_requests import DIGEST, charge

from privacy.charges import Caps, Partition
from privacy.errors import IntegrityError
from privacy.ledger import EntryState
from privacy.parameters import PrivacyUnit
from privacy.spending import composed_rho
from storage.files.diagnostics import DiagnosticsFile
from storage.ledger.books import Books
from storage.ledger.register import begin_register, open_register
from storage.schema.visit_columns import ByEntry
from tasks.ingest.pieces import first_periods

PATIENTS = [f"p{number}" for number in range(3)]
UNIT = PrivacyUnit(column="patient", max_rows=9)
NOW = "2025-12-31T00:00:00.000Z"

dates = st.sampled_from(["2025-01-31", "2025-02-01", "2025-03-31T23:59", "2025-03-01"])
rows = st.tuples(st.sampled_from(["row", "late", "correct"]), st.sampled_from(PATIENTS), dates)
runs = st.tuples(
    st.just("run"),
    st.integers(1, 3).map("2025-{:02d}".format),
    st.sampled_from(["sealed", "sealed", "burned", "killed before", "killed after"]),
)
faults = st.tuples(st.sampled_from(["back up", "restore", "lose", "begin"]), st.none(), st.none())


class World:
    """An installation whose steps are those of a run, without the noise."""

    def __init__(self, folder, at_most):
        self.path, self.backup = folder / "register", folder / "backup"
        self.entry = ByEntry(by="entry", column="admitted", every="month", at_most=at_most)
        self.books, self.table, self.read = Books((), now=NOW), [], []

    def open(self, wanted=None):
        rows = self.books.rows
        return open_register(self.path, b"k" * 32, rows, owner="site-1", charge=wanted)

    def periods(self):
        frame = pd.DataFrame(self.table, columns=["patient", "admitted"], dtype=object)
        return first_periods([frame], UNIT, self.entry, DiagnosticsFile(self.path))

    def run(self, period, end):
        number = len(self.books.rows)
        register = self.open().register_id
        part = Partition(
            scheme="s", parts=None, part=period, at_most=self.entry.at_most, register=register
        )
        rho = Decimal(1 + number % 3) / 10
        caps = Caps(lifetime_rho=Decimal(1000))
        row = self.books.reserve(
            charge(number, partition=part, rho=rho, caps=caps), entry_id=f"e-{number}"
        )
        known = self.open(row)
        chosen = known.choose(name for name, own in self.periods().items() if period in own)
        head = None if end == "killed before" else known.keep(row.entry_id)
        if end.startswith("killed"):
            self.move(row, EntryState.VOID)
        else:
            row = self.move(row, EntryState.EXECUTING, head)
            self.move(row, *((EntryState.SEALED, DIGEST) if end == "sealed" else ("burned",)))
        self.read.append((row, chosen if head and row.digest else frozenset()))

    def move(self, row, state, digest=None):
        about = {"expected_from": row.state, "digest": digest, "note": None, "signers": ()}
        return self.books.move(row.entry_id, EntryState(state), **about)


def replay(history, at_most, *, without=None):
    with TemporaryDirectory() as folder:
        world = World(Path(folder), at_most)
        world.open()
        shutil.copy(world.path, world.backup)
        for kind, first, second in history:
            if kind == "run":
                world.run(first, second)
            elif kind == "correct":
                own = [place for place, row in enumerate(world.table) if row[0] == first]
                world.table[:] = [
                    (first, second) if place in own[:1] else row
                    for place, row in enumerate(world.table)
                ]
            elif kind in ("row", "late"):
                world.table += [(first, second)] if first != without else []
            else:
                disturb(world, kind)
        return world


def disturb(world, kind):
    """Lose a register or restore an older one, and put the newest back only where it is missed."""
    newest = world.path.read_bytes()
    if kind == "back up":
        shutil.copy(world.path, world.backup)
    elif kind == "begin":
        begin_register(world.path)
    else:
        world.path.unlink() if kind == "lose" else shutil.copy(world.backup, world.path)
        try:
            world.open()
        except IntegrityError:
            world.path.write_bytes(newest)


@settings(max_examples=150)
@given(
    history=st.lists(rows | runs | rows | runs | faults, min_size=6, max_size=20),
    at_most=st.integers(1, 3),
)
def test_nobody_is_read_more_often_than_is_paid_for(history, at_most):
    world = replay(history, at_most)
    latest = {row.entry_id: row for row in world.books.rows}
    _, paid = composed_rho([row for row in latest.values() if row.counts])
    for patient in PATIENTS:
        own = [row for row, chosen in world.read if patient in chosen]
        assert sum((row.rho for row in own), start=Decimal(0)) <= paid
        for register in {row.partition.register for row in own}:
            assert sum(row.partition.register == register for row in own) <= at_most
        assert len({(row.partition.part, row.partition.register) for row in own}) == len(own)


@settings(max_examples=150)
@given(history=st.lists(rows | runs, min_size=6, max_size=20), at_most=st.integers(1, 3))
def test_a_patient_changes_no_more_parts_than_are_paid_for_and_nobody_else(history, at_most):
    whole, less = replay(history, at_most), replay(history, at_most, without=PATIENTS[0])
    pairs = list(zip(whole.read, less.read, strict=True))
    assert all(chosen - {PATIENTS[0]} == others for (_, chosen), (_, others) in pairs)
    assert sum(chosen != others for (_, chosen), (_, others) in pairs) <= at_most


def test_a_register_is_lost_older_or_damaged_and_never_taken_for_another(tmp_path):
    world = World(tmp_path, 1)
    world.table = [("p1", "2025-01-07"), ("p2", "2025-02-01")]
    world.run("2025-01", "burned")
    assert world.path.stat().st_mode & 0o777 == 0o600
    old = world.path.read_bytes()
    world.run("2025-02", "sealed")
    whole = world.path.read_bytes()
    assert not any(name in whole for name in (b"p1", b"p2"))
    for content, code in (
        (old, "REGISTER_OLD"),
        (whole[:-1], "REGISTER_DAMAGED"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "REGISTER_OLD"),
        (b"", "REGISTER_DAMAGED"),
    ):
        world.path.write_bytes(content)
        with pytest.raises(IntegrityError, match=code):
            world.open()
    world.path.unlink()
    with pytest.raises(IntegrityError, match=r"REGISTER_LOST: .*\(clustmix ledger restore\)"):
        world.open()
    begin_register(world.path)
    world.run("2025-01", "sealed")
    with pytest.raises(IntegrityError, match="REGISTER_OLD"):  # begun after that charge
        world.open(world.read[0][0])
    # Who was read by both has paid both.
    assert [sorted(chosen) for _, chosen in world.read] == [["p1"], ["p2"], ["p1"]]
    first, second, third = (row.rho for row, _ in world.read)
    assert composed_rho([row for row, _ in world.read])[1] == max(first, second) + third
