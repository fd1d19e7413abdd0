import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_bytes import dicom, png
from PIL import Image
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEGBaseline8Bit

from privacy.errors import ConfigurationError, InputError
from storage.schema.column_blocks import pixel_names
from storage.sources.cohorts import CohortReader
from storage.sources.declared_images import DicomSource, PngSource, RefusedFiles
from storage.sources.images import image_folders
from storage.sources.images.image_files import FileRule, windowed
from storage.sources.images.image_folders import shrunk

ROWS, COLUMNS = 4, 6


def colours(n, seed=1, shape=(ROWS, COLUMNS, 3)):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape)).astype(np.uint8)


class Films:
    def __init__(self, folder, n=5):
        self.folder, self.table = folder / "films", folder / "films.csv"
        self.pixels = colours(n)
        self.names = [f"ward {i % 2}/{i}.png" for i in range(n)]
        for name, pixels in zip(self.names, self.pixels, strict=True):
            self.write(name, png(pixels))
        self.list_()

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def list_(self):
        lines = [f"{name},p{i % 2},{'ab'[i % 2]}" for i, name in enumerate(self.names)]
        self.table.write_text("\n".join(["file,patient,kind", *lines]) + "\n")

    def reader(self, **changes):
        declared = {"folder": self.folder, "table": self.table, "size": (ROWS, COLUMNS)}
        return CohortReader(PngSource(**{"kind": "png", "colour": True} | declared | changes))

    def read(self, **changes):
        reader = self.reader(**changes)
        return list(reader.chunks(reader.header()))


@pytest.fixture
def films(tmp_path):
    return Films(tmp_path)


def test_chunks_and_fragments_are_the_listed_files(films, monkeypatch):
    monkeypatch.setattr(image_folders, "FILES_WORTH_A_FRAGMENT", 2)
    monkeypatch.setattr(image_folders, "_BATCH_CELLS", 2 * ROWS * COLUMNS * 3)
    names = [*pixel_names(ROWS, COLUMNS, 3), "patient", "kind"]
    assert names[:3] == ["pixel_00_00_red", "pixel_00_00_green", "pixel_00_00_blue"]
    reader = films.reader()
    assert list(reader.header()) == names
    frames = list(reader.chunks(names, 3))
    parts = [f for fragment in reader.fragments(names, 4) for f in fragment.frames(3)]
    for found in (frames, parts):
        assert [row for frame in found for row in frame.index] == list(range(5))
        cells = np.vstack([frame[names[:-2]].to_numpy(dtype=np.uint8) for frame in found])
        assert np.array_equal(cells, films.pixels.reshape(5, -1))
        assert [p for frame in found for p in frame["patient"]] == ["p0", "p1", "p0", "p1", "p0"]
    (selected,) = films.reader(select={"kind": "b"}).chunks(["patient"])
    assert selected.index.tolist() == [1, 3]


def test_a_folder_for_each_label_and_names_are_content(films):
    def read():
        reader = films.reader(table=None)
        return reader.content_sha256(), list(next(reader.chunks(["label"]))["label"])

    first, labels = read()
    assert labels == ["ward 0"] * 3 + ["ward 1"] * 2
    # The same bytes in the same order, one with another label.
    (films.folder / "ward 1" / "1.png").rename(films.folder / "ward 0" / "9.png")
    other, labels = read()
    assert (labels.count("ward 0"), other != first) == (4, True)
    (films.folder / "ward 0" / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"^IMAGE_FOLDER: expected folders of files \*\.png below"):
        read()


@given(factor=st.integers(1, 5), seed=st.integers(0, 99))
def test_images_are_shrunk_to_rounded_means(factor, seed):
    pixels = colours(1, seed, (2 * factor, 3 * factor, 3))[0]
    small = shrunk(pixels, factor)
    for row, column, channel in np.ndindex(2, 3, 3):
        block = pixels[row * factor : (row + 1) * factor, column * factor : (column + 1) * factor]
        assert abs(small[row, column, channel] - block[..., channel].mean()) <= 0.5


def bomb(pixels):
    """A header of 60,000 x 60,000 pixels, and hardly any bytes."""
    content = bytearray(png(pixels))
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    return bytes(content)


