"""PostgreSQL for the orchestrator of a local server."""

import os
import pwd
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from flows.server import database as server_database
from flows.server.database import (
    DATABASE,
    ROLE,
    PostgresPrograms,
    PostgresServer,
    find_postgres,
    postgres_server,
)
from flows.server.ports import HOST, free_port
from flows.server.processes import ServerError

pytestmark = pytest.mark.integration


PASSWORD = "CANARY-password"  # noqa: S105 -- of a server that ends with the tests


@pytest.fixture(scope="module")
def programs() -> PostgresPrograms:
    found = find_postgres()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def running(
    programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PostgresServer, int]]:
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    server = postgres_server(programs, home, f"test-{os.urandom(4).hex()}")
    port = free_port()
    try:
        server.start(port, PASSWORD)
        yield server, port
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


def connect(port: int, password: str = PASSWORD) -> psycopg.Connection:
    return psycopg.connect(
        host=HOST, port=port, user=ROLE, password=password, dbname=DATABASE, autocommit=True
    )


def test_the_database_has_what_the_orchestrator_needs(running) -> None:
    _, port = running
    with connect(port) as connection:
        found = connection.execute("SELECT extname FROM pg_extension").fetchall()
        assert ("pg_trgm",) in found
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()[0]
            for name in ("listen_addresses", "unix_socket_directories", "password_encryption")
        }
    assert shown == {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "password_encryption": "scram-sha-256",
    }


def test_nobody_enters_without_the_password(running) -> None:
    server, port = running
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(port, "another")
    rules = (server.data / "pg_hba.conf").read_text()
    methods = {line.split()[-1] for line in rules.splitlines() if line and line[0] != "#"}
    assert methods == {"scram-sha-256"}


def test_the_password_is_in_no_file_and_in_no_command(running) -> None:
    server, _ = running
    said = [psutil.Process(server.pid()).cmdline()]
    for path in server.folder.glob("*"):
        if path.is_file():
            said.append(path.read_bytes().decode("utf-8", "replace"))
    assert PASSWORD not in str(said)
    assert not list(server.folder.glob(".password-*"))


def test_its_folder_is_private_and_its_user_is_not_root(running) -> None:
    server, _ = running
    for folder in (server.folder, server.data):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    process = psutil.Process(server.pid())
    assert process.uids().real == server.folder.stat().st_uid != 0
    if server.programs.user is not None:
        owner = pwd.getpwnam(server.programs.user)
        assert process.uids().real == owner.pw_uid
        assert server.folder.parent == Path(owner.pw_dir)


def test_it_stops_and_comes_back_with_its_rows(running) -> None:
    server, port = running
    with connect(port) as connection:
        connection.execute("CREATE TABLE kept (a int)")
    server.stop()
    assert server.pid() is None
    server.stop()  # nothing to do
    pid = server.start(port, PASSWORD)
    assert server.pid() == pid
    with connect(port) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_after_a_crash_it_is_not_taken_for_running(running) -> None:
    server, port = running
    psutil.Process(server.pid()).kill()
    while server.pid() is not None:
        time.sleep(0.01)
    assert (server.data / "postmaster.pid").exists()
    server.start(port, PASSWORD)
    assert server.pid() is not None


def test_a_lost_password_is_named_with_what_to_do(running) -> None:
    server, port = running
    server.stop()
    with pytest.raises(ServerError) as caught:
        server.start(port, "another")
    server.stop()
    server.start(port, PASSWORD)
    assert caught.value.code == "SERVER_DATABASE_REFUSED"
    assert caught.value.message == (
        f"expected to open the orchestrator's database in {server.folder}, found no "
        "connection; its password is kept in the server's folder: restore that, or move the "
        "database away to begin a new one"
    )


def test_a_port_that_is_taken_is_reported_with_the_logs(running, programs, tmp_path) -> None:
    _, port = running
    other = postgres_server(programs, tmp_path, f"test-{os.urandom(4).hex()}")
    try:
        with pytest.raises(ServerError) as caught:
            other.start(port, PASSWORD)
        assert other.pid() is None
    finally:
        other.stop()
        shutil.rmtree(other.folder, ignore_errors=True)
    assert caught.value.code == "SERVER_DATABASE_FAILED"
    assert caught.value.message == (
        f"expected pg_ctl to serve the data in {other.folder}, found that it failed; "
        f"{other.folder / 'commands.log'} and {other.log} say why"
    )


def test_the_reason_is_told_where_there_is_none(monkeypatch) -> None:
    monkeypatch.setattr(server_database, "_PROGRAMS", ("initdb", "no-such-program"))
    assert find_postgres() == "initdb and pg_ctl of PostgreSQL are not installed"


def test_root_needs_setpriv_and_a_user(monkeypatch, programs) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(server_database, "_SERVICE_USER", "no-such-user")
    assert find_postgres() == (
        "PostgreSQL refuses to run as root and there is no user no-such-user"
    )
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_postgres() == "PostgreSQL refuses to run as root and setpriv is not installed"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_postgres().user is None
