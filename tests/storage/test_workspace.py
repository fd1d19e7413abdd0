import os
import pickle
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

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

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "private"


def modes_below(folder):
    return {
        str(entry.relative_to(folder)): stat.S_IMODE(entry.lstat().st_mode)
        for entry in folder.rglob("*")
    }


def test_everything_is_closed_to_others(root):
    with PrivateWorkspace.create(root, "run-1") as workspace:
        store_arrays(workspace.path("shard-0001.npz"), codes=np.arange(3))
        workspace.write_once("sealed.bin", b"x")
        workspace.path("by-a-library").touch()  # the umask closes this one
        modes = modes_below(root)
        assert modes.pop("run-1") == 0o700
        assert len(modes) == 5
        assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_arrays_come_back_bit_for_bit(root):
    arrays = {
        "file": np.array([[0.1, np.nan], [-0.0, np.inf]]),
        "codes": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "names": np.array(["a", "bc"]),
        "nothing": np.empty((0, 4), dtype=np.float32),
    }
    with PrivateWorkspace.create(root, "run-1") as workspace:
        store_arrays(workspace.path("shard-0001.npz"), **arrays)
        read = load_arrays(workspace.path("shard-0001.npz"))
        assert read.keys() == arrays.keys()
        for key, array in arrays.items():
            assert read[key].dtype == array.dtype
            assert read[key].shape == array.shape
            assert read[key].tobytes() == array.tobytes()


def test_objects_are_neither_written_nor_read(root):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    with PrivateWorkspace.create(root, "run-1") as workspace:
        with pytest.raises(ConfigurationError, match="ARRAY_OF_OBJECTS: array 'x' holds Python"):
            store_arrays(workspace.path("a.npz"), x=np.array([None]))
        assert not workspace.path("a.npz").exists()
        np.savez(workspace.path("b.npz"), x=np.array([Bomb()], dtype=object))
        workspace.path("c.npz").write_bytes(pickle.dumps(Bomb()))
        for name in ("b.npz", "c.npz"):
            with pytest.raises(IntegrityError, match=f"file {name} is missing or damaged"):
                load_arrays(workspace.path(name))


def test_damaged_and_missing_arrays_are_refused(root):
    with PrivateWorkspace.create(root, "run-1") as workspace:
        store_arrays(workspace.path("a.npz"), x=np.arange(1_000))
        content = workspace.path("a.npz").read_bytes()
        for damaged in (
            b"",
            content[:100],
            content[:-30],
            content.replace(b"\x05\x00", b"\x06\x00"),
        ):
            workspace.path("a.npz").write_bytes(damaged)
            with pytest.raises(IntegrityError) as caught:
                load_arrays(workspace.path("a.npz"))
            assert caught.value.code == "ARTIFACT_UNREADABLE"
            assert caught.value.__context__ is None
        with pytest.raises(IntegrityError, match="ARTIFACT_UNREADABLE"):
            load_arrays(workspace.path("none.npz"))
        np.save(workspace.path("plain.npy"), np.arange(3))
        with zipfile.ZipFile(workspace.path("text.npz"), "w") as archive:
            archive.writestr("x.npy", "SECRET")
        for name in ("plain.npy", "text.npz"):
            with pytest.raises(IntegrityError, match="ARTIFACT_UNREADABLE"):
                load_arrays(workspace.path(name))


def test_a_failed_write_leaves_the_previous_file(root, monkeypatch):
    with PrivateWorkspace.create(root, "run-1") as workspace:
        store_arrays(workspace.path("a.npz"), x=np.zeros(2))

        def full(*_args, **_options):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np.lib.format, "write_array", full)
        with pytest.raises(OSError, match="No space"):
            store_arrays(workspace.path("a.npz"), x=np.ones(2))
        monkeypatch.undo()
        assert load_arrays(workspace.path("a.npz"))["x"].tolist() == [0.0, 0.0]
        assert sorted(os.listdir(root / "run-1")) == [".alive", "a.npz"]


@pytest.mark.parametrize("name", ["../x", "a/b", ".alive", "", "/etc/passwd", "x\x00"])
def test_paths_stay_inside(root, name):
    with PrivateWorkspace.create(root, "run-1") as workspace:
        with pytest.raises(ConfigurationError, match="INVALID_FILE_NAME"):
            workspace.path(name)
        with pytest.raises(ConfigurationError, match="INVALID_FILE_NAME"):
            workspace.write_once(name, b"")


def test_malformed_run_and_open_root_are_refused(root, tmp_path):
    with pytest.raises(ConfigurationError, match="INVALID_NAME"):
        PrivateWorkspace.create(root, "../run")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(ConfigurationError, match="DIRECTORY_MODE"):
        PrivateWorkspace.create(tmp_path / "open", "run-1")


def test_leaving_the_block_purges_also_after_an_error(root):
    workspace = PrivateWorkspace.create(root, "run-1")
    workspace.write_once("a.bin", b"x")
    with pytest.raises(ConfigurationError), workspace:
        workspace.path("../x")
    assert os.listdir(root) == [".lock"]
    workspace.purge()


def test_live_runs_are_kept_and_dead_ones_purged(root):
    assert live_run_ids(root) == frozenset()
    assert purge_abandoned(root) == ()
    program = (
        "import sys; from pathlib import Path\n"
        "from storage.files.workspace import PrivateWorkspace\n"
        "w = PrivateWorkspace.create(Path(sys.argv[1]), 'dead-run'); w.write_once('a.bin', b'x')\n"
        "sys.stdout.write('ready'); sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.read(5) == b"ready"
        with PrivateWorkspace.create(root, "live-run"):
            assert live_run_ids(root) == {"live-run", "dead-run"}
            assert purge_abandoned(root) == ()
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert live_run_ids(root) == {"live-run"}
            assert purge_abandoned(root) == ("dead-run",)
            assert not (root / "dead-run").exists()
            assert (root / "live-run").exists()


def test_a_planted_link_is_not_followed(root, tmp_path):
    with PrivateWorkspace.create(root, "run-1"):
        pass
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    assert purge_abandoned(root) == ()
    assert outside.exists()
