import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from failing_disk import Killed, writes
from ledger_requests import charge

from privacy.errors import ConfigurationError, IntegrityError, LedgerError
from storage.ledger.ledger_db import HeadFile, LedgerDatabase

HASH = "ab" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "head" / "ledger-head"


def test_a_head_is_one_line_of_json_and_never_goes_back(path):
    head = HeadFile(path)
    assert head.read() is None
    head.write(7, HASH)
    assert path.read_text() == f'{{"sequence": 7, "hash": "{HASH}"}}\n'
    for sequence in (1, 6, 7):
        head.write(sequence, "cd" * 32)
        assert head.read() == (7, HASH)
    head.write(8, "cd" * 32)
    assert head.read() == (8, "cd" * 32)
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"ledger-head", "ledger-head.lock"}


@pytest.mark.parametrize("mask", [0, 0o077])
def test_a_head_can_be_read_by_its_operator_alone(path, mask):
    os.umask(mask)
    HeadFile(path).write(7, HASH)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    path.parent.chmod(0o755)
    with pytest.raises(ConfigurationError, match="DIRECTORY_MODE"):
        HeadFile(path).write(8, HASH)


def test_of_heads_written_at_once_the_latest_stays(path):
    with ThreadPoolExecutor(9) as pool:
        list(pool.map(lambda n: HeadFile(path).write(n, HASH), (3, 9, 1, 8, 2, 7, 4, 6, 5)))
    assert HeadFile(path).read() == (9, HASH)


def test_a_file_that_is_no_head_is_refused(path):
    path.parent.mkdir(mode=0o700)
    expected = "LEDGER_HEAD_DAMAGED: expected the sequence and the hash of the ledger's last row in"
    for text in (
        *("", "[]", "[" * 900, "not json"),
        json.dumps({"sequence": 0, "hash": HASH}),
        json.dumps({"sequence": True, "hash": HASH}),
        json.dumps({"sequence": 7, "hash": HASH[:-1]}),
        json.dumps({"sequence": 7, "hash": HASH, "more": 1}),
        json.dumps({"sequence": 7, "hash": HASH}) + " " * 1000,
    ):
        path.write_text(text)
        for use in (HeadFile(path).read, lambda: HeadFile(path).write(8, HASH)):
            with pytest.raises(IntegrityError, match=expected):
                use()
        assert path.read_text() == text


def test_the_head_is_exported_after_every_commit_unless_it_is_damaged(tmp_path, path):
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
    path.write_text("{}")
    for action in (ledger.verify, lambda: ledger.reserve(charge(3))):
        with pytest.raises(IntegrityError, match="LEDGER_HEAD_DAMAGED"):
            action()
    assert len(ledger.history()) == 2


def test_a_head_that_cannot_be_read_stops_the_ledger_before_it_writes(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name, found in (("file/head", "Not a directory"), ("link", "Too many levels")):
        ledger = LedgerDatabase(tmp_path / "ledger.sqlite", head_file=tmp_path / name)
        unavailable = f"LEDGER_HEAD_UNAVAILABLE: .* can be read, found: {found}"
        with pytest.raises(LedgerError, match=unavailable):
            ledger.reserve(charge(1))
        assert ledger.history() == ()


def test_a_head_that_cannot_be_written_leaves_the_charge(tmp_path, path):
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite", head_file=path)
    path.parent.mkdir(mode=0o700)
    lock = path.with_name("ledger-head.lock")
    lock.mkdir()
    with pytest.raises(LedgerError, match=r"can be written, found: Is a directory; .* may be reco"):
        ledger.reserve(charge(1))
    assert [row.release_id for row in ledger.history()] == ["r-1"]
    lock.rmdir()
    assert not ledger.reserve(charge(1)).created
    assert HeadFile(path).read() == ledger.head()


def test_a_write_that_is_killed_anywhere_leaves_a_whole_head(path):
    for die_at in range(1, 100):
        HeadFile(path).write(7, HASH)
        with suppress(Killed), writes(die_at):
            HeadFile(path).write(8, HASH)
            break
        assert HeadFile(path).read() in ((7, HASH), (8, HASH))
        HeadFile(path).write(8, HASH)
        assert HeadFile(path).read() == (8, HASH)
        path.unlink()
    assert 4 < die_at < 99
