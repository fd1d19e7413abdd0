"""Public images are found by name and checked by what is in the files."""

import gzip
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from privacy.errors import InputError
from storage.public_data import datasets, image_datasets
from storage.public_data.image_datasets import IMAGE_DATASETS, find_images
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from storage.sources.declared import IdxSource
from storage.sources.idx_files import read_idx

SHARED = datasets._SHARED_DATA
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def content_of(kind, *shape):
    axes = b"".join(length.to_bytes(4, "big") for length in shape)
    return bytes([0, 0, 8, kind]) + axes + bytes(np.prod(shape) * [1])


@pytest.fixture
def settings(settings, monkeypatch):
    """Settings with a small dataset in their data folder."""
    folder = settings.data_dir / "mnist"
    folder.mkdir(parents=True)
    contents = {IMAGES: content_of(3, 5, 2, 2), LABELS: content_of(1, 5)}
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    small = replace(IMAGE_DATASETS["mnist"], sha256=sha256)
    monkeypatch.setitem(image_datasets.IMAGE_DATASETS, "mnist", small)
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return settings


def test_files_are_found_and_read_however_they_were_compressed(settings):
    packed = settings.data_dir / "mnist" / f"{IMAGES}.gz"
    content = gzip.decompress(packed.read_bytes())
    for level in (1, 9, None):
        if level is None:
            packed.unlink()
            packed.with_suffix("").write_bytes(content)
        else:
            packed.write_bytes(gzip.compress(content, level, mtime=level))
        images, labels = find_images("mnist", "train", places=settings.data_places)
        assert (images.stem, labels.name) == (IMAGES, f"{LABELS}.gz")
        assert np.array_equal(read_idx(images), np.ones((5, 2, 2), np.uint8))
        reader = CohortReader(IdxSource(kind="idx", data="mnist"), places=settings.data_places)
        assert [frame.shape for frame in reader.chunks(["label", "pixel_01_01"])] == [(5, 2)]


def test_another_content_is_refused(settings, monkeypatch):
    path = settings.data_dir / "mnist" / f"{IMAGES}.gz"
    good = path.read_bytes()
    refused = f"DATA_CHANGED: expected the content of mnist/{IMAGES}"
    for spoilt in (good[:-9], gzip.compress(b"other"), good.upper()):
        path.write_bytes(spoilt)
        with pytest.raises(InputError, match=refused):
            find_images("mnist", "train", places=settings.data_places)
    path.write_bytes(good)
    monkeypatch.setattr(image_datasets, "MAX_IMAGE_BYTES", 10)  # a bomb is another content
    with pytest.raises(InputError, match=refused):
        find_images("mnist", "train", places=settings.data_places)


def served_once(monkeypatch, contents):
    """Answer requests from a mapping, once each, and return the addresses that were asked for."""
    asked = []

    def get(url):
        asked.append(url)
        return contents.pop(url, None)

    monkeypatch.setattr(datasets, "get", get)
    return asked


def test_a_download_is_verified_and_kept(settings, monkeypatch):
    folder, url = settings.data_dir / "mnist", IMAGE_DATASETS["mnist"].url
    contents = {f"{url}/{path.name}": path.read_bytes() for path in folder.iterdir()}
    for path in list(folder.iterdir()):
        path.unlink()
    asked = served_once(monkeypatch, contents)
    with pytest.raises(InputError, match="DATA_UNAVAILABLE"):
        find_images("mnist", "train", places=settings.data_places)
    assert asked == []  # offline
    online = settings.model_copy(update={"offline": False})
    for _ in range(2):
        images, labels = find_images("mnist", "train", places=online.data_places)
        assert images.is_relative_to(settings.downloads)
        assert len(read_idx(images)) == len(read_idx(labels)) == 5
    assert asked == [f"{url}/{IMAGES}.gz", f"{url}/{LABELS}.gz"]


def test_a_download_of_something_else_is_not_kept(settings, monkeypatch):
    (settings.data_dir / "mnist" / f"{IMAGES}.gz").unlink()
    online = settings.model_copy(update={"offline": False})
    for answer in (None, b"<html>", gzip.compress(b"other")):
        served_once(monkeypatch, {f"{IMAGE_DATASETS['mnist'].url}/{IMAGES}.gz": answer})
        with pytest.raises(InputError, match="DATA_UNAVAILABLE: dataset mnist is not on this mach"):
            find_images("mnist", "train", places=online.data_places)
        assert not settings.downloads.exists()


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", sorted(IMAGE_DATASETS))
def test_the_published_files(name, split):
    if not (SHARED / name).is_dir():
        pytest.skip(f"no copy of {name} beside the repository")
    images, labels = find_images(name, split, places=Settings(offline=True).data_places)
    n = {"train": 60_000, "test": 10_000}[split]
    assert read_idx(labels).shape == (n,)
    if split == "test":
        assert read_idx(images).shape == (n, 28, 28)
        assert np.bincount(read_idx(labels)).min() > 800
