import json
import os
import threading
from pathlib import Path

import pytest
from ledger_requests import charge

from privacy.errors import IntegrityError, LedgerError
from privacy.ledger import GENESIS_HASH
from storage.ledger_db import LedgerDatabase
from storage.ledger_head import HeadFile, check_head

HASH = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "releases" / ".ledger-head"


def test_a_head_is_one_line_of_json(path: Path) -> None:
    head = HeadFile(path)
    assert head.read() is None
    head.write(7, HASH)
    assert path.read_text() == f'{{"sequence": 7, "hash": "{HASH}"}}\n'
    assert head.read() == (7, HASH)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        ".ledger-head",
        ".ledger-head.lock",
    ]
    assert repr(head) == "HeadFile('.ledger-head')"


@pytest.mark.parametrize("umask", [0, 0o027, 0o077])
def test_a_head_can_be_read_by_an_auditor(path: Path, umask: int) -> None:
    path.parent.mkdir()
    before = os.umask(umask)
    try:
        HeadFile(path).write(7, HASH)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_head_never_goes_back(path: Path) -> None:
    head = HeadFile(path)
    head.write(7, HASH)
    for sequence in (1, 6, 7):
        head.write(sequence, "cd" * 32)
        assert head.read() == (7, HASH)
    head.write(8, "cd" * 32)
    assert head.read() == (8, "cd" * 32)


def test_of_heads_written_at_once_the_latest_stays(path: Path) -> None:
    threads = [
        threading.Thread(target=HeadFile(path).write, args=(sequence, HASH))
        for sequence in (3, 9, 1, 8, 2, 7, 4, 6, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert HeadFile(path).read() == (9, HASH)


def test_what_a_killed_process_left_is_replaced(path: Path) -> None:
    head = HeadFile(path)
    head.write(1, HASH)
    path.with_name(".ledger-head.new").write_text("half a li")
    head.write(2, HASH)
    assert head.read() == (2, HASH)
    assert not path.with_name(".ledger-head.new").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "{}",
        "[" * 900,
        "not json",
        json.dumps({"sequence": 0, "hash": HASH}),
        json.dumps({"sequence": True, "hash": HASH}),
        json.dumps({"sequence": "7", "hash": HASH}),
        json.dumps({"sequence": 7, "hash": HASH[:-1]}),
        json.dumps({"sequence": 7, "hash": None}),
        json.dumps({"sequence": 7, "hash": HASH, "more": 1}),
        json.dumps({"sequence": 7, "hash": HASH}) + " " * 1000,
    ],
)
def test_a_file_that_is_no_head_is_refused(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    expected = "LEDGER_HEAD_DAMAGED: expected the sequence and the hash of the ledger's last row in"
    with pytest.raises(IntegrityError, match=expected):
        HeadFile(path).read()
    # It is not written over either: somebody must look at it.
    with pytest.raises(IntegrityError, match=expected):
        HeadFile(path).write(8, HASH)
    assert path.read_text() == text


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "other")
    with pytest.raises(
        LedgerError, match=r"LEDGER_HEAD_UNAVAILABLE: .* can be read, found: Too many"
    ):
        HeadFile(path).read()


def test_every_journal_contains_no_head() -> None:
    check_head([], None)
    check_head([], (0, GENESIS_HASH))
    with pytest.raises(IntegrityError, match="LEDGER_ROLLED_BACK: sequence 1"):
        check_head([], (1, HASH))


def test_the_head_is_exported_after_every_commit(tmp_path: Path, path: Path) -> None:
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite", head_file=path)
    assert not path.exists()
    assert ledger.entries() == ()
    assert not path.exists()
    for number in (1, 2):
        ledger.reserve(charge(number))
        assert HeadFile(path).read() == ledger.head()
    # A first export beside a journal that has rows already.
    path.unlink()
    ledger.verify()
    assert not ledger.reserve(charge(2)).created
    assert HeadFile(path).read() == ledger.head()


def test_a_damaged_head_stops_the_ledger(tmp_path: Path, path: Path) -> None:
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite", head_file=path)
    ledger.reserve(charge(1))
    path.write_text("{}")
    for action in (ledger.verify, lambda: ledger.reserve(charge(2))):
        with pytest.raises(IntegrityError, match="LEDGER_HEAD_DAMAGED"):
            action()
    assert len(ledger.history()) == 1


def test_a_head_that_cannot_be_read_stops_the_ledger_before_it_writes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite", head_file=tmp_path / "file" / "head")
    with pytest.raises(LedgerError, match="LEDGER_HEAD_UNAVAILABLE: expected a head file of the l"):
        ledger.reserve(charge(1))
    assert ledger.history() == ()


def test_a_head_that_cannot_be_written_leaves_the_charge(tmp_path: Path, path: Path) -> None:
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite", head_file=path)
    path.parent.mkdir()
    lock = path.with_name(".ledger-head.lock")
    lock.mkdir()
    with pytest.raises(
        LedgerError, match=r"can be written, found: Is a directory; .* may be recor"
    ):
        ledger.reserve(charge(1))
    assert [row.release_id for row in ledger.history()] == ["r-1"]
    # Once the reason is gone the same request finds its charge and the head is exported.
    lock.rmdir()
    assert not ledger.reserve(charge(1)).created
    assert HeadFile(path).read() == ledger.head()
