import itertools
import pickle
import traceback
from pathlib import Path

import ledger_backends
import postgres_server
import psycopg
import pytest
from ledger_requests import ROOT, charge

from privacy.errors import ClustMixError, IntegrityError, LedgerError
from storage.ledger import journal, postgres
from storage.ledger.ledger_db import LedgerDatabase

J = "clustmix_ledger.journal"
_roles = itertools.count(1)


@pytest.fixture
def backend():
    return ledger_backends.PostgresBackend()


def new_role(backend, *grants):
    name = f"role{next(_roles)}"
    password = f"CANARY-of-{name}"
    backend.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    for grant in grants:
        backend.execute(f"GRANT {grant} TO {name}")
    database = str(psycopg.conninfo.conninfo_to_dict(backend.location)["dbname"])
    return name, postgres_server.server().url(database, user=name, password=password)


def test_a_role_without_rights_is_refused(backend):
    _, url = new_role(backend)
    refused = r"LEDGER_UNAVAILABLE: .* found InsufficientPrivilege 42501; see the log of the "
    with pytest.raises(LedgerError, match=refused):
        LedgerDatabase(url)  # nor may it create the journal
    backend.open()
    for role in (url, new_role(backend, "USAGE ON SCHEMA clustmix_ledger")[1]):
        with pytest.raises(LedgerError, match=refused):
            LedgerDatabase(role).history()


def test_a_policy_that_hides_rows_does_not_hide_them_from_the_ledger(backend):
    backend.open().reserve(charge(1))
    _, url = new_role(backend, "USAGE ON SCHEMA clustmix_ledger", f"SELECT, INSERT ON {J}")
    ledger = LedgerDatabase(url)
    backend.execute(f"ALTER TABLE {J} ENABLE ROW LEVEL SECURITY")
    with pytest.raises(LedgerError, match="found InsufficientPrivilege 42501"):
        ledger.history()


def test_a_server_that_is_not_durable_is_refused(backend):
    ledger = backend.open()

    def set_fsync(value):
        with psycopg.connect(backend.location, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET fsync = {value}")
        postgres_server.server().reload()

    set_fsync("off")
    try:
        with pytest.raises(LedgerError, match="LEDGER_NOT_DURABLE: expected a PostgreSQL server w"):
            ledger.reserve(charge(1))
    finally:
        set_fsync("on")
    assert ledger.reserve(charge(1)).created


def test_commits_wait_for_the_disk_whatever_the_role_says(backend, monkeypatch):
    backend.open()
    name, url = new_role(backend, "USAGE ON SCHEMA clustmix_ledger", f"SELECT, INSERT ON {J}")
    backend.execute(f"ALTER ROLE {name} SET synchronous_commit = off")
    backend.execute(f"ALTER ROLE {name} SET default_transaction_isolation = 'serializable'")
    found = []

    def look(connection, _):
        for setting in ("synchronous_commit", "transaction_isolation", "search_path"):
            found.append(connection.exec_driver_sql(f"SHOW {setting}").scalar_one())
        return "2025-01-01T00:00:00.000Z"

    monkeypatch.setattr(journal, "read_clock", look)
    LedgerDatabase(url).reserve(charge(1))
    assert found == ["on", "read committed", "pg_catalog"]


def test_a_standby_that_only_reads_is_refused():
    server = postgres_server.server()
    database = server.new_database()
    LedgerDatabase(server.url(database))
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with pytest.raises(LedgerError, match=r"LEDGER_UNAVAILABLE: .* found OperationalError without"):
        LedgerDatabase(server.url(database))


def test_a_writer_that_never_ends_is_not_waited_for_for_ever(backend, monkeypatch):
    ledger = backend.open()
    begin = postgres._BEGIN_WRITE
    assert "lock_timeout = '30s'" in begin
    monkeypatch.setattr(postgres, "_BEGIN_WRITE", begin.replace("30s", "300ms"))
    with psycopg.connect(backend.location) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [postgres._LOCK])
        with pytest.raises(LedgerError, match="within 30 seconds, found LockNotAvailable 55P03; s"):
            ledger.reserve(charge(1))
        assert ledger.history() == ()
    assert ledger.reserve(charge(1)).created


