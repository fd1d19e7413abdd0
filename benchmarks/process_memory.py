"""Run a command and follow the resident memory of its whole process tree."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

RSS_INTERVAL_SECONDS = 0.05
PSS_EVERY = 10
"""Proportional memory is read at every tenth sample: the kernel walks all pages for it."""

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCommand:
    """Outcome and resources of a finished command, with all its processes.

    Unlike wall time, processor time does not grow when others keep the machine busy. Of resident
    memory the largest sum at one moment is kept, of which proportional memory counts shared pages
    once; it is None where it cannot be read.
    """

    exit_code: int
    stdout: str
    stderr: str
    wall_seconds: float
    cpu_seconds: float
    peak_rss_mib: float
    peak_pss_mib: float | None


def run_measured(command: Sequence[str], environment: Mapping[str, str]) -> MeasuredCommand:
    """Run a command with additional environment variables until it ends."""
    started = time.perf_counter()
    cpu_before = _cpu_seconds_of_children()
    process = subprocess.Popen(  # noqa: S603, the command is the benchmark's own
        list(command),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with _TreeSampler(process.pid) as sampler:
        stdout, stderr = process.communicate()
    return MeasuredCommand(
        exit_code=process.returncode,
        stdout=stdout,
        stderr=stderr,
        wall_seconds=round(time.perf_counter() - started, 3),
        cpu_seconds=round(_cpu_seconds_of_children() - cpu_before, 3),
        peak_rss_mib=round(sampler.peak_rss / _MIB, 1),
        peak_pss_mib=round(sampler.peak_pss / _MIB, 1) if sampler.peak_pss else None,
    )


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _TreeSampler:
    """Samples a process and its descendants from a thread."""

    def __init__(self, pid: int) -> None:
        self.peak_rss = self.peak_pss = 0
        self._members = {pid: psutil.Process(pid)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> _TreeSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        count = 0
        while not self._stop.is_set():
            started = time.perf_counter()
            self._sample(with_pss=count % PSS_EVERY == 0)
            count += 1
            self._stop.wait(max(RSS_INTERVAL_SECONDS - (time.perf_counter() - started), 0.0))

    def _sample(self, *, with_pss: bool) -> None:
        self._find_members()
        rss = [_rss(process) for process in self._members.values()]
        self.peak_rss = max(self.peak_rss, sum(rss))
        if with_pss:
            self.peak_pss = max(self.peak_pss, sum(_pss(pid) for pid in self._members))

    def _find_members(self) -> None:
        # A child whose parent ended belongs to another parent: processes once seen stay members.
        for process in list(self._members.values()):
            if not process.is_running():
                del self._members[process.pid]
        others = [
            process for process in psutil.process_iter(["ppid"]) if process.pid not in self._members
        ]
        grown = True
        while grown:
            found = {p.pid: p for p in others if p.info["ppid"] in self._members}
            grown = not found.keys() <= self._members.keys()
            self._members.update(found)


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _pss(pid: int) -> int:
    """Proportional resident memory in bytes; 0 where the kernel does not tell."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
