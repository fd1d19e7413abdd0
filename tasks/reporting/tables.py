"""Synthetic rows of a bundle as Parquet and CSV with their schema, written and read.

The files are read back before they are published, since they may differ from the rows in memory.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from storage.schema.table import TableSchema
from storage.schema.vocabulary import Vocabulary
from storage.sources.cells import dated
from tasks.gates.agreement import CodedTable
from tasks.ingest.encoding import encode_chunk
from tasks.measurement.method import Released
from tasks.reporting.released_images import image_files, images_agree

PARQUET_FILE = "synthetic.parquet"
CSV_FILE = "synthetic.csv"
SCHEMA_FILE = "schema.json"

MAX_TEXT_PIXELS = 1_024
"""Most pixels and channels of an image for a CSV file; with more it has hundreds of megabytes."""

_CSV_BLOCK_BYTES, _BATCH_ROWS = 1 << 22, 20_000


def table_files(
    frame: pd.DataFrame, schema: TableSchema, *, released: Released | None = None
) -> dict[str, bytes]:
    """Write rows in both formats, and their schema with its `measured_bins`.

    Images are also written as image files, and as text only up to `MAX_TEXT_PIXELS`.
    """
    written = schema.model_dump(mode="json") | measured_bins(schema, released or {})
    files = {
        PARQUET_FILE: parquet_of(frame),
        SCHEMA_FILE: (json.dumps(written, indent=2, ensure_ascii=False) + "\n").encode("utf-8"),
        **image_files(frame, schema),
    }
    if _has_text(schema):
        files[CSV_FILE] = text_of(frame)
    # Arrow would keep hundreds of megabytes of a large release.
    pa.default_memory_pool().release_unused()
    return files


def parquet_of(frame: pd.DataFrame) -> bytes:
    """Return rows as a Parquet file."""
    target = io.BytesIO()
    dated(frame).to_parquet(target, index=False, compression="zstd")
    return target.getvalue()


def text_of(frame: pd.DataFrame) -> bytes:
    """Return rows as a CSV file, several times as fast as pandas, which formats cell by cell."""
    target, rows = io.BytesIO(), pa.Table.from_pandas(dated(frame), preserve_index=False)
    pa_csv.write_csv(rows, target, pa_csv.WriteOptions(quoting_style="needed"))
    return target.getvalue()


def measured_bins(schema: TableSchema, released: Released) -> dict[str, Any]:
    """Return the groups of codes that ClustMix measured as one, for the schema file.

    By column, the names of the codes in each group; empty without groups. Post-processing, see
    `tasks.methods.clustmix.tables.table_rule.coarse_codes`.
    """
    if "code_groups" not in released:
        return {}
    groups, start = released["code_groups"].tolist(), 0
    joined: dict[str, list[list[str]]] = {}
    for coded in Vocabulary.of(schema).columns:
        for name in coded.names:
            own = groups[start : start + len(coded.codes)]
            start += len(own)
            parts: dict[int, list[str]] = {}
            for group, code in zip(own, coded.codes, strict=True):
                parts.setdefault(group, []).append(code)
            if len(parts) < len(own):
                joined[name] = list(parts.values())
    return {"measured_bins": joined}


def read_rows(files: Mapping[str, bytes], schema: TableSchema | None = None) -> pd.DataFrame:
    """Read the rows of a bundle as a researcher does; of a schema without the synthetic key.

    Beside tables of events there is one, of whole numbers and before the declared columns.
    """
    frame = pd.read_parquet(io.BytesIO(files[PARQUET_FILE]))
    pa.default_memory_pool().release_unused()
    keyed = schema is not None and "events" in json.loads(files[SCHEMA_FILE])
    return frame.iloc[:, 1:] if keyed else frame


def formats_agree(files: Mapping[str, bytes], frame: pd.DataFrame, schema: TableSchema) -> bool:
    """Return true if text and images, read back, have the cells of the Parquet file in order."""
    if not images_agree(files, frame, schema):
        return False
    return texts_agree(files, "synthetic") if _has_text(schema) else CSV_FILE not in files


def texts_agree(files: Mapping[str, bytes], name: str) -> bool:
    """Return true if a CSV file of a bundle has the cells of the Parquet file of this name."""
    rows = pq.ParquetFile(io.BytesIO(files[f"{name}.parquet"]))
    declared = rows.schema_arrow.remove_metadata()
    blocks = pa_csv.open_csv(
        io.BytesIO(files[f"{name}.csv"]),
        read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
        convert_options=pa_csv.ConvertOptions(
            column_types=declared, null_values=[""], strings_can_be_null=True
        ),
    )
    # Rows are compared in batches, as two more copies would dominate the memory of a release.
    text = declared.empty_table()
    for batch in rows.iter_batches(_BATCH_ROWS):
        wanted = pa.Table.from_batches([batch]).replace_schema_metadata(None)
        while len(text) < len(wanted):
            block = next(blocks, None)
            if block is None or not block.schema.equals(declared):
                return False
            text = pa.concat_tables([text, pa.Table.from_batches([block])])
        if not text.slice(0, len(wanted)).equals(wanted):
            return False
        text = text.slice(len(wanted))
    return len(text) == 0 and next(blocks, None) is None


def _has_text(schema: TableSchema) -> bool:
    return schema.image is None or len(schema.columns) <= MAX_TEXT_PIXELS


def is_stated(files: Mapping[str, bytes], schema: TableSchema) -> bool:
    """Return true if the schema file of a bundle equals a schema, including the order of lists."""
    stated = json.loads(files[SCHEMA_FILE])
    read = TableSchema.model_validate(
        {k: stated[k] for k in TableSchema.model_fields if k in stated}
    )
    # Compared as text, since mappings that differ only in order are equal.
    return read.model_dump_json() == schema.model_dump_json()


def coded(frame: pd.DataFrame, schema: TableSchema) -> tuple[CodedTable | None, frozenset[str]]:
    """Encode published rows unmended; return codes (None if a rule is broken) and broken rules."""
    chunk = encode_chunk(frame, schema, mend=False)
    broken = frozenset(violation.rule for violation in chunk.violations)
    if broken or not np.all(chunk.valid):
        return None, broken
    return CodedTable(codes=chunk.codes, label=chunk.label), broken
