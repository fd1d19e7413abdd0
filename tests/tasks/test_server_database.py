"""PostgreSQL for the orchestrator of a local server."""

import os
import shutil
import subprocess

import psutil
import psycopg
import pytest
from waiting import until

from flows.local_database import (
    DATABASE_NAME,
    ROLE,
    accepts_passwords,
    end_database,
    find_postgres,
)
from flows.local_server import free_port

pytestmark = pytest.mark.integration

PASSWORD = "CANARY-password"  # noqa: S105 -- of a server that ends with the tests


class Server:
    """A server as a start of the installation makes it."""

    def __init__(self, postgres):
        self.postgres, self.port = postgres, free_port()

    def start(self, password=PASSWORD):
        self.postgres.prepare(password)
        command = self.postgres.command(self.port)
        secret = {**os.environ, "SECRET": "CANARY-secret"}
        self.process = subprocess.Popen(command, cwd="/", env=secret, start_new_session=True)
        until(lambda: accepts_passwords(self.port), seconds=60)

    def stop(self):
        end_database(self.postgres.data)
        self.process.wait(30)

    def connect(self, password=PASSWORD):
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=ROLE, dbname=DATABASE_NAME,
            password=password, autocommit=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    made = []

    def server():
        home = tmp_path_factory.mktemp("home")
        found = find_postgres(home, f"test-{os.urandom(4).hex()}")
        if isinstance(found, str):
            pytest.skip(found)
        made.append(Server(found))
        return made[-1]

    yield server
    for one in made:
        one.stop()
        shutil.rmtree(one.postgres.folder, ignore_errors=True)


def test_nobody_enters_without_the_password_which_is_in_no_file_and_no_command(make):
    running = make()
    running.start()
    names = ("listen_addresses", "unix_socket_directories", "password_encryption", "log_statement")
    with running.connect() as connection:
        shown = [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]
    assert shown == ["127.0.0.1", "", "scram-sha-256", "none"]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        running.connect("another")
    rules = (running.postgres.data / "pg_hba.conf").read_text()
    methods = {line.split()[-1] for line in rules.splitlines() if line and line[0] != "#"}
    assert methods == {"scram-sha-256"}
    shown = running.process.args, psutil.Process(running.process.pid).cmdline()
    assert PASSWORD not in str(shown)
    folder = running.postgres.folder
    assert [path.name for path in folder.iterdir()] == ["data"]


def test_it_stops_or_crashes_and_comes_back_with_its_rows(make):
    server = make()
    server.start()
    with server.connect() as connection:
        connection.execute("CREATE TABLE kept (a int)")
        # With somebody connected, and by its folder alone.
        server.stop()
    server.start()
    # The environment of another user holds nothing of ours.
    assert not psutil.Process(server.process.pid).environ().get("SECRET")
    server.process.kill()
    server.process.wait(30)
    # Whatever has the number by now is not taken for it.
    (server.postgres.data / "postmaster.pid").write_text(f"{os.getpid()}\n")
    server.start()
    with server.connect() as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
