"""A PostgreSQL server of the tests' own: one for a session, an empty database for a test."""

import atexit
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from pwd import getpwall
from urllib.parse import quote, urlencode

import psycopg
import pytest

PASSWORD = "CANARY-pass word/@:%"  # noqa: S105 - of a server that ends with the tests
OWNER = "owner"

_numbers = itertools.count(1)


def programs():
    """Return the folder of the newest PostgreSQL; skip the test where there is none to run."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(installed, key=lambda path: (len(path.parent.name), path), reverse=True)
    usable = [f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()]
    if not usable or (
        os.geteuid() == 0 and "postgres" not in {user.pw_name for user in getpwall()}
    ):
        pytest.skip("PostgreSQL is not installed, or refuses to run as root")
    return usable[0]


class PostgresServer:
    """A server on a Unix socket in a folder of its own, durable like one in production."""

    def __init__(self):
        self._programs, self._as_user = programs(), []
        # Short and open to the server's user: a socket path may have 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        if os.geteuid() == 0:  # initdb refuses root
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(self._folder, "postgres", "postgres")
        password = self._folder / "password"
        password.write_text(PASSWORD + "\n", encoding="utf-8")
        password.chmod(0o644)
        self._run(
            "initdb", "-D", self._data, "-U", OWNER, "-E", "UTF8", "--no-locale", "--no-sync",
            "--auth=scram-sha-256", f"--pwfile={password}",
        )  # fmt: skip
        password.unlink()
        with (self._folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self._folder}'\n"
                "max_connections = 60\nshared_buffers = 32MB\nlog_statement = none\n"
            )
        self.start()

    @property
    def _data(self):
        return str(self._folder / "data")

    def _run(self, program, *arguments):
        with tempfile.TemporaryFile() as output:
            # Not a pipe: the server would keep it open.
            done = subprocess.run(
                [*self._as_user, str(self._programs / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                check=False,
                timeout=120,
            )
            if done.returncode != 0:
                output.seek(0)
                raise RuntimeError(f"{program}: {output.read().decode(errors='replace')}")

    def start(self):
        """Start the server and wait until it answers, after a crash until it has recovered."""
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", str(self._folder / "log"))

    def stop(self, mode="fast"):
        """Stop the server; ``immediate`` is a crash."""
        self._run("pg_ctl", "stop", "-w", "-D", self._data, "-m", mode)

    def reload(self):
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            before = connection.execute("SELECT pg_conf_load_time()").fetchone()
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute("SELECT pg_conf_load_time()").fetchone() == before:
                time.sleep(0.01)

    def close(self):
        try:
            self.stop("immediate")
        except RuntimeError:
            pass  # a test has left it stopped
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self):
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def url(self, database, *, user=OWNER, password=PASSWORD):
        where = urlencode({"host": str(self._folder)})
        return f"postgresql://{user}:{quote(password, safe='')}@/{database}?{where}"

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
