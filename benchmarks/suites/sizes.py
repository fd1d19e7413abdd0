"""Large generated tables: time and memory of releases of up to ten million rows, by two workers.

``python -m benchmarks.suites.sizes --rows N --columns D [--format csv]`` releases one of them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from benchmarks.generated_table import ROWS_PER_PATIENT, site, write_table
from benchmarks.jobs import run
from benchmarks.releases import Run, released, scored
from benchmarks.results import ResultRow
from benchmarks.tables import write_site

TEST_ROWS = 20_000


def row_of(
    rows: int, columns: Literal[30, 100] = 30, format: Literal["parquet", "csv"] = "parquet"
) -> ResultRow:
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        table, test = folder / f"table.{format}", folder / "test.parquet"
        write_table(table, rows, columns)
        write_table(test, TEST_ROWS, columns)
        document = site(table, columns, patients=int(rows / ROWS_PER_PATIENT))
        declared = write_site(document, folder / "site.yaml")
        # However small the file is, memory is that of the same processes.
        os.environ["CLUSTMIX_DASK_WORKERS"] = "2"
        bundle, facts = released(declared, folder, Run(dataset="generated", method="clustmix"))
        return ResultRow(
            dataset=declared.dataset, method="clustmix", seed=None, rows=rows,
            columns=len(declared.columns_to_read), settings={"rows": rows, "format": format},
            **facts, **scored(bundle, test),
        )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
