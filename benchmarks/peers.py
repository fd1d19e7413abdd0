"""Programs that others could pick instead, on the rows and the schema of ClustMix.

A peer gets rows that are coded by the declared bins and levels, and the same epsilon and delta; it
runs in an environment of its own (``make peers`` makes it) and hands back coded rows, which are
decoded and scored as those of ClustMix are.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.peer_exchange import Codes, Request, read_made, write_request
from benchmarks.tables import ROOT
from storage.schema.table import TableSchema
from tasks.ingest.encoding import domain_of, encode_chunk
from tasks.ingest.violations import refuse_violations

ENVIRONMENTS = ROOT / ".venv-peers"
PROGRAMS = {
    "aim": ("dpmm", "benchmarks.peer_dpmm"),
    "aim_reduced": ("dpmm", "benchmarks.peer_dpmm"),
    "mst": ("dpmm", "benchmarks.peer_dpmm"),
    "mbi": ("mbi", "benchmarks.peer_mbi"),
}
"""Peers: the environment of each, and the module that its Python runs."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "MPLBACKEND": "agg",
}


def run_program(name: str, words: Sequence[str]) -> tuple[str, dict[str, float]]:
    """Run a module in the environment of a peer; return what it printed and what it used.

    RuntimeError if there is no such environment, or the program fails.
    """
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"expected the environment of {name}; make it with: make peers")
    started = perf_counter()
    process = subprocess.Popen(  # noqa: S603, the command is the benchmark's own
        [str(python), "-m", *words],
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = process.stdout.read() if process.stdout else ""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(
            f"expected {name} to end well, found exit code {process.returncode}: "
            f"{said.strip()[-2000:]}"
        )
    return said, {
        "wall_seconds": round(perf_counter() - started, 3),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "peak_rss_mib": round(used.ru_maxrss / 1024, 1),
    }


def made_by(
    kind: str, request: Request, codes: Codes, folder: Path
) -> tuple[Codes, dict[str, float]]:
    """Let a peer make rows in a folder; return their codes and what its process used."""
    environment, module = PROGRAMS[kind]
    write_request(folder, request, codes)
    _, used = run_program(environment, (module, str(folder), kind))
    return read_made(folder, request), used


def n_codes_of(schema: TableSchema) -> tuple[int, ...]:
    """Return the number of codes of each column, that of the label last."""
    domain = domain_of(schema)
    return (*domain.n_codes, domain.n_labels)


def coded(frame: pd.DataFrame, schema: TableSchema) -> Any:
    """Return the rows with a label, coded by the schema, the label last."""
    chunk = encode_chunk(frame, schema)
    refuse_violations(chunk.violations)
    return np.column_stack([chunk.codes, chunk.label])[chunk.valid]
