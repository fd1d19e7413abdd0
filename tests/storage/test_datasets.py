import gzip
import hashlib
import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy.errors import InputError
from storage.public_data import datasets
from storage.public_data.datasets import DATASETS, PublicDataset, find
from storage.public_data.public_tables import DRUGS, ITEMS, items_of
from storage.schema.column_blocks import pixel_names
from storage.sources.cohorts import CohortReader
from storage.sources.declared import ParquetSource

COPIES = Path(os.environ.get("CLUSTMIX_DATA_DIR", "absent"))
PIXELS, DIGITS = np.arange(20, dtype=np.uint8).reshape(5, 2, 2), np.arange(5, dtype=np.uint8)


def copy_of(name, part=None):
    """Return a file of ``CLUSTMIX_DATA_DIR``; skip the test where it is absent."""
    path = COPIES / (DATASETS[name].relative_path if part is None else f"{name}/{part}")
    if not path.is_file():
        pytest.skip(f"no copy of {name} in CLUSTMIX_DATA_DIR")
    return path


def found(name, settings, *, offline=True):
    places = settings.model_copy(update={"offline": offline}).data_places
    return find(name, places=places)


def digest(content):
    return hashlib.sha256(content).hexdigest()


def idx(values):
    axes = b"".join(length.to_bytes(4, "big") for length in values.shape)
    return bytes([0, 0, 8, values.ndim]) + axes + values.tobytes()


def zipped(members):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


TABLE = b"a,b\n1,2\n"
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PUBLISHED = {"small": {"small.csv": TABLE}, "mnist": {IMAGES: idx(PIXELS), LABELS: idx(DIGITS)}}
"""Members of a dataset in a zip archive, and of one that is published in files."""
SMALL = PublicDataset(
    name="small",
    relative_path="small.csv",
    sha256=digest(TABLE),
    publisher="nobody",
    url="https://example.org/small.zip",
    build=lambda members: members["small.csv"],
)


class Web:
    def __init__(self):
        self.asked, self.answers = [], {}

    def get(self, url):
        self.asked.append(url)
        return self.answers.get(url)


@pytest.fixture
def web(monkeypatch):
    web = Web()
    for name, declared in (("small", SMALL), ("mnist", DATASETS["mnist"])):
        members = {member: digest(content) for member, content in PUBLISHED[name].items()}
        monkeypatch.setitem(datasets.DATASETS, name, replace(declared, members=members))
        for member, content in PUBLISHED[name].items():
            web.answers[f"{declared.url}{member}.gz"] = gzip.compress(content)
    web.answers[SMALL.url] = zipped({"folder/small.csv": TABLE, "other": b"x"})
    monkeypatch.setattr(datasets, "get", web.get)
    return web


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_download_is_verified_and_kept(web, settings, name):
    with pytest.raises(InputError, match=r"DATA_UNAVAILABLE: .*CLUSTMIX_DATA_DIR.*OFFLINE"):
        found(name, settings)
    assert web.asked == []
    path = found(name, settings, offline=False)
    assert path.is_relative_to(settings.downloads)
    asked = len(web.asked)
    assert asked == len(PUBLISHED[name])
    assert found(name, settings, offline=False) == found(name, settings) == path
    assert len(web.asked) == asked
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "url", "answer"),
    [
        ("small", SMALL.url, zipped({"small.csv": b"a,b\n1,3\n"})),
        ("small", SMALL.url, zipped({"small.csv": TABLE})[:-20]),
        ("small", SMALL.url, b"<html>not found</html>"),
        ("small", SMALL.url, None),
        ("mnist", f"{DATASETS['mnist'].url}{IMAGES}.gz", gzip.compress(b"other", mtime=0)),
    ],
)
def test_a_wrong_download_is_refused_and_leaves_nothing(web, settings, name, url, answer):
    web.answers[url] = answer
    with pytest.raises(InputError, match=f"DATA_UNAVAILABLE: dataset {name} could not be downl"):
        found(name, settings, offline=False)
    assert not settings.downloads.exists()


