"""Images and labels in one npz file in the form of MedMNIST: no pickle, and in bounded chunks.

Source: J. Yang et al., "MedMNIST v2", 2023; NumPy, "The .npy format", version 1.0.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from privacy.errors import InputError
from storage.schema.column_blocks import MAX_SIDE, pixel_names
from storage.sources.declared_images import LABEL_NAME, MedmnistSource

MAX_ARRAY_BYTES = 16 << 30
"""Most bytes of an array that are ever decompressed."""

BYTES_WORTH_A_FRAGMENT = 16 << 20
"""Images are divided no further: every worker decompresses from the first image on."""

_READ_BYTES = 1 << 22
_MAGIC = b"\x93NUMPY\x01\x00"
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NpzPart:
    """Images up to `stop_row` of `shape` (n, rows, columns, channels). No repr: it is private."""

    path: Path
    split: str
    shape: tuple[int, int, int, int]
    first_row: int
    stop_row: int

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns in batches of at most `chunk_rows` (InputError if damaged)."""
        names = (*pixel_names(*self.shape[1:]), LABEL_NAME)
        places = {name: place for place, name in enumerate(names)}
        n_cells = len(names) - 1
        step = max(1, min(chunk_rows, _READ_BYTES // n_cells))
        with _opened(self.path) as archive:
            labels = _labels(archive, self.path, self.split, self.shape[0])
            with _member(archive, self.path, f"{self.split}_images") as (content, _, _):
                for skipped in range(0, self.first_row, step):
                    _exactly(content, self.path, min(step, self.first_row - skipped) * n_cells)
                for row in range(self.first_row, self.stop_row, step):
                    n_rows = min(step, self.stop_row - row)
                    table = _exactly(content, self.path, n_rows * n_cells)
                    pixels = np.frombuffer(table, dtype=np.uint8).reshape(n_rows, -1).T.copy()
                    columns = [*pixels, labels[row : row + n_rows]]
                    yield pa.RecordBatch.from_arrays(
                        [pa.array(columns[places[name]]) for name in needed], names=list(needed)
                    )
                if self.stop_row == self.shape[0] and content.read(1):  # compares the checksum
                    raise _damaged(self.path)


class NpzTable:
    """Images of a split and their labels as a table of pixels (InputError if they are none)."""

    refused_types: Mapping[str, str] = MappingProxyType({})

    def __init__(self, source: MedmnistSource) -> None:
        self._path, self._split = source.path.absolute(), source.split
        images = f"{source.split}_images"
        with _opened(self._path) as archive:
            with _member(archive, self._path, images) as (_, shape, dtype):
                n_images, *size = shape if len(shape) == 4 else (*shape, 1)
            if (
                dtype != np.uint8
                or len(size) != 3
                or size[2] not in (1, 3)
                or not all(1 <= side <= MAX_SIDE for side in size[:2])
            ):
                raise InputError(
                    "NPZ_IMAGES",
                    f"expected {images} in {self._path} to be bytes (n, height, width) or "
                    f"(n, height, width, 3) of 1 to {MAX_SIDE} pixels a side; give a file in the "
                    "form of MedMNIST",
                )
            self._shape = n_images, size[0], size[1], size[2]
            _labels(archive, self._path, self._split, n_images)
        self.names = (*pixel_names(*self._shape[1:]), LABEL_NAME)

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns of all images, as `NpzPart.batches` does."""
        yield from self._part(0, self._shape[0]).batches(needed, chunk_rows)

    def fragments(self, n_fragments: int) -> list[tuple[NpzPart, ...]]:
        """Divide the images, in order, by headers alone; the last of a small file are empty."""
        n_images = self._shape[0]
        n_used = max(min(n_fragments, math.prod(self._shape) // BYTES_WORTH_A_FRAGMENT), 1)
        ends = [n_images * (number + 1) // n_used for number in range(n_used)]
        found = [
            (self._part(start, stop),) for start, stop in zip([0, *ends[:-1]], ends, strict=True)
        ]
        return [*found, *([()] * (n_fragments - n_used))]

    def _part(self, first_row: int, stop_row: int) -> NpzPart:
        return NpzPart(
            path=self._path,
            split=self._split,
            shape=self._shape,
            first_row=first_row,
            stop_row=stop_row,
        )


def _labels(archive: zipfile.ZipFile, path: Path, split: str, n_images: int) -> NDArray[np.int64]:
    """Read the labels (n,), whole numbers, one for each image."""
    with _member(archive, path, f"{split}_labels") as (content, shape, dtype):
        if dtype.kind not in "iu" or shape not in ((n_images,), (n_images, 1)):
            raise InputError(
                "NPZ_LABELS",
                f"expected {split}_labels in {path} to be one whole number for each image; several "
                "labels of an image are not read",
            )
        values = np.frombuffer(_exactly(content, path, n_images * dtype.itemsize), dtype=dtype)
        if content.read(1):
            raise _damaged(path)
    return values.astype(np.int64)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever it fails with becomes one line."""
    if not path.is_file():
        raise InputError(
            "SOURCE_MISSING", f"expected a file at {path}; correct the path in the site file"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
            return
    except _DAMAGED:
        pass  # raised below without a context, which may quote the file
    raise _damaged(path)


@contextmanager
def _member(
    archive: zipfile.ZipFile, path: Path, name: str
) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
    """Open an array behind its header, with its shape and type; one of objects is refused."""
    if archive.namelist().count(f"{name}.npy") != 1:
        raise InputError(
            "NPZ_ARRAYS",
            f"expected one array {name} in {path}; give a file in the form of MedMNIST, or "
            "another split",
        )
    with archive.open(f"{name}.npy") as content:
        if content.read(len(_MAGIC)) != _MAGIC:
            raise _damaged(path)
        # The header is read as a literal, and no longer than ten thousand characters.
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(content)
        if dtype.hasobject or by_columns or math.prod(shape) * dtype.itemsize > MAX_ARRAY_BYTES:
            raise InputError(
                "NPZ_FORM",
                f"expected {name} in {path} to be an array of numbers, row by row, of at most "
                f"{MAX_ARRAY_BYTES >> 30} GiB; write it again",
            )
        yield content, shape, dtype


def _exactly(content: IO[bytes], path: Path, n_bytes: int) -> bytes:
    """Read so many bytes, in pieces: what a header promises need not be there."""
    pieces = list[bytes]()
    while n_bytes > 0:
        piece = content.read(min(n_bytes, _READ_BYTES))
        if not piece:
            raise _damaged(path)
        pieces.append(piece)
        n_bytes -= len(piece)
    return b"".join(pieces)


def _damaged(path: Path) -> InputError:
    return InputError(
        "NPZ_UNREADABLE",
        f"expected a whole npz file at {path}, found a damaged, encrypted or truncated one; get it "
        "again",
    )
