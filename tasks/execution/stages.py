"""The stages of a run: named where they begin, told to whoever listens."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tasks.execution.runtime import guarded_task

if TYPE_CHECKING:
    from prefect.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")

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


def guarded_stage(name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a step a stage of a run and a task (`guarded_task`) of the same name."""

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with stage(name):
                return function(*args, **kwargs)

        return guarded_task(name=name)(run)

    return decorate
