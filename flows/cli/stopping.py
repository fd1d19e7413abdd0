"""Prompt end of a command that is stopped from the keyboard, with one line about the charge.

Libraries catch an interrupt, wait for their workers, or print tracebacks. So the interrupt is
blocked in every thread and every process that the command starts. One thread receives it, asks the
command to end, and ends the process after a short wait.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

from flows.cli import terminal
from flows.cli.options import load_settings
from privacy.errors import ClustMixError
from privacy.ledger import EntryState

UNWIND_SECONDS, LEDGER_SECONDS = 2.5, 2.0
"""Time for the command to free its resources, and for the ledger to report the charge."""

_POLL_SECONDS = 0.1
_releases: list[str] = []


def note_release(release_id: str) -> None:
    """Name the release that the command makes, before anything is charged for it."""
    _releases.append(release_id)


@contextmanager
def stoppable(*, as_json: bool) -> Iterator[None]:
    """End the process within five seconds if the block is stopped from the keyboard."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked, ended = threading.Event(), threading.Event()
    interrupt = {signal.SIGINT}
    # Started now, since its start unblocks interrupts in its thread, and in children of that.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, interrupt)
    # Wakes the main thread wherever it waits.
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def watch() -> None:
        while signal.sigtimedwait(interrupt, _POLL_SECONDS) is None:
            if ended.is_set():
                return
        asked.set()
        errors = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries print tracebacks
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        ended.wait(UNWIND_SECONDS)
        said = ["clustmix ledger show says whether its charge stands"]
        reader = threading.Thread(target=_read_charge, args=[said], daemon=True)
        reader.start()
        reader.join(LEDGER_SECONDS)
        _end(ClustMixError("STOPPED", f"stopped from the keyboard; {said[-1]}"), errors, as_json)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(KeyboardInterrupt):
            ended.set()
            thread.join()
        while asked.is_set():
            threading.Event().wait()  # until `watch` ends the process
        signal.signal(signal.SIGUSR1, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _releases.clear()


def _read_charge(said: list[str]) -> None:
    """Append a sentence on the charge, by its state in the ledger."""
    from storage.settings import open_ledger

    settings = load_settings()
    state = None
    if _releases and (settings.ledger_url is not None or settings.ledger_path.exists()):
        for entry in open_ledger(settings).entries():
            state = entry.state if entry.release_id == _releases[-1] else state
    if state in (None, EntryState.RESERVED, EntryState.VOID):
        said.append("nothing is charged")
    elif state in (EntryState.EXECUTING, EntryState.BURNED):
        said.append("its charge stands; the next release needs --again and pays anew")
    else:
        said.append("its charge stands; without --new-draw the command goes on at no cost")


def _end(error: ClustMixError, errors: int, as_json: bool) -> None:
    """Print the failure, then end this process and every process that it has started."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os.dup2(errors, 2)
    if sys.stderr.isatty():
        os.write(2, b"\r\x1b[2K\x1b[?25h")  # no bar, and the cursor again
    terminal.failure(error, as_json=as_json)
    sys.stdout.flush()
    os._exit(error.exit_code)