def test_a_bomb_is_another_content(web, settings, monkeypatch):
    monkeypatch.setattr(datasets, "MAX_DOWNLOAD_BYTES", 5)
    for name in PUBLISHED:
        with pytest.raises(InputError, match="DATA_UNAVAILABLE"):
            found(name, settings, offline=False)


def test_only_https_leaves_this_machine_and_an_answer_is_bounded(monkeypatch):
    monkeypatch.setattr(datasets, "MAX_DOWNLOAD_BYTES", 3)
    for content, answer in ((b"abc", b"abc"), (b"abcd", None)):
        monkeypatch.setattr(
            datasets.urllib.request, "urlopen", lambda *_, body=content, **__: io.BytesIO(body)
        )
        assert datasets.get("https://example.org") == answer
    for url in ("file:///etc", "ftp://127.0.0.1", "http://example.org"):
        with pytest.raises(InputError, match="DATA_URL: expected an https address, found"):
            datasets.get(url)


@pytest.mark.parametrize("plain", [False, True])
def test_copies_in_the_data_folder_are_taken_and_compared(web, settings, plain):
    folder = settings.data_dir / "mnist"
    folder.mkdir(parents=True)
    copy = settings.data_dir / "small.csv"
    copy.write_bytes(TABLE)
    for name, content in PUBLISHED["mnist"].items():
        path = folder / (name if plain else f"{name}.gz")
        path.write_bytes(content if plain else gzip.compress(content))
    assert found("small", settings) == copy
    reader = CohortReader(ParquetSource(kind="parquet", data="mnist"), places=settings.data_places)
    names = [*pixel_names(2, 2), "label"]
    assert list(reader.header()) == names
    (frame,) = reader.chunks(names)
    assert np.array_equal(frame.to_numpy(), np.column_stack([PIXELS.reshape(5, 4), DIGITS]))
    found("mnist", settings).unlink()
    for name, path in (("small", copy), ("mnist", next(folder.glob(f"{LABELS}*")))):
        path.write_bytes(path.read_bytes()[:-3] + b"x")
        with pytest.raises(InputError, match=r"DATA_CHANGED: file \S+ has SHA-256 .*, expected"):
            found(name, settings)


def test_names_that_nobody_publishes(settings):
    with pytest.raises(InputError, match="DATA_UNKNOWN: expected one of adult, arrhythmia, bank"):
        found("../adult", settings)
    with pytest.raises(InputError, match=r"put physionet2012/icu_stays_wide\.parquet of"):
        found("physionet2012", settings)


# --- the published files, where `CLUSTMIX_DATA_DIR` has copies


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_shared_copies_have_the_registered_digest(name, settings):
    copy = copy_of(name)
    assert found(name, settings.model_copy(update={"data_dir": COPIES})) == copy


# --- the item sets of Diabetes-130, which follow public rules, one encounter at a time


def encounters(**changes):
    table = dict.fromkeys(DRUGS, ["No"] * 3) | {f"diag_{i}": ["?"] * 3 for i in (1, 2, 3)}
    table |= {"patient_nbr": [8, 9, 8], "readmitted": ["NO", "<30", ">30"]}
    return pd.DataFrame({**table, **changes})


def test_rules_of_items():
    frame = items_of(
        encounters(
            insulin=["Up", "No", "Steady"],
            diag_1=["250.83", "V57", "?"],
            diag_2=["250", "E885", "8"],
            diag_3=["428", "1000", "x"],
        )
    )
    assert list(frame.columns) == ["patient_nbr", *ITEMS, "readmitted"]
    assert frame["patient_nbr"].tolist() == [8, 9, 8]
    assert frame["readmitted"].tolist() == ["NO", "<30", ">30"]
    assert [{name for name in ITEMS if row[name]} for _, row in frame.iterrows()] == [
        {"insulin", "diag-diabetes", "diag-other-heart"},
        {"diag-health-factors-V", "diag-external-causes-E"},
        {"insulin", "diag-intestinal-infections"},
    ]
