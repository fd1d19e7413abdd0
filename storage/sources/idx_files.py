"""Images and their labels in idx files, the format of MNIST: strictly read, in bounded chunks.

An idx file is a header, big endian, and then bytes: two zeros, the type of the elements (8:
unsigned bytes), the number of axes, the length of each axis. Images have three axes, labels one.
Source: Y. LeCun, C. Cortes and C. Burges, "The MNIST database", section on file formats.
"""

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from privacy.errors import InputError
from storage.schema.column_blocks import MAX_SIDE, pixel_names
from storage.sources.declared_images import LABEL_NAME

MAX_IDX_BYTES = 4 << 30
"""Most bytes that a header may promise, and so the most that are ever decompressed."""

ROWS_WORTH_A_FRAGMENT = 20_000
"""Images are divided no further: a compressed file is read from its begin by every worker."""

_UNSIGNED_BYTES = b"\0\0\x08"
_GZIP = b"\x1f\x8b"
_READ_BYTES = 1 << 22
_IMAGE_AXES, _LABEL_AXES = 3, 1
_HOLDS = {_IMAGE_AXES: "images", _LABEL_AXES: "labels"}
_READ_ROWS = 10_000


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read idx images (n, height, width) or labels (n,), plain or with gzip (InputError)."""
    shape = _shape_of(path)
    with _content(path, shape) as content:
        values = np.frombuffer(_exactly(content, path, math.prod(shape)), dtype=np.uint8)
        _expect_end(content, path)
    return values.reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdxPart:
    """Images up to `stop_row` of `shape` (n, height, width). No repr: its numbers are private."""

    images: Path
    labels: Path
    shape: tuple[int, int, int]
    first_row: int
    stop_row: int

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns in batches of at most `chunk_rows`.

        The part with the last image also finds out whether the files end where they should. It is
        an InputError if they end too early or too late, or are damaged.
        """
        n_images, height, width = self.shape
        places = {name: place for place, name in enumerate(column_names(height, width))}
        with (
            _content(self.images, self.shape, skip=self.first_row * height * width) as pixels,
            _content(self.labels, (n_images,), skip=self.first_row) as labels,
        ):
            row, step = self.first_row, min(chunk_rows, _READ_ROWS)
            while row < self.stop_row:
                n_rows = min(step, self.stop_row - row)
                values = np.empty((height * width + 1, n_rows), dtype=np.uint8)
                table = _exactly(pixels, self.images, n_rows * height * width)
                values[:-1] = np.frombuffer(table, dtype=np.uint8).reshape(n_rows, -1).T
                values[-1] = np.frombuffer(_exactly(labels, self.labels, n_rows), dtype=np.uint8)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(values[places[name]]) for name in needed], names=list(needed)
                )
                row += n_rows
            if self.stop_row == n_images:
                _expect_end(pixels, self.images)
                _expect_end(labels, self.labels)


