"""The PostgreSQL server that the orchestrator of a local server keeps its runs in.

Only the orchestrator's database: the ledger stays where ``CLUSTMIX_LEDGER_URL`` says. Loopback
only, with a password for every connection.
"""

import os
import pwd
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.server.ports import HOST, port_of
from flows.server.processes import Program, processes, stop_processes
from flows.server.record import ServerError

DATABASE = "database"
"""Name of the part."""

ROLE = "clustmix"
DATABASE_NAME = "prefect"

_PROGRAMS = ("initdb", "postgres")
_SERVICE_USER = "postgres"
_OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "64MB",
    # Parameters of runs are ids, and still nobody's business.
    "log_statement": "none",
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """PostgreSQL: its programs, the user who runs them (None: ours), the folder of its data."""

    programs: Path
    user: str | None
    folder: Path

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of the server: PostgreSQL's in the data folder."""
        found = []
        for process in processes():
            with suppress(psutil.Error, OSError):
                if process.name() == "postgres" and process.cwd() == str(self.data):
                    found.append(process)
        return found

    def prepare(self, password: str, run: Callable[[Program, int], bool]) -> None:
        """Make the data at the first time, and clear what a server that was killed has left.

        `password` is that of `ROLE`, the same every time; `run` is
        `flows.server.processes.run_program`. Raises ServerError if the data cannot be made.
        """
        stop_processes(self.processes)
        # Of a server that was killed: the number in it may be that of another process by now.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        if self.data.exists():
            return
        # Made beside their place, so that a start that dies here is repeated.
        made = self.folder / "data.new"
        shutil.rmtree(made, ignore_errors=True)
        program = self._program(
            "initdb", "-D", str(made), "-U", ROLE, "-E", "UTF8", "--no-locale",
            "--data-checksums", "--auth=scram-sha-256", "--pwfile=/dev/stdin",
        )  # fmt: skip
        # The password reaches no disk and no command line: initdb reads it from a pipe.
        reading, writing = os.pipe()
        with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
            pipe.write(f"{password}\n")
            pipe.close()
            if self.user is not None:
                os.fchown(reading, pwd.getpwnam(self.user).pw_uid, -1)
            done = run(program, reading)
        if not done:
            raise ServerError(
                "SERVER_DATABASE_FAILED",
                f"expected initdb to make the data in {self.folder}, found that it failed; "
                f"{DATABASE}.log in the server's folder says why",
            )
        os.rename(made, self.data)

    def program(self, address: str) -> Program:
        """Return what serves the data at an address, ``host:port``."""
        options = _OPTIONS | {"port": str(port_of(address))}
        words = (word for name, value in options.items() for word in ("-c", f"{name}={value}"))
        return self._program("postgres", "-D", str(self.data), *words, address=address)

    def open(self, address: str, password: str) -> None:
        """Make the orchestrator's database if it is missing; a wrong password is a ServerError."""
        import psycopg

        login = f"host={HOST} port={port_of(address)} user={ROLE} dbname=postgres sslmode=disable"
        try:
            with psycopg.connect(login, password=password, autocommit=True) as connection:
                known = "SELECT FROM pg_database WHERE datname = 'prefect'"
                if not connection.execute(known).rowcount:
                    connection.execute("CREATE DATABASE prefect")
                return
        except psycopg.Error as error:
            found = f"SQL state {error.sqlstate}" if error.sqlstate else "no connection"
        raise ServerError(
            "SERVER_DATABASE_REFUSED",
            f"expected to open the orchestrator's database in {self.folder}, found {found}; its "
            "password is kept in the server's folder: restore that, or move the database away to "
            "begin a new one",
        )

    def _program(self, program: str, *arguments: str, address: str = "") -> Program:
        command = [str(self.programs / program), *arguments]
        if self.user is not None:
            group = f"--regid={pwd.getpwnam(self.user).pw_gid}"
            command = ["setpriv", f"--reuid={self.user}", group, "--clear-groups", *command]
        return Program(
            name=DATABASE,
            command=command,
            environment={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            address=address,
            directory="/",  # another user cannot enter ours
        )


def accepts_passwords(address: str) -> bool:
    """Return whether a PostgreSQL at an address has started, and recovered after a crash."""
    from psycopg.pq import PGconn, Ping

    return PGconn.ping(f"host={HOST} port={port_of(address)}".encode("ascii")) == Ping.OK


def find_postgres(server_home: Path, installation: str) -> Postgres | str:
    """Return the PostgreSQL of an installation, by its id, or why there is none; starts nothing."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(installed, key=lambda path: (len(path.parent.name), path), reverse=True)
    usable = [f for f in folders if all((f / program).exists() for program in _PROGRAMS)]
    if not usable:
        return "PostgreSQL is not installed"
    if os.geteuid() != 0:
        return Postgres(programs=usable[0], user=None, folder=server_home / "postgres")
    if shutil.which("setpriv") is None:
        return "PostgreSQL refuses to run as root and setpriv is not installed"
    try:
        # Another user cannot enter our folder.
        home = Path(pwd.getpwnam(_SERVICE_USER).pw_dir)
    except KeyError:
        return f"PostgreSQL refuses to run as root and there is no user {_SERVICE_USER}"
    folder = home / f"clustmix-{installation}"
    return Postgres(programs=usable[0], user=_SERVICE_USER, folder=folder)
