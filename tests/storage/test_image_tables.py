"""Public images are found by name, checked by the content of their files, and read as a table."""

import gzip
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privacy.errors import InputError
from storage.public_data import datasets
from storage.public_data.image_tables import images_parquet, read_images
from storage.schema.column_blocks import pixel_names
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from storage.sources.declared import ParquetSource

SHARED = Path(os.environ.get("CLUSTMIX_DATA_DIR", "absent"))
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PIXELS, DIGITS = np.arange(20, dtype=np.uint8).reshape(5, 2, 2), np.arange(5, dtype=np.uint8)


def idx(values):
    axes = b"".join(length.to_bytes(4, "big") for length in values.shape)
    return bytes([0, 0, 8, values.ndim]) + axes + values.tobytes()


@pytest.fixture
def folder(settings, monkeypatch):
    """Folder with a small dataset in the data folder of the settings."""
    contents = {IMAGES: idx(PIXELS), LABELS: idx(DIGITS)}
    members = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    small = replace(datasets.DATASETS["mnist"], members=members)
    monkeypatch.setitem(datasets.DATASETS, "mnist", small)
    folder = settings.data_dir / "mnist"
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.mark.parametrize("plain", [False, True])
def test_published_files_become_a_table(settings, folder, plain):
    if plain:
        packed = folder / f"{IMAGES}.gz"
        (folder / IMAGES).write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    reader = CohortReader(ParquetSource(kind="parquet", data="mnist"), places=settings.data_places)
    names = [*pixel_names(2, 2), "label"]
    assert list(reader.header()) == names
    (frame,) = reader.chunks(names)
    assert np.array_equal(frame.to_numpy(), np.column_stack([PIXELS.reshape(5, 4), DIGITS]))
    pixels, label = read_images(datasets.find("mnist", places=settings.data_places))
    assert np.array_equal(pixels, PIXELS.reshape(5, 4))
    assert label.tolist() == DIGITS.tolist()


def test_colour_images_become_a_table(tmp_path):
    colours = np.random.default_rng(1).integers(0, 256, (7, 4, 6, 3)).astype(np.uint8)
    path = tmp_path / "colours.parquet"
    path.write_bytes(images_parquet(colours, np.arange(7) % 3))
    reader = CohortReader(ParquetSource(kind="parquet", path=path))
    assert list(reader.header()) == [*pixel_names(4, 6, 3), "label"]
    assert np.array_equal(read_images(path)[0], colours.reshape(7, -1))


def test_another_content_is_refused(settings, folder, monkeypatch):
    path = folder / f"{IMAGES}.gz"
    good = path.read_bytes()
    for spoilt in (good[:-9], gzip.compress(b"other"), good.upper()):
        path.write_bytes(spoilt)
        with pytest.raises(InputError, match=f"DATA_CHANGED: file {IMAGES} has SHA-256"):
            datasets.find("mnist", places=settings.data_places)
    path.write_bytes(good)
    monkeypatch.setattr(datasets, "MAX_DOWNLOAD_BYTES", 10)  # a bomb is another content
    with pytest.raises(InputError, match="DATA_CHANGED"):
        datasets.find("mnist", places=settings.data_places)
    assert not settings.downloads.exists()


def test_a_download_is_verified_and_kept(settings, folder, monkeypatch):
    url = datasets.DATASETS["mnist"].url
    contents = {f"{url}{path.name}": path.read_bytes() for path in folder.iterdir()}
    for path in list(folder.iterdir()):
        path.unlink()
    asked, answers = [], {}
    monkeypatch.setattr(datasets, "get", lambda url: asked.append(url) or answers.get(url))
    with pytest.raises(
        InputError, match=r"DATA_UNAVAILABLE: .* put mnist/train-images-idx3-ubyte,"
    ):
        datasets.find("mnist", places=settings.data_places)
    assert asked == []  # offline
    online = settings.model_copy(update={"offline": False})
    for answer in (None, b"<html>", gzip.compress(b"other")):
        answers = {**contents, f"{url}{IMAGES}.gz": answer}
        with pytest.raises(InputError, match="DATA_UNAVAILABLE: dataset mnist could not be down"):
            datasets.find("mnist", places=online.data_places)
    assert not settings.downloads.exists()
    answers = contents
    asked.clear()
    for _ in range(2):
        assert datasets.find("mnist", places=online.data_places).is_relative_to(settings.downloads)
    assert asked == [f"{url}{IMAGES}.gz", f"{url}{LABELS}.gz"]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_published_files(name, tmp_path):
    if not (SHARED / name).is_dir():
        pytest.skip(f"no copy of {name} in CLUSTMIX_DATA_DIR")
    pixels, label = read_images(
        datasets.find(
            f"{name}_test",
            places=Settings(home=tmp_path, data_dir=SHARED, offline=True).data_places,
        )
    )
    assert pixels.shape == (10_000, 784)
    assert np.bincount(label).min() > 800
