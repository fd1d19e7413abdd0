"""The tables of a bundle: synthetic rows as Parquet and CSV with their schema, written and read.

They are read back before they are published: what is true of the rows in memory need not be true
of the files that readers get.
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
from tasks.gates.agreement import CodedTable
from tasks.ingest.encoding import encode_chunk
from tasks.measurement.method import Released
from tasks.reporting.released_images import image_files, images_agree

PARQUET_FILE = "synthetic.parquet"
CSV_FILE = "synthetic.csv"
SCHEMA_FILE = "schema.json"

MAX_TEXT_PIXELS = 1_024
"""Pixels and channels of an image up to which there is a CSV file: more are hundreds of megabytes
that nobody reads as text."""

_CSV_BLOCK_BYTES, _BATCH_ROWS = 1 << 22, 20_000


def table_files(
    frame: pd.DataFrame,
    schema: TableSchema,
    mark: Mapping[str, str] | None = None,
    *,
    released: Released | None = None,
) -> dict[str, bytes]:
    """Write rows in both formats and their schema, with the `measured_bins` of what was released.

    ``mark`` is constant text in each of the files. Images are also written as such, and not as text
    where they have more than `MAX_TEXT_PIXELS`.
    """
    marked = frame.assign(**(mark or {}))
    bins = measured_bins(schema, released or {})
    written = {**(mark or {}), **schema.model_dump(mode="json"), **bins}
    parquet, text = io.BytesIO(), io.BytesIO()
    marked.to_parquet(parquet, index=False, compression="zstd")
    files = {
        PARQUET_FILE: parquet.getvalue(),
        SCHEMA_FILE: (json.dumps(written, indent=2, ensure_ascii=False) + "\n").encode("utf-8"),
        **image_files(frame, schema, mark),
    }
    if _has_text(schema):
        # Several times as fast as pandas, which formats cell by cell.
        rows = pa.Table.from_pandas(marked, preserve_index=False)
        pa_csv.write_csv(rows, text, pa_csv.WriteOptions(quoting_style="needed"))
        files[CSV_FILE] = text.getvalue()
        del rows
    # Arrow keeps what it has used: hundreds of megabytes of a large release.
    pa.default_memory_pool().release_unused()
    return files


def measured_bins(schema: TableSchema, released: Released) -> dict[str, Any]:
    """Return which declared codes of a column ClustMix has measured as one, for the schema file.

    Of each column with such codes the names of the codes that its pair tables tell apart, in groups
    (`tasks.methods.clustmix.tables.table_rule.coarse_codes`): post-processing. Other methods join
    no codes: nothing is returned.
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


def read_rows(files: Mapping[str, bytes]) -> pd.DataFrame:
    """Read the rows of a bundle as a researcher does."""
    frame = pd.read_parquet(io.BytesIO(files[PARQUET_FILE]))
    pa.default_memory_pool().release_unused()
    return frame


def formats_agree(files: Mapping[str, bytes], frame: pd.DataFrame, schema: TableSchema) -> bool:
    """Return whether text and images have the cells of the Parquet file, read, in their order."""
    if not images_agree(files, frame, schema):
        return False
    if not _has_text(schema):
        return CSV_FILE not in files
    rows = pq.ParquetFile(io.BytesIO(files[PARQUET_FILE]))
    declared = rows.schema_arrow.remove_metadata()
    blocks = pa_csv.open_csv(
        io.BytesIO(files[CSV_FILE]),
        read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
        convert_options=pa_csv.ConvertOptions(
            column_types=declared, null_values=[""], strings_can_be_null=True
        ),
    )
    # All rows in two more forms would be most of the memory of a release.
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
    """Return whether the schema file of a bundle states a schema, the order of its lists too."""
    stated = json.loads(files[SCHEMA_FILE])
    read = TableSchema.model_validate(
        {k: stated[k] for k in TableSchema.model_fields if k in stated}
    )
    # Compared as text: mappings that differ in order alone are equal.
    return read.model_dump_json() == schema.model_dump_json()


def coded(frame: pd.DataFrame, schema: TableSchema) -> tuple[CodedTable | None, frozenset[str]]:
    """Encode published rows as the rows of the source were, and say which rules they break.

    None is mended; there are no codes if a rule is broken.
    """
    chunk = encode_chunk(frame, schema, mend=False)
    broken = frozenset(violation.rule for violation in chunk.violations)
    if broken or not np.all(chunk.valid):
        return None, broken
    return CodedTable(codes=chunk.codes, label=chunk.label), broken