GRAY = colours(1)[0, ..., 0]
WHOLE = png(colours(1)[0])
BROKEN_PNG = {
    "truncated": (WHOLE[:-30], FileRule.WHOLE),
    "damaged": (WHOLE[:60] + b"\0\0" + WHOLE[62:], FileRule.WHOLE),
    "a JPEG file": (b"\xff\xd8\xff\xe0" + bytes(90), FileRule.WHOLE),
    "decompression bomb": (bomb(colours(1)[0]), FileRule.SIZE),
    "mixed sizes": (png(colours(1, shape=(5, 6, 3))[0]), FileRule.SIZE),
    "16 bits": (png(GRAY.astype(np.uint16)), FileRule.DEPTH),
    "palette": (png(Image.fromarray(GRAY).convert("P")), FileRule.DEPTH),
    "gray": (png(GRAY), FileRule.CHANNELS),
    "alpha": (png(colours(1, shape=(ROWS, COLUMNS, 4))[0]), FileRule.CHANNELS),
    "a transparent colour": (png(colours(1)[0], transparency=(1, 2, 3)), FileRule.CHANNELS),
    "frames": (
        png(GRAY[..., None].repeat(3, 2), save_all=True, append_images=[Image.new("RGB", (6, 4))]),
        FileRule.FRAMES,
    ),
    "large": (WHOLE + bytes(5_000), FileRule.LARGE),
    "more behind its end": (WHOLE + b"\0", FileRule.WHOLE),
    "a second header of 8 bits": (
        WHOLE[:33] + png(colours(1, shape=(9, 6, 3))[0])[8:],
        FileRule.WHOLE,
    ),
}


@pytest.mark.parametrize("defect", BROKEN_PNG)
def test_a_broken_png_is_one_line_without_its_name(films, defect, monkeypatch):
    monkeypatch.setattr(image_folders, "MAX_FILE_BYTES", 4_000)
    content, rule = BROKEN_PNG[defect]
    films.write(films.names[3], content)
    with pytest.raises(RefusedFiles) as caught:
        films.read()
    assert str(caught.value) == f"IMAGE_REFUSED: column file: expected {rule}; correct the source"
    assert caught.value.broken == [(rule, 3, films.names[3])]


def listed(*names):
    def change(films):
        films.names = list(names)
        films.list_()

    return change


def linked(films):
    (films.folder / films.names[0]).unlink()
    (films.folder / films.names[0]).symlink_to(films.folder / films.names[2])


def linked_folder(films):
    os.rename(films.folder / "ward 0", films.folder.parent / "elsewhere")
    (films.folder / "ward 0").symlink_to(films.folder.parent / "elsewhere")


UNLISTED = {
    "a link": (linked, "IMAGE_LINK: expected files and folders of their own below"),
    "a folder that is a link": (linked_folder, "IMAGE_LINK"),
    "missing": (listed("ward 0/0.png", "x.png"), "IMAGE_MISSING: column file: expected a file"),
    "a folder": (listed("ward 0/0.png", "ward 1"), "IMAGE_MISSING"),
    "above": (listed("ward 0/../../films.csv"), "IMAGE_OUTSIDE"),
    "twice": (listed("ward 0/0.png", "ward 0/0.png"), "IMAGE_TWICE: column file: expected each"),
    "no column": (
        lambda films: films.table.write_text("name\nx\n"),
        "COLUMN_MISSING: expected a column file",
    ),
    "no table": (lambda films: films.table.unlink(), "SOURCE_MISSING: expected a file at"),
}


@pytest.mark.parametrize("defect", UNLISTED)
def test_a_table_that_lists_no_files_of_its_own_is_one_line(films, defect):
    change, line = UNLISTED[defect]
    change(films)
    with pytest.raises(InputError, match=f"^{line}") as caught:
        films.read()
    assert "0.png" not in str(caught.value)


VALUES = np.random.default_rng(3).integers(0, 2**12, (3, ROWS, COLUMNS)).astype(np.uint16)
WINDOW = {"center": 1000.0, "width": 3000.0}


