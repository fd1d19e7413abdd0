"""Public datasets for examples and benchmarks: found by name, checked by SHA-256."""

import csv
import hashlib
import http.client
import io
import os
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from privacy.errors import InputError
from storage.files.private import ensure_private_directory
from storage.settings import Settings, load_settings
from storage.sources.diabetes_items import items_parquet, items_sha256

MAX_DOWNLOAD_BYTES = 200_000_000
DOWNLOAD_TIMEOUT_SECONDS = 60.0
_SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicDataset:
    """A dataset that anybody may read.

    Attributes
    ----------
    relative_path : str
        Path under the data folder.
    sha256 : str
        SHA-256 of the file at that path.
    url : str or None
        Address of the publisher's zip archive; None if there is none of which the file can be made.
    members : mapping of str to str
        SHA-256 of each needed archive member by its file name.
    build : callable
        From the verified members to the bytes of the file, not compressed.
    """

    name: str
    relative_path: str
    sha256: str
    publisher: str
    url: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    build: Callable[[Mapping[str, bytes]], bytes] | None = None

    @property
    def file_name(self) -> str:
        """Name of the file that `build` makes."""
        return Path(self.relative_path).name.removesuffix(".gz")


_ADULT_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income split"
).split()


def _build_adult(members: Mapping[str, bytes]) -> bytes:
    """Join the two parts: header and `split` added, blanks and the test labels' dot removed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_ADULT_COLUMNS)
    for member, split in (("adult.data", "train"), ("adult.test", "test")):
        for line in members[member].decode("ascii").splitlines():
            if line and not line.startswith("|"):
                cells = [cell.strip() for cell in line.split(",")]
                cells[-1] = cells[-1].removesuffix(".")
                writer.writerow([*cells, split])
    return text.getvalue().encode("ascii")


def _build_diabetes130(members: Mapping[str, bytes]) -> bytes:
    """Convert to Parquet; the missing code '?' and the category 'None' stay text."""
    frame = pd.read_csv(
        io.BytesIO(members["diabetic_data.csv"]), keep_default_na=False, low_memory=False
    )
    target = io.BytesIO()
    frame.to_parquet(target, index=False)
    return target.getvalue()


DATASETS: Mapping[str, PublicDataset] = {
    dataset.name: dataset
    for dataset in (
        PublicDataset(
            name="adult",
            relative_path="adult.csv.gz",
            sha256="9653a39fc84ab1a35bd443daad61a6c7294ef9eac5b7b14601e36937915e3836",
            publisher="UCI Machine Learning Repository, dataset 2 (Becker and Kohavi, 1996)",
            url="https://archive.ics.uci.edu/static/public/2/adult.zip",
            members={
                "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            },
            build=_build_adult,
        ),
        PublicDataset(
            name="diabetes130",
            relative_path="diabetes130/diabetic_data.parquet",
            sha256="0135da936664f4ce71c6924aadc37d80d4366fa74570659e5787b668d988ccf3",
            publisher="UCI Machine Learning Repository, dataset 296 (Strack et al., 2014)",
            url="https://archive.ics.uci.edu/static/public/296/"
            "diabetes+130-us+hospitals+for+years+1999-2008.zip",
            members={
                "diabetic_data.csv": (
                    "0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97"
                ),
            },
            build=_build_diabetes130,
        ),
        PublicDataset(
            name="physionet2012",
            relative_path="physionet2012/icu_stays_wide.parquet",
            sha256="6ccbed33b634f8193f842163636838cd7ec43569d8e993cf314f7f2cc95b6553",
            publisher="PhysioNet/CinC Challenge 2012, one row per stay (Silva et al., 2012)",
        ),
    )
}


ITEMS = "diabetes130_items"
"""Name of the table of items that is made of the dataset diabetes130, by public rules."""

_ITEMS_FILE = "diabetic_items.parquet"
_ITEMS_SHA256 = "0127a967279020e85f41a546c9981997f9a7619d15cd05008705c96c969a1aa2"


def find(name: str, *, settings: Settings | None = None) -> Path:
    """Return the file of a public dataset.

    The places are tried in this order: the folder of ``CLUSTMIX_DATA_DIR``; the folder
    ``shared/data`` beside the repository; an earlier download; the publisher. `ITEMS` is made of
    its origin and kept among the downloads.

    Returns
    -------
    Path
        A file whose content is the publisher's: its SHA-256, or that of the archive members it
        was built from, has been compared.

    Raises
    ------
    InputError
        If the name is unknown, a file differs from the publisher's, or the dataset cannot be had.
    """
    settings = load_settings() if settings is None else settings
    if name == ITEMS:
        return _find_items(settings)
    dataset = DATASETS.get(name)
    if dataset is None:
        raise InputError(
            "DATA_UNKNOWN",
            f"expected one of {', '.join(table_names())}; found {name[:80]!r}; "
            "give a path for a dataset of your own",
        )
    for folder in data_folders(settings):
        path = folder / dataset.relative_path
        if path.is_file():
            _check_file(path, dataset)
            return path
    target = settings.downloads / dataset.name / dataset.file_name
    if target.is_file():
        return target
    if dataset.url is not None and dataset.build is not None and not settings.offline:
        return keep(dataset.build(_fetch(dataset, dataset.url)), target)
    raise InputError(
        "DATA_UNAVAILABLE",
        f"dataset {name} is not on this machine; put {dataset.relative_path} of "
        f"'{dataset.publisher}' into a folder and set CLUSTMIX_DATA_DIR to that folder"
        + ("" if dataset.url is None else ", or unset CLUSTMIX_OFFLINE"),
    )


def table_names() -> list[str]:
    """Return the names that `find` knows, sorted."""
    return sorted([*DATASETS, ITEMS])


def data_folders(settings: Settings) -> list[Path]:
    """Return the folders where public datasets are looked for, the first one first."""
    return [_SHARED_DATA] if settings.data_dir is None else [settings.data_dir, _SHARED_DATA]


def _fetch(dataset: PublicDataset, url: str) -> dict[str, bytes]:
    """Download the archive of a dataset and return its members, compared with their SHA-256."""
    archive = get(url)
    members = None if archive is None else _verified_members(archive, dataset.members)
    if members is None:
        raise InputError(
            "DATA_UNAVAILABLE",
            f"dataset {dataset.name} could not be downloaded from {url} with the expected SHA-256; "
            f"get it by hand, put {dataset.relative_path} into a folder and set CLUSTMIX_DATA_DIR "
            "to that folder",
        )
    return members


def _find_items(settings: Settings) -> Path:
    """Return the file of the table of items; make it if it is absent, or not what it should be."""
    target = settings.downloads / ITEMS / _ITEMS_FILE
    with suppress(OSError, ValueError, TypeError):  # pyarrow's errors are among these
        if items_sha256(target.read_bytes()) == _ITEMS_SHA256:
            return target
    content = items_parquet(find("diabetes130", settings=settings).read_bytes())
    if items_sha256(content) != _ITEMS_SHA256:
        raise InputError(
            "DATA_CHANGED",
            f"dataset {ITEMS} made of diabetes130 is not the expected table; use the library "
            "versions of the lock file",
        )
    return keep(content, target)


def keep(content: bytes, target: Path) -> Path:
    """Write a file that appears complete or not at all, and return its place."""
    ensure_private_directory(target.parent)
    staged = target.with_name(f"{target.name}.{os.urandom(8).hex()}")
    try:
        staged.write_bytes(content)
        os.replace(staged, target)
    finally:
        staged.unlink(missing_ok=True)
    return target


def _check_file(path: Path, dataset: PublicDataset) -> None:
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != dataset.sha256:
        raise InputError(
            "DATA_CHANGED",
            f"file {dataset.relative_path} has SHA-256 {found}, expected {dataset.sha256}; "
            "replace it by the published copy",
        )


def get(url: str) -> bytes | None:
    """Return what is at an https address, or None if it cannot be had or is too long."""
    parts = urllib.parse.urlsplit(url)
    # Plain http is allowed for this machine alone. The checksum decides in every case.
    if parts.scheme != "https" and not (
        parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost"}
    ):
        raise InputError("DATA_URL", f"expected an https address, found {url}")
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:  # noqa: S310
            content: bytes = response.read(MAX_DOWNLOAD_BYTES + 1)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
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
                    if hashlib.sha256(content).hexdigest() == expected[name]:
                        found[name] = content
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError):
        return None
    return found if found.keys() == expected.keys() else None
