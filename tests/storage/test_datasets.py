import csv
import gzip
import hashlib
import http.server
import io
import os
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from privacy.errors import InputError
from storage.public_data import datasets
from storage.public_data.datasets import DATASETS, PublicDataset, find
from storage.public_data.diabetes_items import DRUGS, ITEMS, items_of, items_parquet, items_sha256
from storage.settings import Settings

COPIES = Path(os.environ.get("CLUSTMIX_DATA_DIR", "absent"))


def copy_of(name, part=None):
    """Return a file of ``CLUSTMIX_DATA_DIR``; skip the test where it is absent."""
    path = COPIES / (DATASETS[name].relative_path if part is None else f"{name}/{part}")
    if not path.is_file():
        pytest.skip(f"no copy of {name} in CLUSTMIX_DATA_DIR")
    return path


@pytest.fixture
def online(settings):
    return settings.model_copy(update={"offline": False})


def zipped(members):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


@contextmanager
def served(answers):
    """Serve bytes by path on a free loopback port and count the requests."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def small_dataset(url, content=b"a,b\n1,2\n"):
    return PublicDataset(
        name="small",
        relative_path="small.csv",
        sha256=hashlib.sha256(content).hexdigest(),
        publisher="nobody",
        url=f"{url}/small.zip",
        members={"small.csv": hashlib.sha256(content).hexdigest()},
        build=lambda members: members["small.csv"],
    )


def test_a_file_of_the_data_folder_is_taken_and_compared(settings, monkeypatch):
    monkeypatch.setitem(datasets.DATASETS, "small", small_dataset("http://127.0.0.1:9"))
    settings.data_dir.mkdir()
    copy = settings.data_dir / "small.csv"
    copy.write_bytes(b"a,b\n1,2\n")
    assert find("small", places=settings.data_places) == copy
    copy.write_bytes(b"a,b\n1,3\n")
    with pytest.raises(InputError, match=r"DATA_CHANGED: file small\.csv has SHA-256 .*, expected"):
        find("small", places=settings.data_places)


def test_unknown_and_unavailable_names(settings):
    with pytest.raises(InputError, match="DATA_UNKNOWN: expected one of adult, arrhythmia, bank"):
        find("../adult", places=settings.data_places)
    with pytest.raises(InputError, match=r"DATA_UNAVAILABLE: .*CLUSTMIX_DATA_DIR.*OFFLINE"):
        find("adult", places=settings.data_places)
    with pytest.raises(InputError, match=r"put physionet2012/icu_stays_wide\.parquet of"):
        find("physionet2012", places=settings.data_places)


def test_download_is_verified_and_kept(settings, online, tmp_path, monkeypatch):
    archive = zipped({"folder/small.csv": b"a,b\n1,2\n", "other": b"x"})
    with served({"/small.zip": archive}) as (url, requests):
        monkeypatch.setitem(datasets.DATASETS, "small", small_dataset(url))
        path = find("small", places=online.data_places)
        assert path == tmp_path / "home" / "data" / "small" / "small.csv"
        assert path.read_bytes() == b"a,b\n1,2\n"
        assert find("small", places=settings.data_places) == path
        assert requests == ["/small.zip"]
    assert [entry.name for entry in path.parent.iterdir()] == ["small.csv"]


GOOD = zipped({"small.csv": b"a,b\n1,2\n"})


@pytest.mark.parametrize(
    ("archive", "most_bytes"),
    [
        (zipped({"small.csv": b"a,b\n1,3\n"}), 10_000),
        (zipped({"another.csv": b"a,b\n1,2\n"}), 10_000),
        (GOOD[:-20], 10_000),
        (b"<html>not found</html>", 10_000),
        (b"", 10_000),
        (GOOD, 50),
    ],
)
def test_wrong_download_is_refused_and_leaves_nothing(online, monkeypatch, archive, most_bytes):
    monkeypatch.setattr(datasets, "MAX_DOWNLOAD_BYTES", most_bytes)
    with served({"/small.zip": archive}) as (url, _requests):
        monkeypatch.setitem(datasets.DATASETS, "small", small_dataset(url))
        with pytest.raises(InputError, match="DATA_UNAVAILABLE: dataset small could not be down"):
            find("small", places=online.data_places)
    assert not online.downloads.exists()


def test_only_https_leaves_this_machine():
    for url in ("file:///etc", "ftp://127.0.0.1", "http://example.org"):
        with pytest.raises(InputError, match="DATA_URL: expected an https address, found"):
            datasets.get(url)


def test_adult_is_rebuilt_from_the_publisher_s_files():
    copy = gzip.decompress(copy_of("adult").read_bytes())
    rows = list(csv.reader(io.StringIO(copy.decode("ascii"))))[1:]
    lines = {
        split: [", ".join(row[:-1]) for row in rows if row[-1] == split]
        for split in ("train", "test")
    }
    members = {
        "adult.data": "\n".join([*lines["train"], "", ""]).encode(),
        "adult.test": "\n".join(
            ["|1x3 Cross validator", *(f"{line}." for line in lines["test"]), "", ""]
        ).encode(),
    }
    # The files made here are the publisher's, so the builder is tested on the real input.
    adult = DATASETS["adult"]
    for name, content in members.items():
        assert hashlib.sha256(content).hexdigest() == adult.members[name]
    assert adult.build(members) == copy


def test_diabetes_is_rebuilt_from_the_publisher_s_file():
    copy = pd.read_parquet(copy_of("diabetes130"))
    content = copy.to_csv(index=False, lineterminator="\r\n").encode()
    diabetes = DATASETS["diabetes130"]
    assert hashlib.sha256(content).hexdigest() == diabetes.members["diabetic_data.csv"]
    built = pd.read_parquet(io.BytesIO(diabetes.build({"diabetic_data.csv": content})))
    pd.testing.assert_frame_equal(built, copy)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_shared_copies_have_the_registered_digest(name, settings):
    copy = copy_of(name)
    assert find(name, places=settings.model_copy(update={"data_dir": COPIES}).data_places) == copy


def test_table_of_several_files_is_made_of_them_and_kept(settings, tmp_path, monkeypatch):
    folder, parts = tmp_path / "data" / "joined", {"a": b"x\n1\n", "b": b"2\n"}
    joined = PublicDataset(
        name="joined", relative_path="joined/whole.csv", publisher="nobody",
        sha256=hashlib.sha256(b"x\n1\n2\n").hexdigest(),
        build=lambda found: b"".join(found.values()),
        members={name: hashlib.sha256(content).hexdigest() for name, content in parts.items()},
    )  # fmt: skip
    monkeypatch.setitem(datasets.DATASETS, "joined", joined)
    with pytest.raises(InputError, match=r"DATA_UNAVAILABLE: .*put joined/a, joined/b of"):
        find("joined", places=settings.data_places)
    folder.mkdir(parents=True)
    for name, content in parts.items():
        (folder / name).write_bytes(content)
    path = find("joined", places=settings.data_places)
    assert path == settings.downloads / "joined" / "whole.csv"
    path.write_bytes(b"made by an older rule")
    assert find("joined", places=settings.data_places).read_bytes() == b"x\n1\n2\n"
    path.unlink()
    (folder / "b").write_bytes(b"3\n")
    with pytest.raises(InputError, match="DATA_CHANGED: file b has SHA-256"):
        find("joined", places=settings.data_places)


@pytest.mark.parametrize(("name", "rows"), [("heart_disease_uci", 920), ("nafld", 17_549)])
def test_joined_tables_are_the_registered_ones(name, rows, settings):
    for part in DATASETS[name].members:
        copy_of(name, part)
    made = find(name, places=settings.model_copy(update={"data_dir": COPIES}).data_places)
    assert len(pd.read_csv(made)) == rows


# --- the item sets of Diabetes-130, which follow public rules, one encounter at a time


def encounters(**changes):
    """Three encounters without any item but those of `changes`."""
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


def test_items_are_derived_once_and_again_if_they_are_damaged(settings, monkeypatch):
    path = settings.data_dir / DATASETS["diabetes130"].relative_path
    path.parent.mkdir(parents=True)
    encounters(insulin=["Up", "No", "No"]).to_parquet(path, index=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    small = replace(DATASETS["diabetes130"], sha256=digest)
    monkeypatch.setitem(datasets.DATASETS, "diabetes130", small)
    derived = items_sha256(items_parquet(path.read_bytes()))
    monkeypatch.setattr(datasets, "_ITEMS_SHA256", derived)
    path = find("diabetes130_items", places=settings.data_places)
    assert path.is_relative_to(settings.downloads)
    assert pd.read_parquet(path)["insulin"].tolist() == [1, 0, 0]
    made = path.stat().st_mtime_ns
    assert find("diabetes130_items", places=settings.data_places).stat().st_mtime_ns == made
    for damage in (b"", b"PAR1", path.read_bytes()[:-30]):
        path.write_bytes(damage)
        assert pd.read_parquet(find("diabetes130_items", places=settings.data_places)).shape == (
            3,
            95,
        )
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    path.unlink()
    monkeypatch.setattr(datasets, "_ITEMS_SHA256", "0" * 64)
    with pytest.raises(InputError, match="DATA_CHANGED: dataset diabetes130_items made of diabete"):
        find("diabetes130_items", places=settings.data_places)


def test_items_of_the_published_table(tmp_path):
    copy_of("diabetes130")
    path = find("diabetes130_items", places=Settings(home=tmp_path, offline=True).data_places)
    table = pd.read_parquet(path)
    assert table.shape == (101_766, 95)
    assert table["patient_nbr"].nunique() == 71_518
    assert (table["readmitted"] == "<30").sum() == 11_357
    assert table[list(ITEMS)].isin([0, 1]).all(axis=None)
