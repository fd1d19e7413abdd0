"""What the command ``clustmix watch`` does; it returns its exit code."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flows.cli import terminal
from flows.operations.watcher_lock import only_watcher
from storage.settings import load_settings

_NAP_SECONDS = 0.2


def watch(options: argparse.Namespace) -> int:
    """Watch until a signal asks for the end, or look once."""
    settings = load_settings()
    with only_watcher(settings), _until_asked() as end:
        # Heavy, and with what reads the settings of the orchestrator.
        from flows.operations.watcher import TICK_SECONDS, Watcher, say

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
