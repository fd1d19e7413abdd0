"""Public datasets for examples and benchmarks: found by name, checked by SHA-256."""

import gzip
import hashlib
import http.client
import io
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from privacy.errors import refusals
from storage.files.private import ensure_private_directory
from storage.files.workspace import replaced
from storage.public_data.public_tables import DATASETS, PublicDataset
from storage.settings import DataPlaces, load_settings

refusal = refusals(__package__)
MAX_DOWNLOAD_BYTES = 200_000_000
DOWNLOAD_TIMEOUT_SECONDS = 60.0


def find(name: str, *, places: DataPlaces | None = None) -> Path:
    """Return the file of a public dataset.

    The places are tried in this order: the folder of ``CLUSTMIX_DATA_DIR``; an earlier download;
    the publisher. A file that is made of published ones is kept among the downloads. The SHA-256 of
    the file, or of each member it was built from, has been compared with that of the publisher. It
    is an InputError if the name is unknown, a file differs, or none is available.
    """
    places = load_settings().data_places if places is None else places
    dataset = DATASETS.get(name)
    if dataset is None:
        raise refusal("DATA_UNKNOWN", known=", ".join(sorted(DATASETS)), found=name[:80])
    for folder in data_folders(places):
        path = folder / dataset.relative_path
        if dataset.sha256 is not None and path.is_file():
            _check_digest(dataset.relative_path, _digest(path.read_bytes()), dataset.sha256)
            return path
    target = places.downloads / dataset.name / dataset.file_name
    if target.is_file():
        return target
    if dataset.build is not None:
        members = None if places.data_dir is None else _members_beside(dataset, places.data_dir)
        if dataset.of is not None:
            members = {dataset.of: find(dataset.of, places=places).read_bytes()}
        elif members is None and dataset.url is not None and not places.offline:
            members = _fetch(dataset, dataset.url)
        if members is not None:
            return keep(dataset.build(members), target)
    online = "" if dataset.url is None else ", or unset CLUSTMIX_OFFLINE"
    wanted = f"{_wanted(dataset)} of '{dataset.publisher}'"
    raise refusal("DATA_UNAVAILABLE", name=name, wanted=wanted, online=online)


def data_folders(places: DataPlaces) -> list[Path]:
    """Return the folders where a user keeps copies of public datasets: one, or none."""
    return [] if places.data_dir is None else [places.data_dir]


def _fetch(dataset: PublicDataset, url: str) -> dict[str, bytes]:
    """Download the members of a dataset and compare them with their SHA-256."""
    members: dict[str, bytes] | None = None
    if not url.endswith("/"):
        archive = get(url)
        members = None if archive is None else _verified_members(archive, dataset.members)
    else:
        packed = {name: get(f"{url}{name}.gz") for name in dataset.members}
        found = {name: _unpacked(content) for name, content in packed.items() if content}
        if all(_digest(found.get(name)) == sha256 for name, sha256 in dataset.members.items()):
            members = found
    if members is None:
        files = _wanted(dataset)
        raise refusal("DATA_UNAVAILABLE download", name=dataset.name, url=url, files=files)
    return members


def _unpacked(content: bytes) -> bytes:
    """Return at most `MAX_DOWNLOAD_BYTES` of decompressed content; nothing if it is damaged."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
            return unpacked.read(MAX_DOWNLOAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


def _digest(content: bytes | None) -> str:
    return hashlib.sha256(content or b"").hexdigest()


def _wanted(dataset: PublicDataset) -> str:
    """Name the files that a person can put into a data folder."""
    if dataset.build is None or (dataset.url is not None and dataset.sha256 is not None):
        return dataset.relative_path
    folder = Path(dataset.relative_path).parent
    return ", ".join(str(folder / name) for name in dataset.members)


def _members_beside(dataset: PublicDataset, folder: Path) -> dict[str, bytes] | None:
    """Read the published files, plain or ``.gz``, from a folder; None unless it has them all."""
    place = (folder / dataset.relative_path).parent
    found: dict[str, bytes] = {}
    for name, expected in dataset.members.items():
        packed = place / f"{name}.gz"
        if packed.is_file():
            found[name] = _unpacked(packed.read_bytes())
        elif (place / name).is_file():
            found[name] = (place / name).read_bytes()
        else:
            return None
        _check_digest(name, _digest(found[name]), expected)
    return found


def keep(content: bytes, target: Path) -> Path:
    """Write a file atomically and return its path."""
    ensure_private_directory(target.parent)
    with replaced(target) as handle:
        handle.write(content)
    return target


def _check_digest(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise refusal("DATA_CHANGED", name=name, found=found, expected=expected)


def get(url: str) -> bytes | None:
    """Return the content of an https address; None if it is unavailable or too long."""
    parts = urllib.parse.urlsplit(url)
    # Plain http is allowed on this machine alone; the checksum decides in every case.
    if parts.scheme != "https" and not (
        parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost"}
    ):
        raise refusal("DATA_URL", url=url)
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:  # noqa: S310
            content: bytes = response.read(MAX_DOWNLOAD_BYTES + 1)
    except (http.client.HTTPException, OSError):
        return None
    return content if len(content) <= MAX_DOWNLOAD_BYTES else None


def _verified_members(archive: bytes, expected: Mapping[str, str]) -> dict[str, bytes] | None:
    """Return the expected members, found by their file names; None if one is absent or differs."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as unpacked:
            for member in unpacked.infolist():
                name = member.filename.rsplit("/", 1)[-1]
                if name in expected and member.file_size <= MAX_DOWNLOAD_BYTES:
                    content = unpacked.read(member)
                    if _digest(content) == expected[name]:
                        found[name] = content
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError):
        return None
    return found if found.keys() == expected.keys() else None
