"""The supervisor of a local server: supervisord, its configuration, and the parts that it keeps.

supervisord starts a part again when it ends. It is asked through a unix socket that only its owner
can open. A variable marks every process of a server, so that a child that lost its parent, or the
run that a worker started in a session of its own, is still found at the end.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

import jinja2
import psutil

from privacy.errors import ClustMixError
from storage.files.private import replace_durably

MARK = "CLUSTMIX_SERVER"
"""Variable of every process of a server: the folder of the server."""

STOP_SECONDS = 15
"""Time that a part has to stop by itself."""

RUNNING, STARTING = "RUNNING", "STARTING"

_SHUTDOWN_SECONDS = 300.0
_KILLED_SECONDS = 15.0
_POLL_SECONDS = 0.1
_SOCKET_BYTES = 100
"""Longest path of a unix socket that every system takes."""

_TEMPLATE = Path(__file__).with_name("supervisord.conf")
_SPAWNED = re.compile(r"spawned: '([a-z0-9-]+)' with pid")
_UNREPRESENTABLE = re.compile(r"[\n\r]|\s[;#]")
"""Texts that no line of the configuration holds: it would end there."""


class ServerError(ClustMixError):
    """The local server cannot be started or stopped as asked."""

    exit_code = 1


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
        if len(os.fsencode(self._socket)) > _SOCKET_BYTES:
            raise ServerError(
                "SERVER_PATH_LONG",
                f"expected a path of at most {_SOCKET_BYTES} bytes for the socket of the "
                f"supervisor, found {self._socket}; choose a shorter CLUSTMIX_HOME",
            )
        text = _template().render(
            folder=str(self._folder),
            python=sys.executable,
            is_root=os.geteuid() == 0,
            stop_seconds=STOP_SECONDS,
            **values,
        )
        replace_durably(self._configuration, text.encode())
        for path in (self._socket, self._log):
            path.unlink(missing_ok=True)
        done = subprocess.run(  # noqa: S603 -- this interpreter, and a file that was just written
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._configuration)],
            env={**environment, MARK: str(self._folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            umask=0o077,
        )
        if done.returncode != 0 or not self.states():
            raise ServerError(
                "SERVER_SUPERVISOR_FAILED",
                f"expected supervisord to start, found that it did not; {self._log} may say why",
            )

    def start(self, name: str) -> None:
        """Start a part; it does not answer yet."""
        self._ask("startProcess", name, False)

    def states(self) -> tuple[PartState, ...]:
        """Return the states of all parts by name; none without a supervisor."""
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

        The parts named `first` end before the others, with all that they have started. It is a
        ServerError if a process survives being killed.
        """
        pid = self._ask("getPID")
        if pid is not None:
            for name in first:
                self._ask("stopProcess", name)
            end_processes(lambda: [p for p, part in self._processes() if part in first])
            self._ask("shutdown")
            with suppress(psutil.Error):
                psutil.Process(pid).wait(_SHUTDOWN_SECONDS)
        end_processes(lambda: [process for process, _ in self._processes()])
        self._configuration.unlink(missing_ok=True)

    def _processes(self) -> list[tuple[psutil.Process, str]]:
        """Return the living processes of the server, each with the name of its part."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                if variables.get(MARK) == str(self._folder):
                    found.append((process, variables.get("SUPERVISOR_PROCESS_NAME", "")))
        return [(process, part) for process, part in found if _lives(process)]

    def _ask(self, method: str, *arguments: object) -> Any:
        """Call supervisord; None if it does not run, or refuses because nothing is to be done."""
        if not self._socket.exists():
            return None
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        with suppress(OSError, HTTPException, Fault), closing(transport):
            supervisor = ServerProxy("http://127.0.0.1", transport=transport).supervisor
            return getattr(supervisor, method)(*arguments)
        return None


def end_processes(
    find: Callable[[], list[psutil.Process]], *, grace_seconds: float = STOP_SECONDS
) -> None:
    """End processes: each is asked to stop, and killed after the grace.

    `find` returns those that live, and is called again and again: a process that is asked to stop
    may have started another one. A process that survives being killed is a ServerError.
    """
    asked: set[psutil.Process] = set()
    begin = time.monotonic()
    # A dying process has no mark any more.
    while found := {*find(), *filter(_lives, asked)}:
        waited = time.monotonic() - begin
        if waited > grace_seconds + _KILLED_SECONDS:
            raise ServerError(
                "SERVER_PART_STAYS",
                "expected every process to end when it is killed, found that "
                f"{', '.join(str(process.pid) for process in found)} did not; see what holds it",
            )
        for process in found:
            with suppress(psutil.NoSuchProcess):
                if waited > grace_seconds:
                    process.kill()
                elif process not in asked:
                    process.send_signal(signal.SIGTERM)
        asked |= found
        psutil.wait_procs(found, timeout=_POLL_SECONDS)


_UNUSABLE = ServerError(
    "SERVER_TEXT_UNUSABLE",
    "expected folders and addresses without quotes, line breaks and comment signs, found one of "
    "them; choose other names",
)


def _text(text: object) -> str:
    if _UNREPRESENTABLE.search(str(text)):
        raise _UNUSABLE
    return str(text).replace("%", "%%")


def _words(command: Sequence[str]) -> str:
    return _text(shlex.join(command))


def _variables(environment: Mapping[str, str]) -> str:
    # supervisord takes every quote off both ends, and knows none inside.
    for value in environment.values():
        if '"' in value or value != value.strip("'"):
            raise _UNUSABLE
    return ",".join(f'{name}="{_text(value)}"' for name, value in environment.items())


def _template() -> jinja2.Template:
    environment = jinja2.Environment(  # noqa: S701 -- no HTML
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "text": _text,
        "word": lambda word: _words([word]),
        "words": _words,
        "environment": _variables,
        "port": lambda address: address.rpartition(":")[2],
    }
    return environment.from_string(_TEMPLATE.read_text("utf-8"))


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
