"""idx files: read as their header says, and refused with one line for every defect."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import InputError
from storage.sources import idx_files
from storage.sources.cohorts import CohortReader
from storage.sources.declared import IdxSource
from storage.sources.idx_files import IdxTable, column_names, read_idx


def idx_bytes(values, *, shape=None, kind=8):
    shape = values.shape if shape is None else shape
    header = struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape)
    return header + values.astype(np.uint8).tobytes()


def images_of(n, height=3, width=2, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width)).astype(np.uint8)


class Files:
    """Two files of images and labels."""

    def __init__(self, folder, n=7):
        self.images, self.labels = folder / "images", folder / "labels"
        self.pixels = images_of(n)
        self.classes = (np.arange(n) % 3).astype(np.uint8)
        self.images.write_bytes(idx_bytes(self.pixels))
        self.labels.write_bytes(idx_bytes(self.classes))

    @property
    def reader(self):
        return CohortReader(IdxSource(kind="idx", images=self.images, labels=self.labels))

    @property
    def table(self):
        return np.column_stack([self.pixels.reshape(-1, 6), self.classes])


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(5,), (0,), (4, 3, 2), (0, 2, 2)])
def test_a_whole_file(tmp_path, shape, compressed):
    values = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    content = idx_bytes(values)
    path = tmp_path / "values"  # the content says whether it is compressed, not the name
    path.write_bytes(gzip.compress(content) if compressed else content)
    read = read_idx(path)
    assert read.dtype == np.uint8
    assert read.shape == shape
    assert np.array_equal(read, values)


@settings(max_examples=30)
@given(n=st.integers(0, 12), chunk_rows=st.integers(1, 5), n_fragments=st.integers(1, 4))
def test_chunks_and_fragments_agree_with_numpy(tmp_path_factory, n, chunk_rows, n_fragments):
    files = Files(tmp_path_factory.mktemp("idx"), n)
    names = list(column_names(3, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idx_files, "ROWS_WORTH_A_FRAGMENT", 2)
        patch.setattr(idx_files, "_READ_ROWS", 3)
        frames = list(files.reader.chunks(names, chunk_rows))
        fragments = files.reader.fragments(names, n_fragments)
        parts = [f for fragment in fragments for f in fragment.frames(chunk_rows)]
    assert len(fragments) == n_fragments
    for found in (frames, parts):
        assert [row for frame in found for row in frame.index] == list(range(n))
        assert all(1 <= len(frame) <= chunk_rows for frame in found)
        assert all(set(frame.dtypes) == {np.dtype(np.uint8)} for frame in found)
        cells = np.vstack([np.empty((0, 7), np.uint8), *(frame.to_numpy() for frame in found)])
        assert np.array_equal(cells, files.table)


def test_columns_are_chosen_and_rows_selected(files):
    reader = CohortReader(
        IdxSource(kind="idx", images=files.images, labels=files.labels, select={"label": 2})
    )
    (frame,) = reader.chunks(["pixel_02_01", "pixel_00_00"])
    rows = np.flatnonzero(files.classes == 2)
    assert list(frame.columns) == ["pixel_02_01", "pixel_00_00"]
    assert frame.index.tolist() == rows.tolist()
    assert np.array_equal(frame.to_numpy(), files.table[rows][:, [5, 0]])


def test_the_content_is_that_of_both_files(files, tmp_path):
    first = files.reader.content_sha256()
    (tmp_path / "elsewhere").mkdir()
    moved = Files(tmp_path / "elsewhere")
    assert moved.reader.content_sha256() == first
    files.labels.write_bytes(idx_bytes(files.classes[::-1]))
    assert files.reader.content_sha256() != first


def test_a_file_that_changes_while_it_is_read(files):
    chunks = files.reader.chunks(["label"], 3)
    next(chunks)
    files.labels.write_bytes(idx_bytes(files.classes[::-1]))
    with pytest.raises(InputError, match="SOURCE_CHANGED"):
        list(chunks)
    part = IdxTable(files.images, files.labels).fragments(1)[0][0]
    files.images.write_bytes(idx_bytes(images_of(9)))
    with pytest.raises(InputError, match="SOURCE_CHANGED"):
        list(part.batches(["label"], 3))


GOOD = idx_bytes(images_of(7))
DEFECTS = {
    "empty": (b"", "IDX_MAGIC: expected an idx file of images, unsigned bytes"),
    "text": (b"label,pixel\n1,2\n", "IDX_MAGIC"),
    "short header": (GOOD[:9], "IDX_TRUNCATED: expected as many bytes in "),
    "labels in place of images": (idx_bytes(np.zeros(7)), "IDX_MAGIC"),
    "floats": (idx_bytes(images_of(7), kind=13), "IDX_MAGIC"),
    "a pixel short": (GOOD[:-1], "IDX_TRUNCATED"),
    "a byte more": (GOOD + b"\0", "IDX_TRAILING: expected as many bytes in "),
    "an image less": (idx_bytes(images_of(6)), "IDX_LABELS: expected a label for each image"),
    "an image more": (idx_bytes(images_of(8)), "IDX_LABELS"),
    "no pixels": (
        idx_bytes(images_of(7), shape=(7, 0, 2)),
        "IDX_SIZE: expected images of 1 to 64 pixels a side",
    ),
    "large pixels": (idx_bytes(images_of(7), shape=(7, 65, 2)), "IDX_SIZE"),
    "five gigabytes": (
        idx_bytes(images_of(7), shape=(5_000_000, 32, 32)),
        "IDX_SIZE: expected at most 4 GiB",
    ),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_one_line(files, defect, compressed):
    content, line = DEFECTS[defect]
    files.images.write_bytes(gzip.compress(content) if compressed else content)
    columns = list(column_names(3, 2))

    def fragmented(reader):
        return [frame for part in reader.fragments(columns, 2) for frame in part.frames()]

    for read in (lambda reader: list(reader.chunks(columns)), fragmented):
        with pytest.raises(InputError, match=f"^{line}") as caught:
            read(files.reader)
        assert "\n" not in str(caught.value)
        assert caught.value.__context__ is None or isinstance(caught.value.__context__, InputError)


@pytest.mark.parametrize("cut", [12, 40, -8, -1])
def test_a_damaged_compressed_file(files, cut):
    whole = gzip.compress(files.images.read_bytes())
    damaged = bytearray(whole)
    damaged[cut] ^= 0x55
    for content in (whole[:cut], bytes(damaged)):
        files.images.write_bytes(content)
        with pytest.raises(InputError, match=r"IDX_(UNREADABLE|TRUNCATED|MAGIC|TRAILING)"):
            list(files.reader.chunks(list(column_names(3, 2))))
        with pytest.raises(InputError, match="IDX_"):
            read_idx(files.images)


def test_a_bomb_is_not_decompressed(files, monkeypatch):
    """What the header does not promise is not read, however much there is."""
    n_read = 0
    exactly = idx_files._exactly

    def counted(content, path, n_bytes):
        nonlocal n_read
        n_read += n_bytes
        return exactly(content, path, n_bytes)

    monkeypatch.setattr(idx_files, "_exactly", counted)
    good = files.images.read_bytes()
    bomb = gzip.compress(good + bytes(20_000_000))
    assert len(bomb) < 100_000
    for content in (bomb, gzip.compress(good) + gzip.compress(b"\0" * 9)):
        files.images.write_bytes(content)
        with pytest.raises(InputError, match="IDX_TRAILING"):
            read_idx(files.images)
    assert n_read < 1000


def test_a_header_that_promises_too_much_costs_no_memory(files):
    files.images.write_bytes(idx_bytes(images_of(7), shape=(4_000_000, 32, 32)))
    files.labels.write_bytes(idx_bytes(files.classes, shape=(4_000_000,)))
    with pytest.raises(InputError, match="IDX_TRUNCATED"):
        next(files.reader.chunks(["label"]))


def test_files_are_where_they_were_for_a_worker_in_another_directory(files, monkeypatch, tmp_path):
    monkeypatch.chdir(files.images.parent)
    reader = CohortReader(IdxSource(kind="idx", images="images", labels="labels"))
    (fragment,) = reader.fragments(["label"], 1)
    monkeypatch.chdir(tmp_path.parent)
    (frame,) = fragment.frames()
    assert frame["label"].tolist() == files.classes.tolist()
    files.labels.unlink()
    with pytest.raises(InputError, match=f"SOURCE_MISSING: expected a file at {files.labels}"):
        files.reader.header()
