"""PostgreSQL for the orchestrator of a local server."""

import os
import shutil
from functools import partial

import psutil
import psycopg
import pytest

from flows.local_database import DATABASE_NAME, ROLE, accepts_passwords, find_postgres
from flows.server.ports import HOST, free_port, port_of
from flows.server.processes import (
    is_running,
    marked,
    run_program,
    start_part,
    stop_processes,
    wait_until_answers,
)

pytestmark = pytest.mark.integration


PASSWORD = "CANARY-password"  # noqa: S105 -- of a server that ends with the tests


class Server:
    """A server as a start of the installation makes it."""

    def __init__(self, postgres, folder):
        self.postgres, self.folder, self.mark = postgres, folder, os.urandom(8).hex()
        self.address = f"{HOST}:{free_port()}"

    def start(self, password=PASSWORD):
        self.postgres.prepare(password, partial(run_program, folder=self.folder, mark=self.mark))
        program = self.postgres.program(self.address)
        part = start_part(program, folder=self.folder, mark=self.mark)
        wait_until_answers(part, partial(accepts_passwords, self.address), timeout_seconds=60)
        self.postgres.open(self.address, password)
        return part

    def stop(self):
        stop_processes(self.postgres.processes)

    def connect(self, password=PASSWORD):
        return psycopg.connect(
            host=HOST, port=port_of(self.address), user=ROLE, dbname=DATABASE_NAME,
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
        made.append(Server(found, home))
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
    shown = str([process.cmdline() for process in running.postgres.processes()])
    folder = running.postgres.folder
    files = [path for path in (*folder.iterdir(), *running.folder.iterdir()) if path.is_file()]
    assert {path.name for path in files} >= {"database.log", "database.log.1"}
    assert PASSWORD not in shown + "".join(path.read_text() for path in files)


def test_it_stops_or_crashes_and_comes_back_with_its_rows(make):
    server = make()
    part = server.start()
    with server.connect() as connection:
        connection.execute("CREATE TABLE kept (a int)")
        # With somebody connected, and by its mark alone, as the server ends its parts.
        stop_processes(server.postgres.processes)
    assert not is_running(part)
    assert marked(server.mark) == server.postgres.processes() == []
    part = server.start()
    psutil.Process(part.pid).kill()
    # Whatever has the number by now is not taken for it.
    (server.postgres.data / "postmaster.pid").write_text(f"{os.getpid()}\n")
    assert is_running(server.start())
    with server.connect() as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
