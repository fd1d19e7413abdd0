"""Ingest and exact counting of one table by so many workers, each timed by itself.

``python -m benchmarks.counting_speed SITE_FILE --workers N`` answers as JSON. The statistics are
those that ClustMix releases, at the arguments that it really releases them at, added up over the
encoded shards; 0 workers count in this process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.tables import ROOT
from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.arrays import Integers
from privacy.randomness import OperatingSystemNoise
from storage.files.diagnostics import DiagnosticsFile
from storage.files.workspace import PrivateWorkspace
from storage.sources.cohorts import CohortReader
from storage.sources.reading import Fragment
from tasks.execution.cluster import local_cluster
from tasks.execution.dask_executor import DaskExecutor
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.ingest.shards import ShardFile
from tasks.measurement.curator import Curator
from tasks.measurement.method import checked_plan, measure
from tasks.steps.ingest_steps import N_FRAGMENTS, ingest

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Wall and processor seconds, of this process and its workers, by what was done.

    Parameters
    ----------
    workers
        Worker processes; 0 is this one alone.
    wall, cpu
        ``reading``: the file into columns of text and numbers, and no more; ``ingest``: to bounded
        and encoded shards; ``counting``: all exact sums; and each statistic by its name.
    """

    workers: int
    wall: dict[str, float]
    cpu: dict[str, float]


class _Timed:
    """An executor that notes what its sums take."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    def timed(self, names: Iterable[str], work: Callable[[], R]) -> R:
        """Do some work, and note under these names what it took."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        result = work()
        for name in names:
            self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
            self.cpu[name] = self.cpu.get(name, 0.0) + _cpu_seconds() - cpu
        return result

    def sum(
        self, function: Callable[..., Integers], shards: Sequence[S], public: Mapping[str, Any]
    ) -> Integers:
        """As `Executor.sum`, timed."""
        names = ("counting", str(public["contribution"].__name__))
        return self.timed(names, lambda: self._executor.sum(function, shards, public))

    def map(self, function: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> list[R]:
        """As `Executor.map`."""
        return self._executor.map(function, items, gpu=gpu)


def _cpu_seconds() -> float:
    """Processor seconds of this process and of those that it has started."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(used.user + used.system for used in times)


def read_alone(fragment: Fragment) -> int:
    """Read a fragment; return its rows."""
    return sum(map(len, fragment.frames()))


def count(site_file: Path, workers: int) -> Speed:
    """Read, encode and count the table of a site file."""
    job = job_of(load_site(site_file), "r-20260101-00000000")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=site_file.parent)))
        workspace = stack.enter_context(
            PrivateWorkspace.create(home / "private", job.ref.release_id)
        )
        executor: Executor = IN_PROCESS
        if workers:
            client = stack.enter_context(local_cluster(workers, workspace.path("dask")))
            client.wait_for_workers(workers)
            executor = DaskExecutor(client, job.ref.release_id)
        timed = _Timed(executor)
        reader = CohortReader(job.source, scratch=home)
        fragments = reader.fragments(job.columns_to_read, N_FRAGMENTS, map=executor.map) or ()
        # Once for what is loaded and compiled, and not for the clock.
        timed.map(read_alone, fragments[: 2 * workers or 1])
        timed.timed(["reading"], lambda: timed.map(read_alone, fragments))
        diagnostics = DiagnosticsFile(home / "private" / "broken.jsonl")
        shards = timed.timed(
            ["ingest"],
            lambda: ingest(
                job.columns_to_read,
                job.rules,
                reader,
                workspace=workspace,
                diagnostics=diagnostics,
                executor=executor,
            ),
        )
        curator = Curator(
            plan=checked_plan(job.synthesizer, parameters=job.parameters, adjacency=job.adjacency),
            shards=[ShardFile(path) for path in shards],
            executor=timed,
            noise_source=OperatingSystemNoise(),
        )
        measure(job.synthesizer, curator)
        return Speed(
            workers=workers,
            wall={name: round(seconds, 2) for name, seconds in timed.wall.items()},
            cpu={name: round(seconds, 2) for name, seconds in timed.cpu.items()},
        )


def counted(site_file: Path, workers: int) -> Speed:
    """As `count`, in a new process."""
    command = [sys.executable, "-m", "benchmarks.counting_speed", str(site_file)]
    answer = subprocess.run(  # noqa: S603, the command is the benchmark's own
        [*command, "--workers", str(workers)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return Speed(**json.loads(answer.stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.counting_speed", description=__doc__)
    parser.add_argument("site_file", type=Path, help="of a Parquet table")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    print(json.dumps(asdict(count(options.site_file, options.workers))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
