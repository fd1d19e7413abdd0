"""The PostgreSQL server that the orchestrator of a local server keeps its runs in.

Only the orchestrator's database: the ledger stays where ``CLUSTMIX_LEDGER_URL`` says. Loopback
only, with a password for every connection.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.server.ports import HOST
from flows.server.processes import ServerError
from storage.files.private import ensure_private_directory

ROLE = "clustmix"
DATABASE = "prefect"

_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_SERVICE_USER = "postgres"
_COMMAND_TIMEOUT_SECONDS = 120.0
_ORPHANS_SECONDS = 10.0
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
class PostgresPrograms:
    """The programs of an installed PostgreSQL, and who runs them.

    Parameters
    ----------
    folder
        Where `initdb`, `pg_ctl` and `postgres` are.
    user
        User to run them as, or None for the user of this process.
    """

    folder: Path
    user: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A PostgreSQL server with a data folder of its own.

    Parameters
    ----------
    programs
        What runs it.
    folder
        Folder of its data and log, private to the user that runs it.
    """

    programs: PostgresPrograms
    folder: Path

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "log"

    def start(self, port: int, password: str) -> int:
        """Start the server, with its data made at the first time, and return its process.

        Parameters
        ----------
        port
            Port on the loopback interface.
        password
            Password of `ROLE`, the same at every start.

        Raises
        ------
        ServerError
            If it does not start or does not know the password.
        """
        self._make_folder()
        self.stop()  # a server of a start that was killed, or what another one has left
        if not self.data.exists():
            self._make_data(password)
        options = " ".join(f"-c {name}='{value}'" for name, value in _OPTIONS.items())
        self._run(
            "pg_ctl", "start", "-w", "-D", str(self.data), "-l", str(self.log),
            "-o", f"-p {port} {options}",
        )  # fmt: skip
        pid = self.pid()
        if pid is None:
            raise self._failed("pg_ctl")
        self._make_database(port, password)
        return pid

    def pid(self) -> int | None:
        """Return the process of the server where it runs, None where it does not."""
        with suppress(OSError, ValueError, psutil.Error):
            first = (self.data / "postmaster.pid").read_text("ascii").split()[0]
            process = psutil.Process(int(first))
            # After a reboot the number may be another process; the server stays in its data folder.
            if process in self._processes():
                return process.pid
        return None

    def stop(self) -> None:
        """Stop the server, and return when it has ended.

        Raises
        ------
        ServerError
            If it does not end.
        """
        if self.pid() is not None:
            with suppress(ServerError):
                self._run("pg_ctl", "stop", "-w", "-m", "fast", "-D", str(self.data))
        # Those of a server that was killed notice that; what was committed is recovered later.
        _, left = psutil.wait_procs(self._processes(), timeout=_ORPHANS_SECONDS)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if psutil.wait_procs(left, timeout=_ORPHANS_SECONDS)[1]:
            raise self._failed("pg_ctl")
        # Of a server that was killed: the number in it may be that of another process by now.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _processes(self) -> list[psutil.Process]:
        """Return the living processes that work in the data folder."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(self.data):
                    found.append(process)
        return found

    def _make_folder(self) -> None:
        if self.programs.user is None:
            ensure_private_directory(self.folder)
            return
        if not os.path.lexists(self.folder):
            # As the user itself, in a folder of that user: root follows nobody's links.
            self._call(["mkdir", "-m", "700", str(self.folder)], cwd=self.folder.parent)

    def _make_data(self, password: str) -> None:
        """Make the data beside their place, so that a start that dies here is repeated."""
        made = self.folder / "data.new"
        shutil.rmtree(made, ignore_errors=True)
        secret = self.folder / f".password-{os.urandom(4).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(secret, flags, 0o600), "w", encoding="ascii") as handle:
            if self.programs.user is not None:
                owner = pwd.getpwnam(self.programs.user)
                os.fchown(handle.fileno(), owner.pw_uid, owner.pw_gid)
            handle.write(password + "\n")
        try:
            self._run(
                "initdb", "-D", str(made), "-U", ROLE, "-E", "UTF8", "--no-locale",
                "--data-checksums", "--auth=scram-sha-256", f"--pwfile={secret}",
            )  # fmt: skip
        finally:
            secret.unlink()
        os.rename(made, self.data)

    def _make_database(self, port: int, password: str) -> None:
        import psycopg
        from psycopg import sql

        def connect(database: str) -> psycopg.Connection[tuple[object, ...]]:
            return psycopg.connect(
                host=HOST,
                port=port,
                user=ROLE,
                password=password,
                dbname=database,
                sslmode="disable",
                autocommit=True,
            )

        try:
            with connect("postgres") as connection:
                found = connection.execute(
                    "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
                ).fetchone()
                if found is None:
                    name = sql.Identifier(DATABASE)
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
            with connect(DATABASE) as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
            return
        except psycopg.Error as error:
            found_error = f"SQL state {error.sqlstate}" if error.sqlstate else "no connection"
        raise ServerError(
            "SERVER_DATABASE_REFUSED",
            f"expected to open the orchestrator's database in {self.folder}, found "
            f"{found_error}; its password is kept in the server's folder: restore that, or move "
            "the database away to begin a new one",
        )

    def _run(self, program: str, *arguments: str) -> None:
        done = self._call([str(self.programs.folder / program), *arguments], cwd=self.folder)
        if done != 0:
            raise self._failed(program)

    def _failed(self, program: str) -> ServerError:
        return ServerError(
            "SERVER_DATABASE_FAILED",
            f"expected {program} to serve the data in {self.folder}, found that it failed; "
            f"{self.folder / 'commands.log'} and {self.log} say why",
        )

    def _call(self, command: list[str], *, cwd: Path) -> int:
        user = self.programs.user
        if user is not None:
            group = str(pwd.getpwnam(user).pw_gid)
            command = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]
        # Not a pipe: the server would keep it open.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        place = os.devnull if cwd != self.folder else self.folder / "commands.log"
        descriptor = os.open(place, flags, 0o600)
        try:
            return subprocess.run(  # noqa: S603 -- programs of PostgreSQL
                command,
                cwd=cwd,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=False,
                timeout=_COMMAND_TIMEOUT_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            return -1
        finally:
            os.close(descriptor)


def find_postgres() -> PostgresPrograms | str:
    """Return the programs of PostgreSQL, or the reason why they cannot be used here."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(installed, key=lambda path: (len(path.parent.name), path), reverse=True)
    usable = [f for f in folders if all((f / program).exists() for program in _PROGRAMS)]
    if not usable:
        return "initdb and pg_ctl of PostgreSQL are not installed"
    if os.geteuid() != 0:
        return PostgresPrograms(folder=usable[0], user=None)
    if shutil.which("setpriv") is None:
        return "PostgreSQL refuses to run as root and setpriv is not installed"
    try:
        pwd.getpwnam(_SERVICE_USER)
    except KeyError:
        return f"PostgreSQL refuses to run as root and there is no user {_SERVICE_USER}"
    return PostgresPrograms(folder=usable[0], user=_SERVICE_USER)


def postgres_server(
    programs: PostgresPrograms, server_home: Path, installation: str
) -> PostgresServer:
    """Return the server of an installation; nothing is started.

    Parameters
    ----------
    programs
        As `find_postgres` found them.
    server_home
        Folder of the local server.
    installation
        Id of the installation, for the name of a folder outside of it.
    """
    if programs.user is None:
        return PostgresServer(programs=programs, folder=server_home / "postgres")
    # Another user cannot enter our folder.
    home = Path(pwd.getpwnam(programs.user).pw_dir)
    return PostgresServer(programs=programs, folder=home / f"clustmix-{installation}")
