"""The stages of a run: named where they begin, told to whoever listens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float | None], None]
"""Called with a stage and None when it starts, with its seconds when it ends."""

_listener: ContextVar[Listener | None] = ContextVar("stage_listener", default=None)


@contextmanager
def listen_to_stages(listener: Listener) -> Iterator[None]:
    """Report the stages of the runs of the block, which are public names, to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark a stage of a run."""
    listener = _listener.get()
    started = time.monotonic()
    if listener is not None:
        listener(name, None)
    yield
    if listener is not None:
        listener(name, time.monotonic() - started)
