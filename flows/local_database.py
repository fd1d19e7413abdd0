"""The PostgreSQL server in which the orchestrator of a local server keeps its runs.

It holds the orchestrator's database alone: the ledger stays where ``CLUSTMIX_LEDGER_URL`` says.
Loopback only, with a password for every connection.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.supervisor import ServerError, end_processes

DATABASE = "database"
"""Name of the part."""

ROLE = "clustmix"
DATABASE_NAME = "postgres"
"""Made by initdb; nothing else is in this server."""

_HOST = "127.0.0.1"
_SERVICE_USER = "postgres"
_OPTIONS = {
    "listen_addresses": _HOST,
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "64MB",
    # Statements hold ids only, and need not be logged all the same.
    "log_statement": "none",
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """PostgreSQL: the folders of its programs and its data, and its user (None: ours)."""

    programs: Path
    user: str | None
    folder: Path

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def prepare(self, password: str) -> None:
        """Make the data on first use, with the `password` of `ROLE` (ServerError if it fails)."""
        end_database(self.data)
        if self.data.exists():
            return
        # Made beside its place, so that a start that dies here is repeated.
        made = self.folder / "data.new"
        shutil.rmtree(made, ignore_errors=True)
        command = self._command(
            "initdb", "-D", str(made), "-U", ROLE, "-E", "UTF8", "--no-locale",
            "--data-checksums", "--auth=scram-sha-256", "--pwfile=/dev/stdin",
        )  # fmt: skip
        # The password reaches no disk and no command line: initdb reads it from a pipe.
        reading, writing = os.pipe()
        os.write(writing, f"{password}\n".encode("ascii"))
        os.close(writing)
        if self.user is not None:
            os.fchown(reading, pwd.getpwnam(self.user).pw_uid, -1)
        with os.fdopen(reading) as pipe:
            done = subprocess.run(  # noqa: S603 -- a program of PostgreSQL
                command, stdin=pipe, capture_output=True, text=True, check=False, cwd="/"
            )
        if done.returncode != 0:
            raise ServerError(
                "SERVER_DATABASE_FAILED",
                f"expected initdb to make the data in {self.folder}, found: "
                f"{done.stderr.strip()[-200:] or 'no reason'}",
            )
        os.rename(made, self.data)

    def command(self, port: int) -> Sequence[str]:
        """Return the command that serves the data at a port."""
        options = _OPTIONS | {"port": str(port)}
        words = (word for name, value in options.items() for word in ("-c", f"{name}={value}"))
        return self._command("postgres", "-D", str(self.data), *words)

    def _command(self, program: str, *arguments: str) -> Sequence[str]:
        """Return a command that inherits no variable: another user must not see ours."""
        clean = ["env", "-i", f"PATH={os.environ.get('PATH', os.defpath)}", "LC_ALL=C"]
        if self.user is not None:
            group = f"--regid={pwd.getpwnam(self.user).pw_gid}"
            clean += ["setpriv", f"--reuid={self.user}", group, "--clear-groups"]
        return [*clean, str(self.programs / program), *arguments]


def end_database(data: Path) -> None:
    """End a PostgreSQL that its supervisor has left behind, known by its working folder."""

    def processes() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.name() == "postgres" and process.cwd() == str(data):
                    found.append(process)
        return found

    end_processes(processes)
    # The number in it may be that of another process by now.
    (data / "postmaster.pid").unlink(missing_ok=True)


def accepts_passwords(port: int) -> bool:
    """Return whether a PostgreSQL has started, and recovered after a crash."""
    from psycopg.pq import PGconn, Ping

    return PGconn.ping(f"host={_HOST} port={port}".encode("ascii")) == Ping.OK


def find_postgres(server_home: Path, installation: str) -> Postgres | str:
    """Return the PostgreSQL of an installation, by its id, or the reason why there is none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(installed, key=lambda path: (len(path.parent.name), path), reverse=True)
    usable = [f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()]
    if not usable:
        return "PostgreSQL is not installed"
    if os.geteuid() != 0:
        return Postgres(programs=usable[0], user=None, folder=server_home / "postgres")
    try:
        # PostgreSQL refuses to run as root, and another user cannot enter our folder.
        home = Path(pwd.getpwnam(_SERVICE_USER).pw_dir)
    except KeyError:
        return f"PostgreSQL refuses to run as root and there is no user {_SERVICE_USER}"
    folder = home / f"clustmix-{installation}"
    return Postgres(programs=usable[0], user=_SERVICE_USER, folder=folder)
