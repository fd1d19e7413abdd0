"""Waiting for other processes and threads, and killing those of a cluster."""

import time
from contextlib import suppress

import psutil


def until(holds, *, seconds=60.0, what=lambda: "nothing", every=0.05):
    """Wait until something holds and return it; otherwise say what is there instead."""
    end = time.monotonic() + seconds
    while True:
        if found := holds():
            return found
        assert time.monotonic() < end, f"after {seconds:.0f} s: {what()}"
        time.sleep(every)


def kill_spawned(others):
    """Kill the processes below this one, but for others, that a cluster has spawned."""
    killed = set()
    for child in set(psutil.Process().children(recursive=True)) - others:
        with suppress(psutil.Error):  # ended meanwhile
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()
                killed.add(child)
    return killed
