"""What the command ``clustmix watch`` does; it returns its exit code."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from flows import terminal
from privacy.errors import ConfigurationError
from storage.settings import Settings, ensure_private_directory, load_settings

LOCK_FILE = "watcher.lock"

_LOCK_SECONDS = 2.0
_NAP_SECONDS = 0.2


def watch(options: argparse.Namespace) -> int:
    """Watch until a signal asks for the end, or look once."""
    settings = load_settings()
    with _only_watcher(settings), _until_asked() as end:
        # Heavy, and with what reads the settings of the orchestrator.
        from flows.watcher import TICK_SECONDS, Watcher, say

        watcher = Watcher(settings)
        if options.once:
            done = watcher.tick()
            if options.json:
                codes = {
                    name: None if error is None else error.code for name, error in done.items()
                }
                terminal.print_json({"parts": codes})
            return max((0 if error is None else error.exit_code) for error in done.values())
        say("watch", "begins")
        while not end.is_asked:
            watcher.tick()
            end.wait(TICK_SECONDS)
        say("watch", "ends")
    return 0


def a_watcher_runs(settings: Settings) -> bool:
    """Return whether a watcher of this installation is at work."""
    path = settings.server_home / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locks(descriptor)
    finally:
        os.close(descriptor)


class _End:
    """Whether a signal has asked for the end. The work of a tick is never cut short."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, signal_number: int, frame: FrameType | None) -> None:
        self.is_asked = True

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.is_asked and time.monotonic() < end:
            # A signal does not shorten a sleep whose handler returns.
            time.sleep(_NAP_SECONDS)


@contextmanager
def _until_asked() -> Iterator[_End]:
    end = _End()
    before = {number: signal.signal(number, end.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _only_watcher(settings: Settings) -> Iterator[None]:
    """Refuse a second watcher: both would tell of the same, and take the same arrival."""
    path: Path = ensure_private_directory(settings.server_home) / LOCK_FILE
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        # Whoever looks whether there is a watcher holds the lock for a moment.
        give_up = time.monotonic() + _LOCK_SECONDS
        while not _locks(descriptor):
            if time.monotonic() > give_up:
                raise ConfigurationError(
                    "WATCHER_RUNS",
                    "expected no other watcher of this installation, found one; clustmix server "
                    "start has started it, or end the one that you have started",
                )
            time.sleep(_NAP_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
