"""Run a command and follow the resident memory of its whole process tree."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

RSS_INTERVAL_SECONDS = 0.05
PSS_EVERY = 10
"""Proportional memory is read at every tenth sample: the kernel walks all pages for it."""

_MIB = 2**20


def run_measured(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[subprocess.CompletedProcess[str], dict[str, float | None]]:
    """Run a command with additional environment variables until it ends; return what it used.

    Unlike wall time, processor time does not grow when others keep the machine busy. Of resident
    memory the largest sum at one moment is kept, of which proportional memory counts shared pages
    once; it is None where it cannot be read.
    """
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(  # noqa: S603, the command is the benchmark's own
        list(command), env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    peaks, ended = {"rss": 0, "pss": 0}, threading.Event()
    thread = threading.Thread(target=_follow, args=(process.pid, peaks, ended), daemon=True)
    thread.start()
    stdout, stderr = process.communicate()
    ended.set()
    thread.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr), {
        "wall_seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(cpu, 3),
        "peak_rss_mib": round(peaks["rss"] / _MIB, 1),
        "peak_pss_mib": round(peaks["pss"] / _MIB, 1) or None,
    }


def _follow(pid: int, peaks: dict[str, int], ended: threading.Event) -> None:
    """Sample a process and its descendants until it has ended."""
    members, count = {pid: psutil.Process(pid)}, 0
    while not ended.is_set():
        started = time.perf_counter()
        members = _with_children(members)
        peaks["rss"] = max(peaks["rss"], sum(map(_rss, members.values())))
        if count % PSS_EVERY == 0:
            peaks["pss"] = max(peaks["pss"], sum(map(_pss, members)))
        count += 1
        ended.wait(max(RSS_INTERVAL_SECONDS - (time.perf_counter() - started), 0.0))


def _with_children(members: dict[int, Any]) -> dict[int, Any]:
    """Add descendants, and leave out what has ended.

    A child whose parent ended belongs to another parent: processes once seen stay members.
    """
    known = {pid: process for pid, process in members.items() if process.is_running()}
    others = [one for one in psutil.process_iter(["ppid"]) if one.pid not in known]
    while found := {p.pid: p for p in others if p.info["ppid"] in known and p.pid not in known}:
        known |= found
    return known


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
