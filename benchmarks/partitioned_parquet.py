"""Memory and speed of reading a partitioned Parquet folder of 30 columns on local workers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import generated_table
from benchmarks.results import Requirement, requirement_table, table
from benchmarks.tables import write_site

N_FILES = 20
SIZES = (500_000, 2_000_000)
ROW_GROUP_ROWS = 50_000
GROWTH_ALLOWED = 1.10
"""Ratio of peak memory at four times the rows that still counts as not growing."""

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One measured ingest.

    Parameters
    ----------
    rows, files, workers
        Size of the table, and number of worker processes; 0 reads in the client.
    table_mib
        Size of the files.
    wall_seconds
        From the first hash of the files to the last shard.
    client_mib, worker_mib
        Peak resident memory of the process of the flow, and of the largest worker.
    """

    rows: int
    files: int
    workers: int
    table_mib: float
    wall_seconds: float
    client_mib: float
    worker_mib: float


def write_folder(folder: Path, n_rows: int, n_files: int) -> None:
    """Write the table of `benchmarks.generated_table` into one folder per month."""
    rng = np.random.default_rng(n_rows)
    for number in range(n_files):
        part = folder / f"month={number:02d}"
        part.mkdir(parents=True)
        writer = None
        for frame in generated_table.chunks(n_rows // n_files, rng):
            rows = pa.Table.from_pandas(frame, preserve_index=False)
            writer = writer or pq.ParquetWriter(part / "part-0.parquet", rows.schema)
            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        if writer is not None:
            writer.close()


class PeakMemory:
    """Largest resident memory of this process and of its workers while the block runs."""

    def __init__(self) -> None:
        self.client_bytes = self.worker_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        this = psutil.Process()
        while not self._stop.wait(0.05):
            self.client_bytes = max(self.client_bytes, this.memory_info().rss)
            for child in this.children():
                try:
                    self.worker_bytes = max(self.worker_bytes, child.memory_info().rss)
                except psutil.Error:
                    continue


def measure(site_file: Path, workers: int) -> Reading:
    """Ingest the table of a site file in this process, with that many workers."""
    from contextlib import ExitStack

    from flows.site.request import job_of
    from flows.site.site_file import load_site
    from storage.files.diagnostics import DiagnosticsFile
    from storage.files.workspace import PrivateWorkspace
    from storage.sources.cohorts import CohortReader
    from tasks.execution.cluster import local_cluster
    from tasks.execution.dask_executor import DaskExecutor
    from tasks.execution.executor import IN_PROCESS, Executor
    from tasks.ingest.shards import ShardFile
    from tasks.steps.ingest_steps import ingest

    home = site_file.parent / f"home-{workers}"
    job = job_of(load_site(site_file), "r-20260101-00000000")
    with PrivateWorkspace.create(home / "private", job.ref.release_id) as workspace:
        with ExitStack() as stack:
            executor: Executor = IN_PROCESS
            if workers:
                client = stack.enter_context(local_cluster(workers, workspace.path("dask")))
                executor = DaskExecutor(client, job.ref.release_id)
            memory = stack.enter_context(PeakMemory())
            reader = CohortReader(job.source, scratch=home)
            diagnostics = DiagnosticsFile(home / "private" / "broken.jsonl")
            started = time.perf_counter()
            reader.content_sha256(map=executor.map)
            shards = ingest(
                job.columns_to_read,
                job.rules,
                reader,
                workspace=workspace,
                diagnostics=diagnostics,
                executor=executor,
            )
            seconds = time.perf_counter() - started
        n_kept = sum(len(ShardFile(path).load()) for path in shards)
    files = sorted((site_file.parent / "cohort").rglob("*.parquet"))
    n_rows = sum(pq.read_metadata(file).num_rows for file in files)
    if not 0 < n_kept <= n_rows:
        raise RuntimeError(f"expected 1 to {n_rows} rows in the shards, found {n_kept}")
    return Reading(
        rows=n_rows,
        files=len(files),
        workers=workers,
        table_mib=round(sum(file.stat().st_size for file in files) / _MIB, 1),
        wall_seconds=round(seconds, 1),
        client_mib=round(memory.client_bytes / _MIB, 1),
        worker_mib=round(memory.worker_bytes / _MIB, 1),
    )


def run(
    *, sizes: Sequence[int], workers: Sequence[int], show: Callable[[str], None]
) -> list[Reading]:
    """Write a folder of each size and read it with each number of workers, in new processes."""
    readings = []
    for n_rows in sizes:
        with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
            folder = Path(name)
            write_folder(folder / "cohort", n_rows, N_FILES)
            write_site(
                generated_table.site(folder / "cohort", "parquet"), folder / "generated.yaml"
            )
            for n_workers in workers:
                command = [sys.executable, "-m", "benchmarks.partitioned_parquet", "--read"]
                answer = subprocess.run(  # noqa: S603, the command is the benchmark's own
                    [*command, str(folder / "generated.yaml"), "--workers", str(n_workers)],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                reading = Reading(**json.loads(answer.stdout))
                readings.append(reading)
                show(
                    f"{reading.rows:,} rows, {n_workers} workers: {reading.wall_seconds:.1f} s, "
                    f"client {reading.client_mib:.0f} MiB, worker {reading.worker_mib:.0f} MiB"
                )
    return readings


def reading_table(readings: Sequence[Reading]) -> str:
    """Lay out what was measured."""
    header = ("rows", "files", "table MiB", "workers", "s", "rows/s", "client MiB", "worker MiB")
    lines = [
        (
            f"{reading.rows:,}",
            f"{reading.files}",
            f"{reading.table_mib:.0f}",
            f"{reading.workers}",
            f"{reading.wall_seconds:.1f}",
            f"{reading.rows / reading.wall_seconds:,.0f}",
            f"{reading.client_mib:.0f}",
            f"{reading.worker_mib:.0f}" if reading.workers else "-",
        )
        for reading in readings
    ]
    return table(header, lines)


def requirements(readings: Sequence[Reading]) -> list[Requirement]:
    """Compare the client's peak memory at the largest table with that at the smallest."""
    found = []
    for workers in sorted({reading.workers for reading in readings}):
        of_this = [reading for reading in readings if reading.workers == workers]
        smallest, largest = of_this[0], of_this[-1]
        ratio = largest.client_mib / smallest.client_mib
        found.append(
            Requirement(
                text=f"memory of the client with {workers} workers, {largest.rows:,} rows over "
                f"{smallest.rows:,}",
                asked=f"<= {GROWTH_ALLOWED:.2f}",
                measured=f"{ratio:.2f} ({largest.client_mib:.0f} MiB)",
                met=ratio <= GROWTH_ALLOWED,
            )
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.partitioned_parquet", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(SIZES), help="of the tables")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="0 is no cluster")
    parser.add_argument("--read", type=Path, metavar="SITE_FILE", help="measure this one alone")
    options = parser.parse_args(arguments)
    if options.read is not None:
        print(json.dumps(asdict(measure(options.read, options.workers[0]))))
        return 0
    readings = run(
        sizes=options.rows,
        workers=options.workers,
        show=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(reading_table(readings))
    print()
    print(requirement_table(requirements(readings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
