"""A folder with a file for each image, read as a table of pixels.

`storage.sources.cohorts` guards the exceptions. Names of files are private: no message contains
one, and `RefusedFiles` carries those of broken files.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from privacy.errors import refusals
from storage.schema.column_blocks import LABEL_NAME
from storage.schema.table import check_names
from storage.sources.declared import CsvSource
from storage.sources.declared_images import FILE_NAME, DicomSource, PngSource, RefusedFiles
from storage.sources.formats import CsvTable
from storage.sources.images.image_files import (
    FileRule,
    RefusedFile,
    check_tags,
    read_dicom,
    read_png,
    series_of,
)
from storage.sources.reading import SourceTable

refusal = refusals("storage.sources")
FILES_WORTH_A_FRAGMENT = 1_000
MAX_FILE_BYTES = 64 << 20
"""Most bytes of a file that are read."""

_BATCH_CELLS = 8_000_000
_MOST_BROKEN = 1_000
"""Most broken files that a part reports."""

_ENDINGS = {"png": ".png", "dicom": ".dcm"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImageFilesPart:
    """Consecutive files with the cells of the table. Without a repr, as all of it is private."""

    source: PngSource | DicomSource
    files: tuple[Path, ...]
    cells: Mapping[str, tuple[str, ...]]
    first_row: int

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read batches of at most `chunk_rows`, refused files black; then raise `RefusedFiles`."""
        names, broken = self.source.pixel_names, list[tuple[str, int, str]]()
        places = {name: place for place, name in enumerate(names)}
        step = max(1, min(chunk_rows, _BATCH_CELLS // len(names)))
        for start in range(0, len(self.files), step):
            files = self.files[start : start + step]
            pixels = np.zeros((len(names), len(files)), dtype=np.uint8)
            in_header = {name: [""] * len(files) for name in self.source.header_columns}
            for place, file in enumerate(files):
                # A file that was not read must not break a second rule by an empty header.
                header = dict.fromkeys(in_header, "-")
                try:
                    image, header = _read(file, self.source)
                    pixels[:, place] = image.ravel()
                except RefusedFile as refused:
                    if len(broken) < _MOST_BROKEN:
                        name = str(file.relative_to(self.source.folder))
                        broken.append((refused.rule, self.first_row + start + place, name))
                for tag, text in header.items():
                    in_header[tag][place] = text
            listed = {name: cells[start : start + step] for name, cells in self.cells.items()}
            texts = {**listed, **in_header}
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(pixels[places[name]])
                    if name in places
                    else pa.array(texts[name], pa.large_string())
                    for name in needed
                ],
                names=list(needed),
            )
        if broken:
            raise RefusedFiles.of(broken)


