"""Run the jobs of the suites that have no row yet: ``python -m benchmarks run [--suite NAME ...]``.

A Prefect flow hands the jobs to Dask workers of this machine, and keeps the row of each at once. A
job that fails, or is not done in time, is kept as a row too: ``--again`` runs these anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.jobs import Job, listed
from benchmarks.results import IN_PROCESS, RESULTS, ResultRow, keep_rows, read_rows
from benchmarks.tables import ROOT
from flows.orchestrator import answering, start_server
from storage.files.private import locks, open_lock
from storage.settings import Settings
from tasks.execution.cluster import local_cluster
from tasks.execution.runtime import configure_prefect

SUITES = ("quick", "tables", "images", "nist", "papers", "rivals", "distill", "structure",
          "groups", "points", "parts", "sizes", "pool", "intervals", "survival",
          "events")  # fmt: skip
"""In the order in which they run."""

NEEDED, SAID = "make peers", 400
"""Words of a job that lacks an environment, which is no result, and characters that are shown."""


class End(NamedTuple):
    """End of a job: its row, and what it said if it failed; no row if it could not begin."""

    job: Job
    row: ResultRow | None
    seconds: float
    message: str


def missing(jobs: Iterable[Job], folder: Path, *, again: bool = False) -> list[Job]:
    """Return the jobs without a row; with `again` also those that made none."""
    rows = (row for path in folder.glob("*.json") for row in read_rows(path))
    known = {row.command for row in rows if not (again and row.outcome)}
    return [job for words, job in {job.words: job for job in jobs}.items() if words not in known]


def run_process(job: Job, environment: Mapping[str, str]) -> End:
    """Run a job in a process of its own, and read the row that it prints last."""
    started = time.monotonic()
    process = subprocess.Popen(  # noqa: S603, the command is the benchmark's own
        # A job ends with the worker that waits for it.
        ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", *job.command],  # noqa: S607
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environment, "PYTHONPATH": f"{ROOT}{os.pathsep}{environment.get('PYTHONPATH', '')}"},
        start_new_session=True,
    )  # fmt: skip
    row, message = None, "did not end"
    outcome: dict[str, object] = {"outcome": message, "limit_seconds": job.limit_seconds}
    try:
        answer, said = process.communicate(timeout=job.limit_seconds)
        outcome, message = {"outcome": "failed"}, said.strip().rpartition("\n")[2][:SAID]
        if process.returncode == 0:
            row = ResultRow(**json.loads(answer.strip().splitlines()[-1]))
            row, message = replace(row, suite=job.suite, command=job.words), ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    except (ValueError, TypeError, IndexError) as error:
        message = f"expected a row as the last line: {error}"
    if row is None and NEEDED not in message:
        row = _without_figures(job, outcome)
    return End(job, row, time.monotonic() - started, message)


def _without_figures(job: Job, outcome: dict[str, object]) -> ResultRow:
    named = dict(zip(job.command, job.command[1:], strict=False))
    epsilon, seed = named.get("--epsilon"), named.get("--split") or named.get("--draw")
    return ResultRow(
        dataset=named.get("--dataset") or job.suite, method=named.get("--method") or "-",
        analysis="none", epsilon=float(epsilon) if epsilon else None, delta=None,
        seed=int(seed) if seed else None, source=IN_PROCESS, settings=outcome, suite=job.suite,
        command=job.words,
    )  # fmt: skip


def run(jobs: Sequence[Job], folder: Path, *, workers: int) -> int:
    """Run jobs and keep their rows; return the number of those without figures.

    Two runs would lose rows of each other: this process locks the folder until it ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not locks(open_lock(folder / ".lock")):
        raise SystemExit(f"expected no other run on {folder}, found one")
    environment = dict(os.environ)  # that of a job: neither Prefect's server nor one thread
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as home:
        configure_prefect(Settings(home=Path(home)))
        port = start_server()
        from prefect import flow, task
        from prefect.cache_policies import NO_CACHE
        from prefect.futures import as_completed
        from prefect.task_runners import ThreadPoolTaskRunner

        by_words = {job.words: job for job in jobs}
        runner: Any = ThreadPoolTaskRunner(max_workers=workers)

        @flow(name="benchmarks", log_prints=False, persist_result=False, task_runner=runner)
        def benchmarks() -> int:
            with local_cluster(workers, Path(home) / "dask") as client:

                @task(task_run_name="{words}", cache_policy=NO_CACHE, persist_result=False)
                def job(words: str) -> End:
                    asked = client.submit(run_process, by_words[words], environment, pure=False)
                    end: End = asked.result()
                    return end

                ends = as_completed([job.submit(words) for words in by_words])
                return _kept((future.result() for future in ends), folder, len(jobs), workers)

        with nullcontext() if port is None else answering(port):
            return benchmarks()


def _kept(ends: Iterable[End], folder: Path, n_jobs: int, workers: int) -> int:
    failed, seconds = 0, 0.0
    for done, end in enumerate(ends, start=1):
        row, said = end.row, end.message
        if row is not None:
            keep_rows(folder / f"{row.suite}.json", [row])
            named = {name: getattr(row, name) for name in ("auc", "accuracy", "log_loss")}
            said = said or ", ".join(f"{k} {v:.4f}" for k, v in named.items() if v is not None)
        failed += row is None or row.outcome is not None
        seconds += end.seconds
        minutes = round(seconds / done * (n_jobs - done) / workers / 60)
        name = end.job.words.removeprefix("python -m benchmarks.suites.")
        print(
            f"[{done}/{n_jobs}, about {minutes // 60} h {minutes % 60} min left] {name}: "
            f"{end.seconds:.0f} s; {said}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks run", description=__doc__)
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeatable; all else")
    parser.add_argument("--only", default="", help="jobs whose command has this text")
    parser.add_argument("--workers", type=int, default=1, help="jobs at once; one, to time them")
    parser.add_argument("--again", action="store_true", help="also what failed or did not end")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--rows", type=Path, default=RESULTS, help="folder of the rows")
    options = parser.parse_args(arguments)
    jobs = [job for name in options.suite or SUITES for job in listed(name)]
    jobs = [job for job in jobs if options.only in job.words]
    jobs = missing(jobs, options.rows, again=options.again)
    if options.list or not jobs:
        print("\n".join(job.words for job in jobs) or "every job has its row")
        return 0
    return int(run(jobs, options.rows, workers=options.workers) > 0)
