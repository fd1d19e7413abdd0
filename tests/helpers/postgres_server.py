"""A PostgreSQL server of the tests' own: one for a session, an empty database for a test.

``database_url()`` starts the server when it is first asked for, and skips the test where there is
none.
"""

import atexit
import functools
import itertools
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from waiting import until

from flows.local_database import ROLE, accepts_passwords, find_postgres
from flows.local_server import free_port

PASSWORD = "CANARY-pass word/@:%"  # noqa: S105 - of a server that ends with the tests

_numbers = itertools.count(1)


class PostgresServer:
    """A server as an installation makes it for its orchestrator; it logs statements that fail."""

    def __init__(self):
        folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._postgres, self.port = find_postgres(folder, folder.name), free_port()
        if isinstance(self._postgres, str):
            pytest.skip(self._postgres)
        self._log = folder / "log"
        self._postgres.prepare(PASSWORD)
        self.start()

    def start(self):
        """Start the server and wait until it answers, after a crash until it has recovered."""
        command = [*self._postgres.command(self.port), "-c", "log_min_error_statement=error"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
        until(lambda: accepts_passwords(self.port), what=self.log)

    def stop(self, mode="fast"):
        """Stop the server; ``immediate`` is a crash."""
        self._process.send_signal(signal.SIGQUIT if mode == "immediate" else signal.SIGINT)
        self._process.wait(60)

    def reload(self):
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            before = connection.execute("SELECT pg_conf_load_time()").fetchone()
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute("SELECT pg_conf_load_time()").fetchone() == before:
                time.sleep(0.01)

    def close(self):
        self.stop("immediate")
        for folder in (self._postgres.folder, self._log.parent):
            shutil.rmtree(folder, ignore_errors=True)

    def log(self):
        return self._log.read_text(encoding="utf-8", errors="replace")

    def url(self, database, *, user=ROLE, password=PASSWORD):
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def new_database(self):
        name = f"ledger{next(_numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name


@functools.cache
def server():
    """Return the server of this session, started; skip the test where there is none."""
    started = PostgresServer()
    atexit.register(started.close)
    return started


@functools.cache
def _shared_database():
    return server().new_database()


def database_url():
    """Return the address of a fresh database; skip the test where there is no server.

    It is the same database each time, emptied: to create one takes a third of a second.
    """
    url = server().url(_shared_database())
    with psycopg.connect(url, autocommit=True) as connection:
        # What a process left that a test has killed.
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA IF EXISTS clustmix_ledger CASCADE")
    return url