class ImageFolder(SourceTable):
    """The images of a source as columns, in the order of the table or of the file names.

    It is an InputError if a file is missing, a link, outside the folder, of another kind, or listed
    twice, or if the table lacks a column.
    """

    divisible = True

    def __init__(self, source: PngSource | DicomSource, scratch: Path | None = None) -> None:
        folder = source.folder.absolute()  # a worker may be elsewhere
        self._source = source.model_copy(update={"folder": folder})
        if isinstance(source, DicomSource):
            check_tags(source.header_columns)
        if not folder.is_dir():
            raise refusal("SOURCE_MISSING folder", folder=folder)
        if source.table is None:
            names = tuple(_below(folder, _ENDINGS[source.kind]))
            self._cells = {LABEL_NAME: tuple(name.parts[0] for name in names)}
        else:
            names, self._cells = _listed(source.table)
        _check_files(folder, names)
        self._images = tuple(folder / name for name in names)

    def described(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the names of pixels, of columns of the table and of elements of the header."""
        source = self._source
        return (*source.pixel_names, *self._cells, *source.header_columns), {}

    def files(self) -> list[Path]:
        """Return the images and the table."""
        return [*self._images, *([] if self._source.table is None else [self._source.table])]

    def cells_of_folders(self) -> tuple[str, ...]:
        """Return the label of each image, where folders name the labels."""
        return self._cells[LABEL_NAME] if self._source.table is None else ()

    def batches(self, needed: Sequence[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns of all images, as `ImageFilesPart.batches` does."""
        for (part,) in self.fragments(1):
            yield from part.batches(needed, chunk_rows)

    def fragments(self, n_fragments: int) -> list[tuple[ImageFilesPart, ...]]:
        """Divide the files in order; parts may be empty. InputError if a patient has two series."""
        if isinstance(self._source, DicomSource):
            self._check_series()
        n_files = len(self._images)
        n_used = max(min(n_fragments, n_files // FILES_WORTH_A_FRAGMENT), 1)
        ends = [n_files * (number + 1) // n_used for number in range(n_used)]
        found = [
            (
                ImageFilesPart(
                    source=self._source,
                    files=self._images[start:stop],
                    cells={name: cells[start:stop] for name, cells in self._cells.items()},
                    first_row=start,
                ),
            )
            for start, stop in zip([0, *ends[:-1]], ends, strict=True)
        ]
        return [*found, *([()] * (n_fragments - n_used))]

    def _check_series(self) -> None:
        series: dict[str, str] = {}
        for file in self._images:
            patient, own = series_of(_content(file))
            if patient and series.setdefault(patient, own) != own:
                raise refusal("DICOM_SERIES")


def _read(file: Path, source: PngSource | DicomSource) -> tuple[NDArray[np.uint8], dict[str, str]]:
    """Return the reduced pixels of a file and the columns of its header."""
    content = _content(file)
    if len(content) > MAX_FILE_BYTES:
        raise RefusedFile(FileRule.LARGE)
    if isinstance(source, PngSource):
        pixels, header = read_png(content, source)
    else:
        pixels, header = read_dicom(content, source)
    return shrunk(pixels, source.shrink), header


def _content(file: Path) -> bytes:
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as handle:
        return handle.read(MAX_FILE_BYTES + 1)


def shrunk(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Return the rounded mean of each square of `factor` pixels a side."""
    rows, columns, channels = pixels.shape
    squares = pixels.reshape(rows // factor, factor, columns // factor, factor, channels)
    sums = squares.sum(axis=(1, 3), dtype=np.int64)
    return np.asarray((sums + factor**2 // 2) // factor**2, dtype=np.uint8)


def _listed(table: Path) -> tuple[tuple[PurePosixPath, ...], dict[str, tuple[str, ...]]]:
    """Return the paths that a table lists, and its other columns."""
    if not table.is_file():
        raise refusal("SOURCE_MISSING table", path=table)
    rows = CsvTable(CsvSource(kind="csv", path=table))
    columns, _ = rows.described()
    check_names(columns)
    if FILE_NAME not in columns:
        raise refusal("COLUMN_MISSING file", column=FILE_NAME, path=table)
    cells: dict[str, list[str]] = {name: [] for name in columns}
    for batch in rows.batches(columns, _BATCH_CELLS):
        for name in columns:
            cells[name] += batch.column(name).to_pylist()
    names = tuple(PurePosixPath(name) for name in cells.pop(FILE_NAME))
    return names, {name: tuple(texts) for name, texts in cells.items()}


def _below(folder: Path, ending: str) -> Iterator[PurePosixPath]:
    """Yield the files in the folders of the labels, sorted; hidden names are skipped."""
    for path in sorted(folder.rglob("*")):
        name = PurePosixPath(path.relative_to(folder))
        if any(part.startswith(".") for part in name.parts):
            continue
        if path.is_dir() and not path.is_symlink():
            continue
        if path.suffix.lower() != ending or len(name.parts) < 2:
            raise refusal("IMAGE_FOLDER", ending=ending, folder=folder)
        yield name


def _check_files(folder: Path, names: Sequence[PurePosixPath]) -> None:
    """Refuse links, missing or repeated files, and paths outside the folder."""
    known: dict[PurePosixPath, int] = {}
    for name in names:
        if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in str(name):
            raise refusal("IMAGE_OUTSIDE", folder=folder)
        way = [name, *name.parents][:-1]
        known |= {part: _kind_of(folder / part) for part in way if part not in known}
        if any(stat.S_ISLNK(known[part]) for part in way):
            raise refusal("IMAGE_LINK", folder=folder)
        if not stat.S_ISREG(known[name]):
            raise refusal("IMAGE_MISSING", folder=folder)
    if len({*names}) != len(names):
        raise refusal("IMAGE_TWICE")


def _kind_of(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0
