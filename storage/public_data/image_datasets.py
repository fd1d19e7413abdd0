"""Public datasets of images: found by name, checked by the SHA-256 of what is in the files."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from privacy.errors import InputError
from storage.files.lists import listed
from storage.public_data import datasets
from storage.settings import DataPlaces, load_settings

MAX_IMAGE_BYTES = 60_000_000
"""More than any of the files holds when it is decompressed."""

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDataset:
    """Images that anybody may read, with their labels.

    The address is the folder of the compressed files; the digests decide. They are by the name of a
    file without ``.gz``, of its decompressed content: copies differ in how they were compressed.
    """

    name: str
    publisher: str
    url: str
    sha256: Mapping[str, str]


_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


IMAGE_DATASETS = {
    name: ImageDataset(name=name, **facts)
    for name, facts in listed(__package__, "images.toml").items()
}


def find_images(name: str, split: str, *, places: DataPlaces | None = None) -> tuple[Path, Path]:
    """Return the files of a public dataset of images.

    They are looked for where `storage.public_data.datasets.find` looks, compressed (``.gz``) or
    not. `split` is ``train`` or ``test``. The files are those of the images and of the labels, and
    their decompressed content is the publisher's; otherwise, and for an unknown name, InputError.
    """
    dataset = IMAGE_DATASETS.get(name)
    if dataset is None:
        raise InputError(
            "DATA_UNKNOWN",
            f"expected one of {', '.join(sorted(IMAGE_DATASETS))}; found {name[:80]!r}; "
            "give images and labels for a dataset of your own",
        )
    places = load_settings().data_places if places is None else places
    images, labels = (
        _find(dataset, file, places) for file in (_TRAIN if split == "train" else _TEST)
    )
    return images, labels


def _find(dataset: ImageDataset, file: str, places: DataPlaces) -> Path:
    for folder in (*datasets.data_folders(places), places.downloads):
        for path in (folder / dataset.name / f"{file}.gz", folder / dataset.name / file):
            if path.is_file():
                with path.open("rb") as raw:
                    found = _content_sha256(raw, compressed=path.suffix == ".gz")
                if found == dataset.sha256[file]:
                    return path
                raise InputError(
                    "DATA_CHANGED",
                    f"expected the content of {dataset.name}/{path.name} to have SHA-256 "
                    f"{dataset.sha256[file]} when decompressed, found another; replace it by the "
                    "published copy",
                )
    content = None if places.offline else datasets.get(f"{dataset.url}/{file}.gz")
    if content is not None:
        found = _content_sha256(io.BytesIO(content), compressed=True)
        if found == dataset.sha256[file]:
            return datasets.keep(content, places.downloads / dataset.name / f"{file}.gz")
    raise InputError(
        "DATA_UNAVAILABLE",
        f"dataset {dataset.name} is not on this machine and was not downloaded; put "
        f"{dataset.name}/{file}.gz of '{dataset.publisher}' into a folder and set "
        "CLUSTMIX_DATA_DIR to that folder",
    )


def _content_sha256(raw: IO[bytes], *, compressed: bool) -> str | None:
    """Return the digest of the decompressed content, or None if that is too long or damaged."""
    digest, n_bytes = hashlib.sha256(), 0
    content = gzip.GzipFile(fileobj=raw) if compressed else raw
    try:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
            n_bytes += len(block)
            if n_bytes > MAX_IMAGE_BYTES:
                return None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        return None
    return digest.hexdigest()
