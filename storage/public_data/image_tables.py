"""Public images as Parquet tables: a column for each pixel, row by row, and one for the label."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.schema.column_blocks import LABEL_NAME, pixel_names

_ROWS_OF_A_GROUP = 10_000


def idx_images(members: Mapping[str, bytes]) -> bytes:
    """Convert the two verified files of a dataset in the format of MNIST to Parquet.

    An idx file is two zeros, the type 8 of unsigned bytes, the number of axes, the length of each
    axis (big endian), and the bytes. Source: LeCun, Cortes and Burges, "The MNIST database".
    """
    arrays = {}
    for content in members.values():
        n_axes = content[3]
        shape = np.frombuffer(content, dtype=">u4", count=n_axes, offset=4)
        values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * n_axes)
        arrays[n_axes] = values.reshape([*map(int, shape)])
    return images_parquet(arrays[3], arrays[1])


def images_parquet(pixels: NDArray[np.uint8], label: NDArray[np.integer]) -> bytes:
    """Return images (n, height, width) or (n, height, width, 3) and labels (n,) as Parquet."""
    columns = np.ascontiguousarray(pixels.reshape(len(pixels), -1).T)
    names = [*pixel_names(*pixels.shape[1:]), LABEL_NAME]
    target = io.BytesIO()
    table = pa.Table.from_arrays([pa.array(column) for column in (*columns, label)], names=names)
    pq.write_table(table, target, row_group_size=_ROWS_OF_A_GROUP)
    return target.getvalue()


def read_images(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the pixels (n, pixels) and the labels (n,) of a table of images."""
    table = pq.read_table(path)
    pixels = table.drop_columns([LABEL_NAME]).to_pandas().to_numpy(dtype=np.uint8)
    return pixels, table[LABEL_NAME].to_numpy().astype(np.int64)
