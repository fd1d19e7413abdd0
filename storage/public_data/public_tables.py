"""Public datasets by name, as ``tables.toml`` lists them, made from the published files.

Every rule reads the rows of one person. Images become a table with a column for each pixel, row by
row, and one for the label.
"""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.files.documents import listed
from storage.public_data.diabetes_items import items_parquet
from storage.schema.column_blocks import LABEL_NAME, pixel_names


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicDataset:
    """A dataset that anybody may read.

    Attributes
    ----------
    relative_path
        Place of a copy under a data folder.
    sha256
        Digest of the copy; None if only members are published.
    url
        Address of the publisher's zip archive of the members, or, if it ends with a slash, of the
        folder that holds each of them compressed (``.gz``).
    members
        SHA-256 of each published file, decompressed, by its name.
    of
        Name of the dataset that this one is derived from, instead of members.
    build
        Makes the file, not compressed, from the verified members.
    """

    name: str
    relative_path: str
    sha256: str | None = None
    publisher: str
    url: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    of: str | None = None
    build: Callable[[Mapping[str, bytes]], bytes] | None = None

    @property
    def file_name(self) -> str:
        """Name of the file that `build` makes."""
        return Path(self.relative_path).name.removesuffix(".gz")


def _adult(members: Mapping[str, bytes]) -> bytes:
    """Join the two parts: header and `split` added, blanks and the test labels' dot removed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(listed(__package__, "columns.toml")["adult"].split())
    for member, split in (("adult.data", "train"), ("adult.test", "test")):
        for line in members[member].decode("ascii").splitlines():
            if line and not line.startswith("|"):
                cells = [cell.strip() for cell in line.split(",")]
                cells[-1] = cells[-1].removesuffix(".")
                writer.writerow([*cells, split])
    return text.getvalue().encode("ascii")


def _diabetes130(members: Mapping[str, bytes]) -> bytes:
    """Convert to Parquet; the missing code '?' and the category 'None' stay text."""
    frame = pd.read_csv(
        io.BytesIO(members["diabetic_data.csv"]), keep_default_na=False, low_memory=False
    )
    content: bytes = frame.to_parquet(index=False)
    return content


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


_BUILDS: Mapping[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "adult": _adult,
    "diabetes130": _diabetes130,
    "diabetes130_items": lambda members: items_parquet(members["diabetes130"]),
    **dict.fromkeys(("mnist", "mnist_test", "fashion_mnist", "fashion_mnist_test"), idx_images),
}


DATASETS = {
    name: PublicDataset(name=name, build=_BUILDS.get(name), **facts)
    for name, facts in listed(__package__, "tables.toml").items()
}