def test_a_commit_whose_answer_is_lost_is_charged_once(backend, monkeypatch):
    ledger = backend.open()
    execute = psycopg.Cursor.execute

    def lose_the_answer(cursor, query, *arguments):
        answer = execute(cursor, query, *arguments)  # type: ignore[arg-type]
        if query == "COMMIT":
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", lose_the_answer)
        with pytest.raises(LedgerError, match=r"LEDGER_UNAVAILABLE: .* take it as charged and re"):
            ledger.reserve(charge(1))
    assert len(ledger.history()) == 1
    assert not ledger.reserve(charge(1)).created


# The password, or what it is after percent-decoding.
CANARY = "CANARY"


def everything_of(error):
    """Yield all that a log could hold of an exception: with its chain and the local variables."""
    while error is not None:
        yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
        yield "".join(traceback.format_exception(error))
        for frame, line in traceback.walk_tb(error.__traceback__):
            if Path(frame.f_code.co_filename).is_relative_to(ROOT / "tests"):
                continue
            yield f"{frame.f_code.co_filename}:{line} {frame.f_locals!r}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://u:CANARY@127.0.0.1:1/d", "LEDGER_UNAVAILABLE"),
        ("postgresql://u:CANARY@[::1]:1/d", "LEDGER_UNAVAILABLE"),
        ("postgres://u:CANARY@/d?host=/nowhere", "LEDGER_UNAVAILABLE"),
        ("postgresql://u:CANARY@host.invalid/d?sslmode=verify-full", "LEDGER_UNAVAILABLE"),
        ("postgresql://u:CANARY@127.0.0.1/d?no_such=CANARY", "LEDGER_URL_INVALID"),
        ("postgresql://u:CANARY%@127.0.0.1/d", "LEDGER_URL_INVALID"),
        ("postgresql://u:CANARY\0@127.0.0.1/d", "LEDGER_URL_INVALID"),
        ("mysql://u:CANARY@127.0.0.1/d", "LEDGER_URL_INVALID"),
        ("", "LEDGER_URL_INVALID"),
        ("postgresql://u:CANARY@db.example/d?sslmode=require", "LEDGER_URL_INVALID"),
        ("postgresql://u:CANARY@localhost,10.0.0.7/d", "LEDGER_URL_INVALID"),
        ("postgresql://u:CANARY@localhost/d?hostaddr=10.0.0.7", "LEDGER_URL_INVALID"),
    ],
)
def test_no_failure_shows_the_password(url, code):
    with pytest.raises(ClustMixError) as caught:
        LedgerDatabase(url)
    assert caught.value.code == code
    assert caught.value.__context__ is None
    assert not [text for text in everything_of(caught.value) if CANARY in text]


def test_a_failure_inside_a_transaction_does_not_show_the_password(backend):
    ledger = backend.open()
    wrong = backend.location.replace("CANARY", "CANARYwrong")
    backend.execute(f"DROP TABLE {J}")
    for use, message in (
        (lambda: LedgerDatabase(wrong), r"LEDGER_UNAVAILABLE: .* found OperationalErr"),
        (ledger.history, "found UndefinedTable 42P01; see"),
        (lambda: ledger.reserve(charge(1)), "LEDGER_DAMAGED"),
    ):
        with pytest.raises((LedgerError, IntegrityError), match=message) as caught:
            use()
        assert not [text for text in everything_of(caught.value) if CANARY in text]
    assert CANARY not in postgres_server.server().log()


def test_an_address_stays_in_its_process(backend):
    ledger = backend.open()
    assert CANARY not in repr(vars(ledger._journal))
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(ledger)
