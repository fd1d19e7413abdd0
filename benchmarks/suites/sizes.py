"""Large generated tables: time and memory of releases of up to ten million rows, by two workers.

In a table of 30 or of 100 columns a hidden risk drives label, numbers and categories.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.jobs import run
from benchmarks.releases import Run, released, scored
from benchmarks.results import ResultRow
from benchmarks.tables import write_site

CHUNK_ROWS, TEST_ROWS = 50_000, 20_000
ROWS_PER_PATIENT = 2.0
"""Mean number of rows of a patient; a patient's rows lie anywhere in the table."""

SHAPES = {30: (8, 6, 14), 100: (28, 20, 50)}
"""Integer, real and categorical columns, beside patient and label."""


def columns(n_columns: int) -> list[dict[str, Any]]:
    n_integer, n_real, n_categorical = SHAPES[n_columns]
    counts = {"kind": "integer", "lower": 0, "upper": 99, "bins": 10}
    values = {"kind": "real", "lower": -4, "upper": 4, "decimals": 2, "bins": 12}
    groups = {"kind": "categorical", "missing": ["?"]}
    return [
        *({"name": f"count_{j}", **counts} for j in range(n_integer)),
        *({"name": f"value_{j}", **values, "nullable": j % 2 == 0} for j in range(n_real)),
        *({"name": f"group_{j}", **groups, "levels": [f"level {k}" for k in range(2 + j % 14)]}
          for j in range(n_categorical)),
    ]  # fmt: skip


def public_site(name: str, source: Path, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "dataset": name, "title": f"Generated table: {name}", "public_benchmark_data": True,
        "source": {"kind": source.suffix[1:], "path": str(source)},
        "privacy_unit": {"column": None, "max_rows_per_patient": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-5}, "budget": {"lifetime_epsilon": 10.0},
        "method": {"kind": "clustmix"}, "schema": schema, **more,
    }  # fmt: skip


def site(source: Path, n_columns: int, *, patients: int) -> dict[str, Any]:
    # Against the alphabet: what is published has to keep the declared order.
    label = {"name": "outcome", "levels": {"yes": ["1"], "no": ["0"]}, "positive": "yes"}
    return public_site(
        "generated" if n_columns == 30 else f"generated-{n_columns}-columns",
        source,
        {"columns": columns(n_columns), "label": label},
        patients=patients,
        privacy_unit={"column": "patient", "max_rows_per_patient": 5},
        privacy={"epsilon": 1.0, "delta": 1e-7},
    )


def chunks(n_rows: int, rng: np.random.Generator, n_columns: int) -> Iterator[pd.DataFrame]:
    n_integer, n_real, n_categorical = SHAPES[n_columns]
    for start in range(0, n_rows, CHUNK_ROWS):
        n = min(CHUNK_ROWS, n_rows - start)
        risk = rng.normal(size=n)
        frame: dict[str, Any] = {"patient": rng.integers(0, int(n_rows / ROWS_PER_PATIENT), size=n)}
        for j in range(n_integer):
            value = np.clip(rng.normal(50 + 5 * (j % 8) * risk, 20), 0, 99)
            frame[f"count_{j}"] = value.astype(np.int64)
        for j in range(n_real):
            real = np.round(np.clip(rng.normal(risk * (j % 6) / 6), -4, 4), 2)
            if j % 2 == 0:
                real[rng.random(n) < 0.1] = np.nan
            frame[f"value_{j}"] = real
        for j in range(n_categorical):
            top = 1 + j % 14
            level = np.clip(np.rint((rng.normal(risk) + 2) * top / 4), 0, top).astype(int)
            names = np.array([*(f"level {k}" for k in range(top + 1)), "?"], dtype=object)
            frame[f"group_{j}"] = names[np.where(rng.random(n) < 0.05, top + 1, level)]
        frame["outcome"] = (rng.random(n) < 1 / (1 + np.exp(2 - risk))).astype(np.int64)
        yield pd.DataFrame(frame)


def write_table(path: Path, n_rows: int, n_columns: int = 30) -> None:
    """Write the table chunk by chunk, each a row group: this process stays small as well."""
    first = next(chunks(n_rows, np.random.default_rng(n_rows), n_columns))
    schema = pa.Schema.from_pandas(first, preserve_index=False)
    with pq.ParquetWriter(path, schema) as writer:
        for frame in chunks(n_rows, np.random.default_rng(n_rows), n_columns):
            writer.write_table(pa.Table.from_pandas(frame, schema, preserve_index=False))


def row_of(rows: int, columns: Literal[30, 100] = 30) -> ResultRow:
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        table, test = folder / "table.parquet", folder / "test.parquet"
        write_table(table, rows, columns)
        write_table(test, TEST_ROWS, columns)
        document = site(table, columns, patients=int(rows / ROWS_PER_PATIENT))
        declared = write_site(document, folder / "site.yaml")
        # However small the file is, memory is that of the same processes.
        os.environ["CLUSTMIX_DASK_WORKERS"] = "2"
        bundle, facts = released(declared, folder, Run(dataset="generated", method="clustmix"))
        return ResultRow(
            dataset=declared.dataset, method="clustmix", seed=None, rows=rows,
            columns=len(declared.columns_to_read), settings={"rows": rows, "format": "parquet"},
            **facts, **scored(bundle, test),
        )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
