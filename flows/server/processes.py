"""Processes that outlive the command that started them, found again and ended.

A process is found again by a mark in its environment, which its children inherit: a number of a
process can belong to another one later, a child can lose its parent, and the run that a worker
starts leads a session of its own.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.server.record import Part, ServerError

MARK = "CLUSTMIX_SERVER_PART"
"""Variable in the environment of every process of a part."""

GRACE_SECONDS = 15.0
"""How long a part may take to stop by itself."""

TIMEOUT_SECONDS = 180.0
"""How long one part may take to answer, on a busy machine."""

_KILLED_SECONDS = 15.0
_POLL_SECONDS = 0.1
# Two readings of one start time differ by the rounding of the time of boot.
_CLOCK_SECONDS = 1.0

# A process that outlives this one: Python complains when it forgets an object of a living process.
_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command, as everybody can read it, its environment, where it answers, where it runs."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    address: str = ""
    directory: str | None = None


def start_part(program: Program, *, folder: Path, mark: str) -> Part:
    """Start a process that leads a session, with mark and log; it does not answer yet."""
    process = _start(program, folder, mark, subprocess.DEVNULL)
    _started.append(process)
    try:
        created = psutil.Process(process.pid).create_time()
    except psutil.Error:
        created = 0.0  # it has ended already; whoever waits for it will say so
    return Part(
        name=program.name,
        pid=process.pid,
        created=created,
        address=program.address,
        log=folder / f"{program.name}.log",
        mark=f"{mark}/{program.name}",
    )


def run_program(
    program: Program, stdin: int = subprocess.DEVNULL, *, folder: Path, mark: str
) -> bool:
    """Run a program to its end, as `start_part` starts it; return whether it has succeeded."""
    process = _start(program, folder, mark, stdin)
    try:
        return process.wait(TIMEOUT_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return False


def is_running(part: Part) -> bool:
    """Return whether the process that was started still runs, and not another of its number."""
    with suppress(psutil.Error):
        process = psutil.Process(part.pid)
        # A clock that was set moves the times of all processes: then the mark decides.
        same = abs(process.create_time() - part.created) < _CLOCK_SECONDS
        is_ours = same or (part.mark != "" and _mark_of(process) == part.mark)
        return is_ours and _lives(process)
    return False


def wait_until_answers(
    part: Part, answers: Callable[[], bool], *, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Wait until a part answers; one that ends or stays silent is a ServerError."""
    end = time.monotonic() + timeout_seconds
    while not answers():
        if not is_running(part):
            raise ServerError(
                "SERVER_PART_ENDED",
                f"expected the {part.name} to start, found that it ended; {part.log} says why",
            )
        if time.monotonic() > end:
            raise ServerError(
                "SERVER_PART_SILENT",
                f"expected the {part.name} to answer within {timeout_seconds:g} seconds, found no "
                f"answer; {part.log} may say why",
            )
        time.sleep(_POLL_SECONDS)


def processes() -> Iterator[psutil.Process]:
    """Return the living processes of this machine."""
    for process in psutil.process_iter():
        if _lives(process):
            yield process


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes of a start, or of one part, by the mark that it gave them."""
    found = ((process, _mark_of(process)) for process in processes())
    return [process for process, its in found if mark and f"{its}/".startswith(f"{mark}/")]


def stop_processes(
    find: Callable[[], list[psutil.Process]], *, grace_seconds: float = GRACE_SECONDS
) -> None:
    """End processes: they are asked to stop at first, and killed after the grace.

    `find` returns those that live. It is asked again and again: a process that is asked to stop may
    have started another one. A process that survives being killed is a ServerError.
    """
    asked: set[psutil.Process] = set()
    begin = time.monotonic()
    # One that is dying has no mark any more.
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
        # Takes note of the end of what this process started itself.
        psutil.wait_procs(found, timeout=_POLL_SECONDS)


def _start(program: Program, folder: Path, mark: str, stdin: int) -> subprocess.Popen[bytes]:
    log = folder / f"{program.name}.log"
    with suppress(FileNotFoundError):
        # What was said before the end of last time is what one looks for after a crash.
        os.replace(log, folder / f"{program.name}.log.1")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(log, flags, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603 -- a program of this server
            list(program.command),
            cwd=program.directory or folder,
            env={**program.environment, MARK: f"{mark}/{program.name}"},
            stdin=stdin,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )
    finally:
        os.close(descriptor)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _mark_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.environ().get(MARK, "")
    return ""  # it has ended, or is of another user