def scans(folder, *contents, **changes):
    for number, content in enumerate(contents):
        path = folder / "scans" / "chest" / f"{number}.dcm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    declared = {"folder": folder / "scans", "size": (ROWS, COLUMNS), "window": WINDOW}
    return CohortReader(
        DicomSource(**{"kind": "dicom", "burned_in": "refuse"} | declared | changes)
    )


def test_dicom_is_read_in_the_declared_window_with_declared_tags_alone(tmp_path):
    signed = VALUES[2].astype(np.int16) - 2_000
    contents = [*(dicom(values) for values in VALUES[:2]), dicom(signed, PatientID="p2")]
    reader = scans(tmp_path, *contents, tags=("ViewPosition",))
    names = [*pixel_names(ROWS, COLUMNS), "label", "PatientID", "ViewPosition"]
    assert list(reader.header()) == names
    (frame,) = reader.chunks(names)
    assert frame["PatientID"].tolist() == ["p1", "p1", "p2"]
    assert set(frame["ViewPosition"]) == {"PA"}
    found = frame[names[:-3]].to_numpy().reshape(3, ROWS, COLUMNS)
    for pixels, values in zip(found, (*VALUES[:2], signed), strict=True):
        for place in np.ndindex(ROWS, COLUMNS):
            # DICOM PS3.3, C.11.2.1.2.1, as it is printed.
            x, c, w = 2.0 * values[place] - 100.0, WINDOW["center"], WINDOW["width"]
            if x <= c - 0.5 - (w - 1) / 2:
                y = 0
            elif x > c - 0.5 + (w - 1) / 2:
                y = 255
            else:
                y = round(((x - (c - 0.5)) / (w - 1) + 0.5) * 255)
            assert pixels[place] == y
    assert windowed(np.array([np.nan, np.inf]), **WINDOW).tolist() == [0, 255]


BROKEN_DICOM = {
    "truncated": (dicom(VALUES[0])[:-9], FileRule.WHOLE),
    "no pixels": (dicom(VALUES[0], Rows=None), FileRule.WHOLE),
    "frames": (dicom(VALUES, NumberOfFrames=3), FileRule.FRAMES),
    "compressed": (dicom(VALUES[0], syntax=JPEGBaseline8Bit), FileRule.UNCOMPRESSED),
    "deflated": (dicom(VALUES[0], syntax=DeflatedExplicitVRLittleEndian), FileRule.UNCOMPRESSED),
    "inverted": (dicom(VALUES[0], PhotometricInterpretation="MONOCHROME1"), FileRule.MONOCHROME),
    "mixed sizes": (dicom(VALUES[0, 1:]), FileRule.SIZE),
    "text burned in": (dicom(VALUES[0], BurnedInAnnotation="YES"), FileRule.BURNED_IN),
}  # fmt: skip


@pytest.mark.parametrize("defect", BROKEN_DICOM)
def test_a_broken_dicom_file_is_one_line(tmp_path, defect, caplog, recwarn):
    content, rule = BROKEN_DICOM[defect]
    reader = scans(tmp_path, dicom(VALUES[1]), content)
    with pytest.raises(RefusedFiles) as caught:
        list(reader.chunks(["pixel_00_00", "PatientID"]))
    assert caught.value.broken == [(rule, 1, "chest/1.dcm")]
    assert not caplog.records
    if rule is FileRule.BURNED_IN:
        reader = scans(tmp_path, burned_in="accept")
        assert sum(map(len, reader.chunks(["pixel_00_00"]))) == 2


def test_a_patient_has_an_identifier_and_one_series(tmp_path):
    reader = scans(tmp_path, dicom(VALUES[0]), dicom(VALUES[1], PatientID=None))
    (frame,) = reader.chunks(["PatientID"])
    # What is empty is refused where rows are checked.
    assert frame["PatientID"].tolist() == ["p1", ""]
    reader = scans(tmp_path, dicom(VALUES[0]), dicom(VALUES[1], SeriesInstanceUID="9"))
    for read in (lambda: list(reader.chunks(["label"])), lambda: reader.fragments(["label"], 2)):
        with pytest.raises(InputError, match=r"^DICOM_SERIES: expected one series for each pat"):
            read()
    with pytest.raises(ConfigurationError, match=r"^DICOM_TAGS: source\.tags: expected keywords"):
        scans(tmp_path, tags=("Nickname",)).header()
