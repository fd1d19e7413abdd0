"""The supervisor of a local server: supervisord, its configuration, and the parts that it keeps.

supervisord starts a part again when it ends. It is asked through a unix socket that only its owner
can open. A variable marks every process of a server, so that a child that lost its parent, or the
run that a worker started in a session of its own, is still found at the end.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy, Transport

import jinja2
import psutil

from privacy.errors import ClustMixError, refusals
from storage.files.private import replace_durably

MARK = "CLUSTMIX_SERVER"
"""Variable of every process of a server: the folder of the server."""

STOP_SECONDS = 15
"""Time that a part has to stop by itself."""

RUNNING, STARTING = "RUNNING", "STARTING"

_ANSWER_SECONDS = 60.0
_SHUTDOWN_SECONDS = 300.0
_KILLED_SECONDS = 15.0
_POLL_SECONDS = 0.1

_TEMPLATE = Path(__file__).with_name("supervisord.conf")
_SPAWNED = re.compile(r"spawned: '([a-z0-9-]+)' with pid")


class ServerError(ClustMixError):
    """The local server cannot be started or stopped as asked."""


refusal = refusals(__package__, ServerError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """State of a part: as supervisord names it, and how often the part was started again."""

    name: str
    state: str
    pid: int
    since: datetime
    restarts: int
    log: str

    @property
    def runs(self) -> bool:
        """True if the part runs, or is in the first seconds of a start."""
        return self.state in (RUNNING, STARTING)

    @property
    def since_text(self) -> str:
        """Time of the last start, of this machine."""
        return f"{self.since.astimezone():%Y-%m-%d %H:%M:%S}" if self.pid else ""


def run_module(*command: str, **options: Any) -> tuple[int, list[str]]:
    """Run a module of this interpreter to its end; return its exit code and lines of output."""
    done = subprocess.run(  # noqa: S603 -- this interpreter
        [sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    return done.returncode, (done.stderr.strip() or done.stdout.strip()).splitlines()


class Supervisor:
    """The supervisor of the server in a private folder; it need not run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "supervisor.sock"
        self._log = folder / "supervisord.log"
        self._configuration = folder / "supervisord.conf"

    def launch(self, environment: Mapping[str, str], **values: object) -> None:
        """Fill in the template of the parts by `values` and start supervisord.

        Every part inherits `environment`. It is a ServerError if supervisord does not start.
        """
        template = jinja2.Environment(  # noqa: S701 -- no HTML
            trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
        ).from_string(_TEMPLATE.read_text("utf-8"))
        text = template.render(stop_seconds=STOP_SECONDS, **values)
        replace_durably(self._configuration, text.encode())
        for path in (self._socket, self._log):
            path.unlink(missing_ok=True)
        marks = {MARK: str(self._folder), "SERVER_PYTHON": sys.executable}
        command = ("supervisor.supervisord", "-c", str(self._configuration))
        environment = {**environment, **marks}
        code, said = run_module(*command, env=environment, umask=0o077, timeout=_ANSWER_SECONDS)
        if code != 0 or not self.states():
            found = said[0] if said else f"no answer; {self._log} may say why"
            raise refusal("SERVER_SUPERVISOR_FAILED", found=found)

    def start(self, name: str) -> None:
        """Start a part; it does not answer yet."""
        self._ask("startProcess", name, False)

    def states(self) -> tuple[PartState, ...]:
        """Return the states of all parts by name; none without a supervisor that answers."""
        found: list[dict[str, Any]] = self._ask("getAllProcessInfo") or []
        starts: Counter[str] = Counter()
        if found:
            starts.update(_SPAWNED.findall(self._log.read_text("utf-8", errors="replace")))
        return tuple(
            PartState(
                name=part["name"],
                state=part["statename"],
                pid=part["pid"],
                since=datetime.fromtimestamp(part["start"], UTC),
                restarts=max(0, starts[part["name"]] - 1),
                log=part["stdout_logfile"],
            )
            for part in found
        )

    def stop(self, first: Sequence[str] = ()) -> None:
        """End supervisord and every process of the server.

        Parts in `first`, with their children, end first. ServerError if a process survives a kill.
        """
        pid = self._ask("getPID")
        if pid is not None:
            for name in first:
                self._ask("stopProcess", name)
            self._end(first)
            self._ask("shutdown")
            with suppress(psutil.Error):
                psutil.Process(pid).wait(_SHUTDOWN_SECONDS)
        self._end()
        self._configuration.unlink(missing_ok=True)

    def _end(self, names: Sequence[str] = ()) -> None:
        """End these parts or all: ask, then kill, and look again, as they may have started more."""
        asked: set[psutil.Process] = set()
        begin = time.monotonic()
        # A dying process has no mark any more.
        while found := {*self._processes(names), *filter(_lives, asked)}:
            waited = time.monotonic() - begin
            if waited > STOP_SECONDS + _KILLED_SECONDS:
                raise refusal(
                    "SERVER_PART_STAYS", processes=", ".join(str(process.pid) for process in found)
                )
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    if waited > STOP_SECONDS:
                        process.kill()
                    elif process not in asked:
                        process.send_signal(signal.SIGTERM)
            asked |= found
            psutil.wait_procs(found, timeout=_POLL_SECONDS)

    def _processes(self, names: Sequence[str] = ()) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                part = variables.get("SUPERVISOR_PROCESS_NAME", "")
                if variables.get(MARK) == str(self._folder) and (not names or part in names):
                    found.append(process)
        return [process for process in found if _lives(process)]

    def _ask(self, method: str, *arguments: object) -> Any:
        """Call supervisord; None if it does not answer, or refuses because nothing is to do."""
        transport = _UnixTransport(self._socket)
        with suppress(OSError, HTTPException, Fault), ServerProxy("http://x", transport) as proxy:
            return getattr(proxy.supervisor, method)(*arguments)
        return None


class _UnixTransport(Transport):
    """Calls through a unix socket, with a time limit."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> HTTPConnection:
        """Return a connection to the socket."""
        connection = HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection = host, connection
        connection.sock.settimeout(_ANSWER_SECONDS)
        connection.sock.connect(str(self._path))
        return connection


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
