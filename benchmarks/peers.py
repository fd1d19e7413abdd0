"""Programs that others could pick instead, on the rows and the schema of ClustMix.

A peer runs in an environment of its own (``make peers`` makes it), on rows that are coded by the
declared bins and levels; the rows that it makes are decoded and scored as those of ClustMix are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.peer_programs import TABLES, Request, read_made, write_request
from benchmarks.process_memory import run_measured
from benchmarks.tables import ROOT
from storage.schema.table import TableSchema
from tasks.ingest.encoding import decode, domain_of, encode_chunk
from tasks.ingest.violations import refuse_violations

ENVIRONMENTS = ROOT / ".venv-peers"
PROGRAMS = {
    "aim": "dpmm", "aim_reduced": "dpmm", "mst": "dpmm", "mbi": "mbi",
    "pate_gan": "synthcity", "dp_gan": "synthcity", "ads_gan": "synthcity",
    "dp_ctgan": "smartnoise", "pate_ctgan": "smartnoise",
}  # fmt: skip
"""Peers, and the environment of each."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu",
    "MPLBACKEND": "agg", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}  # fmt: skip
"""Of memory that is handed back and asked for at every step most of the time would be spent."""


def run_program(name: str, words: Sequence[str]) -> tuple[str, dict[str, float]]:
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"expected the environment of {name}; make it with: make peers")
    places = {**ONE_THREAD, "PYTHONPATH": str(ROOT)}
    return run_measured([str(python), "-m", *words], places)


def made_by(
    kind: str, schema: TableSchema, frame: pd.DataFrame, folder: Path, *, n_rows: int,
    epsilon: float, delta: float, tables: dict[str, Any] | None = None,
) -> tuple[pd.DataFrame, dict[str, Any]]:  # fmt: skip
    """Let a peer make rows, of those of a table or of measured tables; return what it used, too."""
    request, codes = request_of(schema, epsilon, delta, n_rows), coded(frame, schema)
    if tables is not None:
        np.savez(folder / TABLES, **tables)
        codes = codes[:0]
    write_request(folder, request, codes)
    _, used = run_program(PROGRAMS[kind], ("benchmarks.peer_programs", str(folder), kind))
    return decoded(read_made(folder, request), schema), used


def request_of(schema: TableSchema, epsilon: float, delta: float, n_rows: int) -> Request:
    domain = domain_of(schema)
    n_codes = (*domain.n_codes, domain.n_labels)
    return Request(n_codes=n_codes, epsilon=epsilon, delta=delta, rows_out=n_rows)


def coded(frame: pd.DataFrame, schema: TableSchema) -> Any:
    """Return the rows with a label, coded by the schema, the label last."""
    chunk = encode_chunk(frame, schema)
    refuse_violations(chunk.violations)
    return np.column_stack([chunk.codes, chunk.label])[chunk.valid]


def decoded(codes: Any, schema: TableSchema) -> pd.DataFrame:
    return decode(codes[:, :-1], codes[:, -1], schema, rng=np.random.default_rng())
