"""Large generated tables: time and memory of releases of up to ten million rows, by two workers.

``python -m benchmarks.suites.sizes --rows N --columns D [--format csv]`` releases one of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.generated_table import FORMATS, ROWS_PER_PATIENT, SHAPES, site, write_table
from benchmarks.jobs import Job
from benchmarks.releases import Run, released, scored
from benchmarks.results import BUNDLE, ResultRow, print_row
from benchmarks.tables import write_site

SIZES = ((100_000, 30), (1_000_000, 30), (1_000_000, 100), (10_000_000, 30))
"""Rows and columns."""

TEST_ROWS = 20_000


def jobs() -> list[Job]:
    """Return the jobs."""
    words = [("--rows", str(rows), "--columns", str(columns)) for rows, columns in SIZES]
    return [Job(suite="sizes", command=("benchmarks.suites.sizes", *one)) for one in words]


def measured(n_rows: int, n_columns: int, kind: str) -> ResultRow:
    """Write a table and its site file, and release it."""
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        table, test = folder / f"table.{kind}", folder / "test.parquet"
        write_table(table, n_rows, kind, n_columns)
        write_table(test, TEST_ROWS, "parquet", n_columns)
        patients = int(n_rows / ROWS_PER_PATIENT)
        document = site(table, kind, n_columns, patients=patients)
        declared = write_site(document, folder / "site.yaml")
        # However small the file is, memory is that of the same processes.
        os.environ["CLUSTMIX_DASK_WORKERS"] = "2"
        bundle, cost = released(declared, folder, Run(dataset="generated", method="clustmix"))
        row = ResultRow(
            dataset=declared.dataset,
            method="clustmix",
            analysis="proven",
            epsilon=declared.privacy.epsilon,
            delta=declared.privacy.delta,
            seed=None,
            source=BUNDLE,
            rows=n_rows,
            columns=len(declared.columns_to_read),
            settings={"rows": n_rows, "format": kind},
            **cost,
        )
        return replace(row, **scored(bundle, test))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.suites.sizes", description=__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--columns", type=int, choices=SHAPES, default=30)
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0])
    options = parser.parse_args(arguments)
    return print_row(measured(options.rows, options.columns, options.format))


if __name__ == "__main__":
    sys.exit(main())
