import os
import pickle
import stat
import zipfile

import numpy as np
import pytest

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.workspace import (
    PrivateWorkspace,
    live_run_ids,
    load_arrays,
    purge_abandoned,
    store_arrays,
)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "private"


def test_everything_is_closed_to_others_and_purged_at_the_end(root):
    with PrivateWorkspace.create(root, "run-1") as workspace:
        store_arrays(workspace.path("shard-0001.npz"), codes=np.arange(3))
        workspace.write_once("sealed.bin", b"x")
        workspace.path("by-a-library").touch()  # the umask closes this one
        files = [entry for entry in root.rglob("*") if entry.name != "run-1"]
        assert [stat.S_IMODE(entry.lstat().st_mode) for entry in files] == [0o600] * 5
        assert stat.S_IMODE((root / "run-1").stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert os.listdir(root) == [".lock"]


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_objects_and_damaged_arrays_are_neither_written_nor_read(root):
    with PrivateWorkspace.create(root, "run-1") as workspace:
        path = workspace.path("a.npz")
        with pytest.raises(ValueError, match="Object arrays cannot be saved"):
            store_arrays(path, x=np.array([None]))
        assert not path.exists()
        store_arrays(path, x=np.arange(1_000))
        good = path.read_bytes()
        np.savez(workspace.path("bomb.npz"), x=np.array([Bomb()], dtype=object))
        np.save(workspace.path("plain.npy"), np.arange(3))
        with zipfile.ZipFile(workspace.path("text.npz"), "w") as archive:
            archive.writestr("x.npy", "SECRET")
        others = [
            workspace.path(f"{n}").read_bytes() for n in ("bomb.npz", "plain.npy", "text.npz")
        ]
        bits = good.replace(b"\x05\x00", b"\x06\x00")
        for damaged in (b"", good[:100], good[:-30], bits, pickle.dumps(Bomb()), *others, None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            with pytest.raises(IntegrityError, match=r"ARTIFACT_UNREADABLE: file a\.npz is") as e:
                load_arrays(path)
            assert e.value.__context__ is None


def test_names_that_lead_out_and_an_open_root_are_refused(root):
    with PrivateWorkspace.create(root, "run-1") as workspace:
        for name in ("../x", ".alive"):
            for use in (workspace.path, lambda name: workspace.write_once(name, b"")):
                with pytest.raises(ConfigurationError, match="INVALID_FILE_NAME"):
                    use(name)
    assert os.listdir(root) == [".lock"]
    with pytest.raises(ConfigurationError), PrivateWorkspace.create(root, "run-1") as workspace:
        workspace.path("../x")
    assert os.listdir(root) == [".lock"]  # purged after an error, and once
    workspace.purge()
    root.chmod(0o755)
    for run, code in (("../run", "INVALID_NAME"), ("run-1", "DIRECTORY_MODE")):
        with pytest.raises(ConfigurationError, match=code):
            PrivateWorkspace.create(root, run)


def test_a_purge_follows_no_link_and_makes_no_folder(root, tmp_path):
    # Live and dead runs: tests/crash/test_kill.py.
    assert live_run_ids(root) == frozenset()
    purge_abandoned(root)
    assert not root.exists()
    (tmp_path / "outside").mkdir()
    with PrivateWorkspace.create(root, "live-run"):
        (root / "link").symlink_to(tmp_path / "outside")
        purge_abandoned(root)
        assert live_run_ids(root) == {"live-run"}
    assert (tmp_path / "outside").exists()
