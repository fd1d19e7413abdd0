"""Releases and counting of generated tables of many rows and of many columns.

``python -m benchmarks.million_rows wide`` releases a million rows of 100 columns, ``long`` ten
million rows of 30 columns, and ``counting`` counts three million rows with one and with two
workers; ``growing`` releases up to a million rows of 30 columns. Each prints what was asked beside
what was measured, and keeps its rows in `RESULT_FILE`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.counting_speed import counted
from benchmarks.generated_table import FORMATS, ROWS_PER_PATIENT, site, write_table
from benchmarks.releases import measure_command
from benchmarks.results import (
    IN_PROCESS,
    RESULTS,
    Requirement,
    ResultRow,
    keep_rows,
    requirement_table,
    run_table,
)
from benchmarks.tables import write_site

SIZES = (100_000, 300_000, 1_000_000)
WIDE, LONG, COUNTED = (1_000_000, 100), (10_000_000, 30), (3_000_000, 30)
"""Rows and columns of the three tables."""

TEST_ROWS = 20_000
GROWTH_ALLOWED = 1.10
"""Ratio of peak memory at ten times the rows that still counts as not growing."""

ASKED_SECONDS, ASKED_PSS_MIB = 180.0, 2048.0
ASKED_SPEED_UP, ASKED_TIMES = 1.7, 2.0
RESULT_FILE = RESULTS / "million_rows.json"

Show = Callable[[str], None]


def release(n_rows: int, n_columns: int, folder: Path, kind: str = FORMATS[0]) -> ResultRow:
    """Write a table and its site file into a folder, and release it with two workers."""
    folder.mkdir()
    table_path, site_path = folder / f"table.{kind}", folder / "generated.yaml"
    write_table(table_path, n_rows, kind, n_columns)
    write_table(folder / "test.parquet", TEST_ROWS, "parquet", n_columns)
    patients = int(n_rows / ROWS_PER_PATIENT)
    write_site(site(table_path, kind, n_columns, patients=patients), site_path)
    # However small the file is, memory is that of the same processes.
    os.environ["CLUSTMIX_DASK_WORKERS"] = "2"
    row = measure_command(
        site_path,
        folder / "test.parquet",
        analysis="proven",
        rows=n_rows,
        seed=None,
        folder=folder,
    )
    return replace(row, settings={"rows": n_rows, "format": kind})


def told(row: ResultRow) -> str:
    """Say in a line what a release took."""
    return (
        f"{row.rows or 0:,} rows, {row.columns} columns: {row.wall_seconds:.1f} s, "
        f"{row.cpu_seconds:.1f} processor s, {row.peak_pss_mib or 0.0:.0f} MiB"
    )


def run_growing(folder: Path, show: Show, kind: str = FORMATS[0]) -> list[ResultRow]:
    """Release the table of 30 columns at each size."""
    rows = []
    for n_rows in SIZES:
        rows.append(release(n_rows, 30, folder / str(n_rows), kind))
        show(told(rows[-1]))
    return rows


def growth(rows: Sequence[ResultRow]) -> Requirement:
    """Compare the peak memory of the largest table with that of the smallest."""
    smallest, largest = rows[0], rows[-1]
    largest_mib, smallest_mib = largest.peak_pss_mib or 0.0, smallest.peak_pss_mib or 1.0
    ratio = largest_mib / smallest_mib
    return Requirement(
        text=f"generated: memory at {largest.rows:,} rows over {smallest.rows:,} rows",
        asked=f"<= {GROWTH_ALLOWED:.2f}",
        measured=f"{ratio:.2f} ({largest_mib:.0f} MiB)",
        met=ratio <= GROWTH_ALLOWED,
    )


def run_wide(folder: Path, show: Show) -> tuple[list[ResultRow], list[Requirement]]:
    """Release a million rows of 100 columns."""
    row = release(*WIDE, folder / "wide")
    show(told(row))
    seconds, mib = row.wall_seconds or 0.0, row.peak_pss_mib or 0.0
    text = f"release of {WIDE[0]:,} rows of {WIDE[1]} columns"
    return [row], [
        Requirement(
            text=f"{text}, seconds",
            asked=f"< {ASKED_SECONDS:.0f}",
            measured=f"{seconds:.1f} ({row.cpu_seconds:.1f} of processors)",
            met=seconds < ASKED_SECONDS,
        ),
        Requirement(
            text=f"{text}, MiB of all processes (PSS)",
            asked=f"< {ASKED_PSS_MIB:.0f}",
            measured=f"{mib:.0f}",
            met=0.0 < mib < ASKED_PSS_MIB,
        ),
    ]


def run_counting(folder: Path, show: Show) -> tuple[list[ResultRow], list[Requirement]]:
    """Count three million rows with one worker, then with two."""
    folder = folder / "counted"
    folder.mkdir()
    write_table(folder / "table.parquet", COUNTED[0])
    write_site(site(folder / "table.parquet"), folder / "generated.yaml")
    one, two = (counted(folder / "generated.yaml", workers) for workers in (1, 2))
    rows = []
    for speed in (one, two):
        show(f"{speed.workers} workers, wall {speed.wall}, processors {speed.cpu}")
        rows.append(
            ResultRow(
                dataset="generated",
                method="clustmix",
                analysis="proven",
                epsilon=1.0,
                delta=1e-7,
                seed=None,
                source=IN_PROCESS,
                rows=COUNTED[0],
                columns=COUNTED[1],
                settings={"counting": True, "rows": COUNTED[0], "workers": speed.workers},
                figures={f"cpu_{name}": seconds for name, seconds in speed.cpu.items()},
                stage_seconds=speed.wall,
                wall_seconds=speed.wall["counting"],
                cpu_seconds=speed.cpu["counting"],
            )
        )
    faster = {name: one.wall[name] / two.wall[name] for name in ("counting", "ingest")}
    found = [
        Requirement(
            text=f"{name} of {COUNTED[0]:,} rows, 1 worker over 2 workers",
            asked=f">= {ASKED_SPEED_UP:.1f}",
            measured=f"{times:.2f} ({one.wall[name]:.1f} s over {two.wall[name]:.1f} s)",
            met=times >= ASKED_SPEED_UP,
        )
        for name, times in faster.items()
    ]
    return rows, found


def run_long(folder: Path, show: Show) -> tuple[list[ResultRow], list[Requirement]]:
    """Release ten million rows of 30 columns, and a tenth of them; read and count them alone."""
    rows = [release(LONG[0] // tenth, LONG[1], folder / str(tenth)) for tenth in (10, 1)]
    for row in rows:
        show(told(row))
    alone = counted(folder / "1" / "generated.yaml", 2)
    show(f"alone, wall {alone.wall}, processors {alone.cpu}")
    reading, counting = alone.wall["reading"], alone.wall["counting"]
    seconds, cpu_alone = rows[-1].wall_seconds or 0.0, alone.cpu["reading"] + alone.cpu["counting"]
    times, cpu_times = seconds / (reading + counting), (rows[-1].cpu_seconds or 0.0) / cpu_alone
    rows[-1] = replace(
        rows[-1],
        figures={
            **rows[-1].figures,
            **{f"alone_{name}": value for name, value in alone.wall.items()},
            **{f"alone_cpu_{name}": value for name, value in alone.cpu.items()},
        },
    )
    return rows, [
        Requirement(
            text=f"release of {LONG[0]:,} rows over reading ({reading:.1f} s) and counting "
            f"({counting:.1f} s) alone",
            asked=f"<= {ASKED_TIMES:.1f}",
            measured=f"{times:.2f} ({seconds:.1f} s; {cpu_times:.2f} in processor seconds)",
            met=times <= ASKED_TIMES,
        ),
        growth(rows),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.million_rows", description=__doc__)
    parser.add_argument("what", choices=("growing", "wide", "counting", "long"))
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of growing")
    options = parser.parse_args(arguments)

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        if options.what == "growing":
            rows = run_growing(folder, show, options.format)
            found = [growth(rows)]
        else:
            runs = {"wide": run_wide, "counting": run_counting, "long": run_long}
            rows, found = runs[options.what](folder, show)
    keep_rows(RESULT_FILE, rows)
    print(run_table(rows))
    print()
    print(requirement_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
