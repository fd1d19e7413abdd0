"""The item sets of Diabetes-130 follow public rules, one encounter at a time."""

import hashlib
from dataclasses import replace

import pandas as pd
import pytest

from privacy.errors import InputError
from storage.settings import Settings
from storage.sources import datasets
from storage.sources.datasets import DATASETS, find
from storage.sources.diabetes_items import DRUGS, ITEMS, items_of, items_parquet, items_sha256

SHARED = datasets._SHARED_DATA


def encounters(**changes):
    """Three encounters without any item but those of `changes`."""
    table = dict.fromkeys(DRUGS, ["No"] * 3) | {f"diag_{i}": ["?"] * 3 for i in (1, 2, 3)}
    table |= {"patient_nbr": [8, 9, 8], "readmitted": ["NO", "<30", ">30"]}
    return pd.DataFrame({**table, **changes})


def items_by_row(frame):
    return [{name for name in ITEMS if row[name]} for _, row in frame.iterrows()]


def test_rules():
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
    assert items_by_row(frame) == [
        {"insulin", "diag-diabetes", "diag-other-heart"},
        {"diag-health-factors-V", "diag-external-causes-E"},
        {"insulin", "diag-intestinal-infections"},
    ]


@pytest.fixture
def settings(settings, monkeypatch):
    """Settings with a small table as the published one, and its derived table."""
    path = settings.data_dir / DATASETS["diabetes130"].relative_path
    path.parent.mkdir(parents=True)
    encounters(insulin=["Up", "No", "No"]).to_parquet(path, index=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    small = replace(DATASETS["diabetes130"], sha256=digest)
    monkeypatch.setitem(datasets.DATASETS, "diabetes130", small)
    derived = items_sha256(items_parquet(path.read_bytes()))
    monkeypatch.setattr(datasets, "_ITEMS_SHA256", derived)
    return settings


def test_the_table_is_made_once_and_again_if_it_is_damaged(settings, monkeypatch):
    path = find("diabetes130_items", settings=settings)
    assert path.is_relative_to(settings.downloads)
    assert pd.read_parquet(path)["insulin"].tolist() == [1, 0, 0]
    made = path.stat().st_mtime_ns
    assert find("diabetes130_items", settings=settings).stat().st_mtime_ns == made
    for damage in (b"", b"PAR1", path.read_bytes()[:-30]):
        path.write_bytes(damage)
        assert pd.read_parquet(find("diabetes130_items", settings=settings)).shape == (3, 95)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    path.unlink()
    monkeypatch.setattr(datasets, "_ITEMS_SHA256", "0" * 64)
    with pytest.raises(InputError, match="DATA_CHANGED: dataset diabetes130_items made of diabete"):
        find("diabetes130_items", settings=settings)


def test_the_published_table(tmp_path):
    if not (SHARED / DATASETS["diabetes130"].relative_path).is_file():
        pytest.skip("no copy of diabetes130 beside the repository")
    path = find("diabetes130_items", settings=Settings(home=tmp_path, offline=True))
    table = pd.read_parquet(path)
    assert table.shape == (101_766, 95)
    assert table["patient_nbr"].nunique() == 71_518
    assert (table["readmitted"] == "<30").sum() == 11_357
    assert table[list(ITEMS)].isin([0, 1]).all(axis=None)
