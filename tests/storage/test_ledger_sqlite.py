import pytest
from ledger_requests import charge

from privacy.errors import LedgerError
from storage.ledger import journal
from storage.ledger.ledger_db import LedgerDatabase


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def test_the_file_is_for_its_owner_alone_and_on_disk_at_commit(path, monkeypatch):
    modes = {}

    def look(connection, _):
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2)):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == value
        modes.update({file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()})
        return "2025-01-01T00:00:00.000Z"

    ledger = LedgerDatabase(path)
    ledger.reserve(charge(1))
    monkeypatch.setattr(journal, "read_clock", look)
    ledger.reserve(charge(2))
    names = ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"]
    assert modes == dict.fromkeys(names, 0o600)


def test_a_ledger_that_vanished_is_not_replaced_by_an_empty_one(path):
    ledger = LedgerDatabase(path)
    ledger.reserve(charge(1))
    path.unlink()
    with pytest.raises(LedgerError, match="LEDGER_UNAVAILABLE: expected a ledger that can be read"):
        ledger.balance("adult")
    assert not path.exists()


def test_a_file_that_is_not_a_ledger_or_cannot_be_one_is_refused(path, tmp_path):
    for absent, message in (
        ("missing/x", "expected the directory"),
        ("x" * 300, "File name too l"),
    ):
        with pytest.raises(LedgerError, match=message):
            LedgerDatabase(tmp_path / absent)
    path.write_bytes(b"not a database" * 1000)
    for mode, message in (
        (0o600, "found: file is not a database; check the file"),
        (0o640, "LEDGER_PERMISSIONS: expected the ledger to be readable"),
    ):
        path.chmod(mode)
        with pytest.raises(LedgerError, match=message):
            LedgerDatabase(path)
