"""Run a command and follow the resident memory of its whole process tree."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

INTERVAL_SECONDS = 0.05


def run_measured(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, dict[str, float]]:
    """Run a command with additional environment variables; return its output and what it used.

    Unlike wall time, processor time does not grow when others keep the machine busy. Of resident
    memory the largest sum at one moment is kept. RuntimeError if the command fails.
    """
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(  # noqa: S603, the command is the benchmark's own
        list(command), env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    sums, ended = [0], threading.Event()
    # It is found here, where even one that has ended at once has not been waited for.
    found = psutil.Process(process.pid)
    thread = threading.Thread(target=_follow, args=(found, sums, ended), daemon=True)
    thread.start()
    stdout, stderr = process.communicate()
    ended.set()
    thread.join()
    if process.returncode != 0:
        raise RuntimeError(
            f"expected {' '.join(command[:3])} to end with exit code 0, found "
            f"{process.returncode}: {(stdout + stderr).strip()[-2000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return stdout, {
        "wall_seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(cpu, 3),
        "peak_rss_mib": round(max(sums) / 2**20, 1),
    }


def _follow(process: psutil.Process, sums: list[int], ended: threading.Event) -> None:
    """Add up the memory of a process and its descendants until it has ended.

    A child whose parent ended belongs to another parent: processes once seen stay members.
    """
    members: dict[int, Any] = {process.pid: process}
    while not ended.is_set():
        started = time.perf_counter()
        members = {pid: process for pid, process in members.items() if process.is_running()}
        others = [one for one in psutil.process_iter(["ppid"]) if one.pid not in members]
        while new := [p for p in others if p.info["ppid"] in members and p.pid not in members]:
            members |= {process.pid: process for process in new}
        sums.append(sum(map(_resident, members.values())))
        ended.wait(max(INTERVAL_SECONDS - (time.perf_counter() - started), 0.0))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
