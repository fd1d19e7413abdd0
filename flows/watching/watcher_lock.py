"""One watcher an installation: a lock that ends with its process."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privacy.errors import refusals
from storage.files.private import ensure_private_directory, locks, open_lock

refusal = refusals(__package__)

LOCK_FILE = "watcher.lock"

_LOCK_SECONDS = 2.0
_NAP_SECONDS = 0.2


def a_watcher_runs(server_home: Path) -> bool:
    """Return whether a watcher of this installation is at work."""
    path = server_home / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb"):
        return not locks(descriptor)


@contextmanager
def only_watcher(server_home: Path) -> Iterator[None]:
    """Refuse a second watcher: both would send the same events, and take the same arrival."""
    path = ensure_private_directory(server_home) / LOCK_FILE
    with os.fdopen(open_lock(path), "rb") as lock:
        # `a_watcher_runs` holds the lock for a moment.
        give_up = time.monotonic() + _LOCK_SECONDS
        while not locks(lock.fileno()):
            if time.monotonic() > give_up:
                raise refusal("WATCHER_RUNS")
            time.sleep(_NAP_SECONDS)
        yield
