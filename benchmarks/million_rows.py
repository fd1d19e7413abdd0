"""Whole releases of a generated table of 30 columns as it grows, up to a million rows."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.releases import measure_command
from benchmarks.results import (
    RESULTS,
    Requirement,
    ResultRow,
    requirement_table,
    run_table,
    write_rows,
)
from benchmarks.tables import write_site

SIZES = (100_000, 300_000, 1_000_000)
CHUNK_ROWS = 50_000
TEST_ROWS = 20_000
ROWS_PER_PATIENT = 2.0
"""Mean number of rows of a patient; a patient's rows lie anywhere in the table."""

GROWTH_ALLOWED = 1.10
"""Ratio of peak memory at ten times the rows that still counts as not growing."""

N_INTEGER, N_REAL, N_CATEGORICAL = 8, 6, 14
FORMATS = ("parquet", "csv")
RESULT_FILE = RESULTS / "million_rows.json"


def columns() -> list[dict[str, Any]]:
    """Declare the 28 feature columns as in a site file."""
    declared: list[dict[str, Any]] = [
        {"name": f"count_{j}", "kind": "integer", "lower": 0, "upper": 99, "bins": 10}
        for j in range(N_INTEGER)
    ]
    declared += [
        {"name": f"value_{j}", "kind": "real", "lower": -4, "upper": 4, "decimals": 2, "bins": 12,
         "nullable": j % 2 == 0}
        for j in range(N_REAL)
    ]  # fmt: skip
    declared += [
        {"name": f"group_{j}", "kind": "categorical",
         "levels": [f"level {level}" for level in range(2 + j)], "missing": ["?"]}
        for j in range(N_CATEGORICAL)
    ]  # fmt: skip
    return declared


def site(source: Path, kind: str) -> dict[str, Any]:
    """Write the site file of the generated table."""
    return {
        "dataset": "generated",
        "title": "Generated table of 30 columns",
        "public_benchmark_data": True,
        "source": {"kind": kind, "path": str(source)},
        "privacy_unit": {"column": "patient", "max_rows_per_patient": 5},
        "privacy": {"epsilon": 1.0, "delta": 1e-7},
        "budget": {"lifetime_epsilon": 1.0},
        "method": {"kind": "clustmix"},
        "rows": 30_000,
        "schema": {
            "columns": columns(),
            # Against the alphabet: what is published has to keep the declared order.
            "label": {"name": "outcome", "levels": {"yes": ["1"], "no": ["0"]}, "positive": "yes"},
        },
    }


def chunks(n_rows: int, rng: np.random.Generator) -> Iterator[pd.DataFrame]:
    """Generate the table in chunks: a hidden risk drives label, numbers and categories."""
    for start in range(0, n_rows, CHUNK_ROWS):
        n = min(CHUNK_ROWS, n_rows - start)
        risk = rng.normal(size=n)
        frame: dict[str, Any] = {"patient": rng.integers(0, int(n_rows / ROWS_PER_PATIENT), size=n)}
        for j in range(N_INTEGER):
            frame[f"count_{j}"] = np.clip(rng.normal(50 + 5 * j * risk, 20), 0, 99).astype(np.int64)
        for j in range(N_REAL):
            value = np.round(np.clip(rng.normal(risk * j / N_REAL), -4, 4), 2)
            if j % 2 == 0:
                value[rng.random(n) < 0.1] = np.nan
            frame[f"value_{j}"] = value
        for j in range(N_CATEGORICAL):
            level = np.clip(np.rint((rng.normal(risk) + 2) * (1 + j) / 4), 0, 1 + j).astype(int)
            names = np.array([*(f"level {k}" for k in range(2 + j)), "?"], dtype=object)
            frame[f"group_{j}"] = names[np.where(rng.random(n) < 0.05, 2 + j, level)]
        frame["outcome"] = (rng.random(n) < 1 / (1 + np.exp(2 - risk))).astype(np.int64)
        yield pd.DataFrame(frame)


def write_table(path: Path, n_rows: int, kind: str) -> None:
    """Write the table chunk by chunk, so that this process stays small as well."""
    rng = np.random.default_rng(n_rows)
    if kind == "csv":
        with path.open("w", encoding="utf-8", newline="") as handle:
            for number, frame in enumerate(chunks(n_rows, rng)):
                frame.to_csv(handle, index=False, header=number == 0)
        return
    writer = None
    for frame in chunks(n_rows, rng):
        part = pa.Table.from_pandas(frame, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    if writer is not None:
        writer.close()


def run(*, kind: str, show: Callable[[str], None]) -> list[ResultRow]:
    """Release the generated table at each size."""
    rows = []
    for n_rows in SIZES:
        with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as folder:
            table_path = Path(folder) / f"table.{kind}"
            site_path = Path(folder) / "generated.yaml"
            write_table(table_path, n_rows, kind)
            write_table(Path(folder) / "test.parquet", TEST_ROWS, "parquet")
            write_site(site(table_path, kind), site_path)
            row = measure_command(
                site_path,
                Path(folder) / "test.parquet",
                analysis="proven",
                rows=n_rows,
                seed=None,
                folder=Path(folder),
            )
        row = replace(row, settings={"rows": n_rows})
        rows.append(row)
        show(f"{n_rows:,} rows ({kind}): {row.wall_seconds:.1f} s, {row.peak_rss_mib:.0f} MiB")
    return rows


def requirements(rows: Sequence[ResultRow]) -> list[Requirement]:
    """Compare the peak memory of the largest table with that of the smallest."""
    smallest, largest = rows[0], rows[-1]
    largest_mib, smallest_mib = largest.peak_rss_mib or 0.0, smallest.peak_rss_mib or 1.0
    ratio = largest_mib / smallest_mib
    return [
        Requirement(
            text=f"generated: memory at {largest.rows:,} rows over {smallest.rows:,} rows",
            asked=f"<= {GROWTH_ALLOWED:.2f}",
            measured=f"{ratio:.2f} ({largest_mib:.0f} MiB)",
            met=ratio <= GROWTH_ALLOWED,
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.million_rows", description=__doc__)
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of the table")
    options = parser.parse_args(arguments)
    rows = run(kind=options.format, show=lambda text: print(text, file=sys.stderr, flush=True))
    write_rows(RESULT_FILE, rows)
    print(run_table(rows))
    print()
    print(requirement_table(requirements(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
