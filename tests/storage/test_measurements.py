import hashlib
import multiprocessing
import stat

import numpy as np
import pytest

from privacy.errors import IntegrityError
from storage.releases import measurements
from storage.settings import installation_id

RELEASE = "r-20260101-00000001"
ARRAYS = {"moments": np.arange(6.0).reshape(2, 3), "codes": np.array([1, 2], dtype=np.uint16)}


def files():
    return {
        "sealed-counts.npz": measurements.arrays_to_bytes({"values": np.arange(4)}),
        measurements.RELEASED_FILE: measurements.arrays_to_bytes(ARRAYS),
    }


def record(**changes):
    values = {
        "dataset": "wards",
        "release_id": RELEASE,
        "ledger_entry": "e-1",
        "request_key": "0" * 64,
        "site": {"dataset": "wards"},
        "events": ({"kind": "discrete_gaussian"},),
        "tainted": False,
        "requester": None,
        "code_version": "1",
        "vocabulary": {
            "columns": [{"names": ["age"], "codes": ["[0, 50)", "[50, 99]"]}],
            "label": {"names": ["died"], "codes": ["yes", "no"]},
        },
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files().items()},
    }
    return measurements.MeasurementRecord(**{**values, **changes})


@pytest.fixture
def store(tmp_path):
    return measurements.MeasurementStore(tmp_path / "measurements")


def test_measurement_is_read_as_it_was_sealed(store, tmp_path):
    digest = store.seal(record(), files())
    measurement = store.open(RELEASE, expected_sha256=digest)
    assert measurement.record == record()
    assert measurement.sha256 == digest
    assert measurement.released.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(measurement.released[name], array)
        assert measurement.released[name].dtype == array.dtype
    with pytest.raises(ValueError, match="allow_pickle=False"):
        measurements.arrays_to_bytes({"objects": np.array([{}], dtype=object)})
    folder = tmp_path / "measurements" / RELEASE
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_measurement_is_never_replaced(store):
    digest = store.seal(record(), files())
    with pytest.raises(IntegrityError, match=f"ALREADY_WRITTEN: folder {RELEASE} is already"):
        store.seal(record(tainted=True), files())
    assert store.open(RELEASE).sha256 == digest


def test_missing_changed_and_foreign_measurements(store, tmp_path):
    other = "r-20260101-00000002"
    with pytest.raises(IntegrityError, match=f"_DAMAGED: .* of {other} is missing or unreadable"):
        store.open(other)
    digest = store.seal(record(), files())
    with pytest.raises(IntegrityError, match=f"_DAMAGED: .* of {RELEASE} is not the one in the l"):
        store.open(RELEASE, expected_sha256="f" * 64)
    folder = tmp_path / "measurements" / RELEASE
    for name, content in files().items():
        (folder / name).write_bytes(content[:-1] + b"\1")
        changed = f"_DAMAGED: .* of {RELEASE} is changed in file {name}"
        with pytest.raises(IntegrityError, match=changed):
            store.open(RELEASE)
        (folder / name).write_bytes(content)
    folder.rename(folder.with_name(other))
    with pytest.raises(IntegrityError, match="not the one in the ledger"):
        store.open(other, expected_sha256=digest)


def test_installation_has_one_id_for_processes_that_start_together(tmp_path):
    home = tmp_path / "home"
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        [first] = set(pool.map(installation_id, [home] * 16))
    assert installation_id(home) == first
    assert installation_id(tmp_path / "other") != first
    assert [path.name for path in home.iterdir()] == ["installation"]
    (home / "installation").write_text("../../elsewhere")
    with pytest.raises(IntegrityError, match=f"INSTALLATION_INVALID: .* {home / 'installation'}"):
        installation_id(home)
    assert (home / "installation").exists()
