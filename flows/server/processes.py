"""One part of the local server: a process of its own that outlives the command that started it.

A process is found again by a mark in its environment, which its children inherit: a number of a
process can belong to another one later, and a child can lose its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from privacy.errors import ClustMixError

MARK = "CLUSTMIX_SERVER_PART"
"""Variable in the environment of every process of a part."""

GRACE_SECONDS = 15.0
"""How long a part may take to stop by itself."""

_KILLED_SECONDS = 15.0
_POLL_SECONDS = 0.1
# Two readings of one start time differ by the rounding of the time of boot.
_CLOCK_SECONDS = 1.0

# A process that outlives this one: Python complains when it forgets an object of a living process.
_started: list[subprocess.Popen[bytes]] = []


class ServerError(ClustMixError):
    """The local server cannot be started or stopped as asked."""

    exit_code = 1


class Part(BaseModel):
    """A part that was started.

    Attributes
    ----------
    name : str
        Name for people, unique among the parts of a server.
    pid : int
        Process that was started, which leads a group of its own.
    created : float
        When the operating system made it, in seconds since 1970.
    address : str
        Where it answers; empty for a part that nobody calls.
    log : Path
        Its output.
    mark : str
        Value of `MARK` in its environment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    pid: int
    created: float
    address: str
    log: Path
    mark: str


def start_part(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    mark: str,
    address: str = "",
) -> Part:
    """Start a process that leads a session of its own, with its output in a log.

    Parameters
    ----------
    name
        Name of the part.
    command
        Program and arguments, without secrets: everybody can read them.
    environment
        The whole environment of the process.
    folder
        Private folder: current directory of the process and place of ``<name>.log``.
    mark
        Random text that belongs to this start of the server.
    address
        Where the part will answer.

    Returns
    -------
    Part
        The part, which does not answer yet.
    """
    log = folder / f"{name}.log"
    with suppress(FileNotFoundError):
        # What the part said before it ended last time is what one looks for after a crash.
        os.replace(log, folder / f"{name}.log.1")
    mark = f"{mark}/{name}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(log, flags, 0o600)
    try:
        process = subprocess.Popen(  # noqa: S603 -- a program of this server
            list(command),
            cwd=folder,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )
    finally:
        os.close(descriptor)
    _started.append(process)
    try:
        created = psutil.Process(process.pid).create_time()
    except psutil.Error:
        created = 0.0  # it has ended already; whoever waits for it will say so
    return Part(name=name, pid=process.pid, created=created, address=address, log=log, mark=mark)


def is_running(part: Part) -> bool:
    """Return whether the process that was started still runs, and not another of its number."""
    return _leader(part) is not None


def wait_until_answers(
    name: str,
    answers: Callable[[], bool],
    *,
    timeout_seconds: float,
    log: Path,
    runs: Callable[[], bool] = lambda: True,
) -> None:
    """Wait until something that was started answers.

    Parameters
    ----------
    name
        What is waited for, for the error.
    answers
        Asked again and again; an `OSError` counts as no answer.
    timeout_seconds
        How long to wait.
    log
        Where its output is, for the error.
    runs
        Whether it can still answer.

    Raises
    ------
    ServerError
        If it ends or stays silent.
    """
    end = time.monotonic() + timeout_seconds
    while True:
        with suppress(OSError):
            if answers():
                return
        if not runs():
            raise ServerError(
                "SERVER_PART_ENDED",
                f"expected {name} to start, found that it ended; {log} says why",
            )
        if time.monotonic() > end:
            raise ServerError(
                "SERVER_PART_SILENT",
                f"expected {name} to answer within {timeout_seconds:g} seconds, found no answer; "
                f"{log} may say why",
            )
        time.sleep(_POLL_SECONDS)


def stop_part(part: Part, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End every process of a part: asked to stop at first, killed after the grace.

    Parameters
    ----------
    part
        The part.
    grace_seconds
        How long it may take to stop by itself.

    Raises
    ------
    ServerError
        If a process survives being killed.
    """
    _stop(lambda: _processes(part), grace_seconds)


def stop_marked(mark: str, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End every process of every part of a start, see `stop_part`.

    Parameters
    ----------
    mark
        The mark that was handed to `start_part`.
    grace_seconds
        How long they may take to stop by themselves.
    """
    _stop(lambda: [p for p in _alive() if _mark_of(p).startswith(f"{mark}/")], grace_seconds)


def _stop(find: Callable[[], list[psutil.Process]], grace_seconds: float) -> None:
    asked: set[psutil.Process] = set()
    begin = time.monotonic()
    # Looked for again each time: a process that is asked to stop may have started another one.
    while found := find():
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
        asked.update(found)
        # Takes note of the end of what this process started itself.
        psutil.wait_procs(found, timeout=_POLL_SECONDS)


def _leader(part: Part) -> psutil.Process | None:
    try:
        process = psutil.Process(part.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # A clock that was set moves the times of all processes: then the mark decides.
        same = abs(process.create_time() - part.created) < _CLOCK_SECONDS
        return process if same or _mark_of(process) == part.mark else None
    except psutil.Error:
        return None


def _processes(part: Part) -> list[psutil.Process]:
    """Return the living processes of a part: marked, or in the group of its first process."""
    leads = _leader(part) is not None
    found = []
    for process in _alive():
        with suppress(ProcessLookupError):
            in_group = leads and os.getpgid(process.pid) == part.pid
            if in_group or _mark_of(process) == part.mark:
                found.append(process)
    return found


def _alive() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _mark_of(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK, "")
    except psutil.Error:
        return ""  # it has ended, or is of another user
