"""Programs that others could pick instead, on the splits and the schema of ClustMix.

A peer gets the training rows of a split, coded by the declared bins and levels, and the same
epsilon and delta; it runs in an environment of its own (``make peers`` makes it) and hands back
coded rows, as many as a release of ClustMix has. They are decoded and scored as a bundle is. The
figures of ClustMix and naive Bayes beside them are those stored by `benchmarks.releases` and
`benchmarks.public_tables`; `benchmarks.peer_tables` lays them out.

``python -m benchmarks.peers [--dataset SITE] [--method PEER] [--epsilon E] [--seed N]`` runs what
`RESULT_FILE` lacks of what is named, or of all, and prints all it holds; ``--show`` runs nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import public_tables, releases
from benchmarks.peer_exchange import Request, read_made, write_request
from benchmarks.peer_tables import RESULT_FILE, tables
from benchmarks.releases import Job, key_of, scored
from benchmarks.results import PEER, ResultRow, keep_rows, read_rows
from benchmarks.tables import ROOT, divided, read_table, write_site
from flows.site.site_file import SiteFile
from privacy.calibration import gdp_mu
from tasks.ingest.encoding import decode, domain_of, encode_chunk
from tasks.ingest.violations import refuse_violations

ENVIRONMENTS = ROOT / ".venv-peers"
PROGRAMS = {"aim": "benchmarks.peer_aim", "pgm": "benchmarks.peer_pgm"}
"""Peers, and the module that each one's own Python runs."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
SMALLER = ("flchain", "rotterdam", "heart-disease-uci", "bank-marketing")


def standing_jobs() -> list[Job]:
    """Return all runs: those of Adult at epsilon 1 first."""
    adult = [
        Job("adult", kind, "stated", seed, epsilon)
        for epsilon in (1.0, 0.2, 10.0)
        for seed in releases.SEEDS
        for kind in PROGRAMS
    ]
    smaller = [
        Job(site, "pgm", "stated", seed, 1.0) for seed in public_tables.SEEDS for site in SMALLER
    ]
    return adult + smaller


def made_by(kind: str, request: Request, codes: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Let a peer make rows in a folder; return their codes and what its process used."""
    python = ENVIRONMENTS / kind / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"expected the environment of {kind}; make it with: make peers")
    write_request(folder, request, codes)
    started, said = perf_counter(), folder / "said.txt"
    with said.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(  # noqa: S603, the command is the benchmark's own
            [str(python), "-m", PROGRAMS[kind], str(folder)],
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(
            f"expected {kind} to end well, found exit code {process.returncode}: "
            f"{said.read_text(encoding='utf-8').strip()[-2000:]}"
        )
    cost = {
        "wall_seconds": round(perf_counter() - started, 3),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "peak_rss_mib": round(used.ru_maxrss / 1024, 1),
    }
    return read_made(folder, request), cost


def request_of(site: SiteFile, seed: int) -> Request:
    """Return what a peer is asked for: as many rows as a release has, by the public rule."""
    if site.unit.max_rows != 1:
        raise ValueError("expected patients of one row: what a peer protects is one row")
    domain, budget = domain_of(site.table_schema), site.parameters
    return Request(
        n_codes=(*domain.n_codes, len(domain.label_levels)),
        epsilon=budget.epsilon,
        delta=budget.delta,
        mu=gdp_mu(epsilon=budget.epsilon, delta=budget.delta),
        rows_out=site.n_rows,
        seed=seed,
    )


def coded(site: SiteFile) -> Any:
    """Return the rows with a label, coded by the schema, the label last."""
    chunk = encode_chunk(read_table(site), site.table_schema)
    refuse_violations(chunk.violations)
    return np.column_stack([chunk.codes, chunk.label])[chunk.valid]


def run_job(job: Job) -> ResultRow:
    """Let a peer make rows from one split and score them by the rows that it has not seen."""
    with tempfile.TemporaryDirectory(prefix="clustmix-peer-") as name:
        folder = Path(name)
        document, test, rows = divided(job.document(), job.seed, folder)
        site = write_site(document, folder / "site.yaml")
        request = request_of(site, job.seed or 0)
        made, cost = made_by(job.method, request, coded(site), folder)
        schema, rng = site.table_schema, np.random.default_rng(request.seed)
        (folder / "schema.json").write_text(schema.model_dump_json(), encoding="utf-8")
        frame = decode(made[:, :-1], made[:, -1], schema, rng=rng)
        frame.to_parquet(folder / "synthetic.parquet", index=False)
        return ResultRow(
            dataset=site.dataset,
            method=job.method,
            analysis=job.analysis,
            epsilon=request.epsilon,
            delta=request.delta,
            seed=job.seed,
            source=PEER,
            rows=rows,
            columns=len(site.columns_to_read),
            **scored(folder, test),
            **cost,
        )


def missing(jobs: Iterable[Job]) -> list[Job]:
    """Return the runs that the file of results lacks."""
    known = {row.key for row in read_rows(RESULT_FILE)}
    return [job for job in dict.fromkeys(jobs) if key_of(job) not in known]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--dataset", action="append", help="repeatable")
    parser.add_argument("--method", action="append", choices=PROGRAMS, help="repeatable")
    parser.add_argument("--epsilon", action="append", type=float, help="repeatable")
    parser.add_argument("--seed", action="append", type=int, help="repeatable")
    parser.add_argument("--show", action="store_true", help="print what is stored, run nothing")
    options = parser.parse_args(arguments)
    named = (options.dataset, options.method, options.epsilon, options.seed)
    jobs = [
        job
        for job in standing_jobs()
        for facts in [(job.site, job.method, job.epsilon, job.seed)]
        if all(not names or fact in names for fact, names in zip(facts, named, strict=True))
    ]
    failed = 0
    for job in () if options.show else missing(jobs):
        try:
            keep_rows(RESULT_FILE, [run_job(job)])
        # What stops one run is a result of it, and no reason to skip the others.
        except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
            failed += 1
            print(f"{' '.join(map(str, job))}: {error}", file=sys.stderr, flush=True)
    print(tables())
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