class IdxTable:
    """Images and their labels as a table of pixels (InputError if they do not go together)."""

    def __init__(self, images: Path, labels: Path) -> None:
        self._files = (images.absolute(), labels.absolute())  # a worker may be elsewhere
        n_images, height, width = _shape_of(images, n_axes=_IMAGE_AXES)
        if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
            raise InputError(
                "IDX_SIZE",
                f"expected images of 1 to {MAX_SIDE} pixels a side in {images}, found "
                f"{height} x {width}",
            )
        if _shape_of(labels, n_axes=_LABEL_AXES) != (n_images,):
            raise InputError(
                "IDX_LABELS",
                f"expected a label for each image; {images} and {labels} say that they hold "
                "different numbers of records: give the two files that belong together",
            )
        self._shape = (n_images, height, width)
        self.names = column_names(height, width)
        self.refused_types: dict[str, str] = {}

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns of all images, as `IdxPart.batches` does."""
        yield from self._part(0, self._shape[0]).batches(needed, chunk_rows)

    def fragments(self, n_fragments: int) -> list[tuple[IdxPart, ...]]:
        """Divide the images, in order, by headers alone; the last of a small file are empty."""
        n_images = self._shape[0]
        n_used = max(min(n_fragments, n_images // ROWS_WORTH_A_FRAGMENT), 1)
        ends = [n_images * (number + 1) // n_used for number in range(n_used)]
        found = [
            (self._part(start, stop),) for start, stop in zip([0, *ends[:-1]], ends, strict=True)
        ]
        return [*found, *([()] * (n_fragments - n_used))]

    def _part(self, first_row: int, stop_row: int) -> IdxPart:
        images, labels = self._files
        return IdxPart(
            images=images, labels=labels, shape=self._shape, first_row=first_row, stop_row=stop_row
        )


def column_names(height: int, width: int) -> tuple[str, ...]:
    """Return the names of the pixels, row by row, and of the label."""
    return (*pixel_names(height, width), LABEL_NAME)


def _shape_of(path: Path, *, n_axes: int | None = None) -> tuple[int, ...]:
    """Read the header: the lengths of the axes."""
    with _opened(path) as content:
        magic = content.read(4)
        known = (_IMAGE_AXES, _LABEL_AXES) if n_axes is None else (n_axes,)
        if magic[:3] != _UNSIGNED_BYTES or len(magic) < 4 or magic[3] not in known:
            wanted = " or ".join(_HOLDS[number] for number in known)
            raise InputError(
                "IDX_MAGIC",
                f"expected an idx file of {wanted}, unsigned bytes, at {path}; give the file as "
                "its publisher made it",
            )
        header = _exactly(content, path, 4 * magic[3])
    shape = tuple(int(length) for length in np.frombuffer(header, dtype=">u4"))
    if math.prod(shape) > MAX_IDX_BYTES:
        raise InputError(
            "IDX_SIZE",
            f"expected at most {MAX_IDX_BYTES >> 30} GiB in {path}; the header says more: check "
            "the file, or divide it",
        )
    return shape


@contextmanager
def _content(path: Path, shape: Sequence[int], *, skip: int = 0) -> Iterator[IO[bytes]]:
    """Open a file behind its header, which has to be the one that was read before."""
    with _opened(path) as content:
        header = _UNSIGNED_BYTES + bytes([len(shape)]) + np.array(shape, dtype=">u4").tobytes()
        if _exactly(content, path, len(header)) != header:
            raise InputError(
                "SOURCE_CHANGED",
                "the source changed while it was read; wait until the export is complete and "
                "start again",
            )
        while skip > 0:  # not a seek, which would go beyond the end of a plain file
            _exactly(content, path, min(skip, _READ_BYTES))
            skip -= _READ_BYTES
        yield content


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if it is compressed; errors of both become one line."""
    if not path.is_file():
        raise InputError(
            "SOURCE_MISSING", f"expected a file at {path}; correct the path in the site file"
        )
    damaged = False
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP
            raw.seek(0)
            if compressed:
                with gzip.GzipFile(fileobj=raw) as content:
                    yield cast(IO[bytes], content)
            else:
                yield raw
    except (gzip.BadGzipFile, zlib.error, EOFError, OSError):
        damaged = True
    if damaged:
        raise InputError(
            "IDX_UNREADABLE",
            f"expected a whole idx file at {path}, found a damaged or truncated one; get it again",
        )


def _exactly(content: IO[bytes], path: Path, n_bytes: int) -> bytes:
    """Read so many bytes, in pieces: what a header promises need not be there."""
    pieces: list[bytes] = []
    while n_bytes > 0:
        piece = content.read(min(n_bytes, _READ_BYTES))
        if not piece:
            raise InputError(
                "IDX_TRUNCATED",
                f"expected as many bytes in {path} as its header says, found fewer; get it again",
            )
        pieces.append(piece)
        n_bytes -= len(piece)
    return b"".join(pieces)


def _expect_end(content: IO[bytes], path: Path) -> None:
    # At the end of a compressed file, this also compares its checksum.
    if content.read(1):
        raise InputError(
            "IDX_TRAILING",
            f"expected as many bytes in {path} as its header says, found more; get it again",
        )
