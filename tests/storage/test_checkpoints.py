"""Progress of a long measurement: never drawn twice, gone when it is not needed.

That it is whole wherever a process ends: `tests/crash/test_checkpoint_faults.py`.
"""

import stat

import numpy as np
import pytest

from privacy.errors import IntegrityError
from storage.releases.checkpoints import CheckpointStore
from storage.releases.measurements import arrays_to_bytes, draw_of_bytes

RELEASE = "r-20261121-0a1b2c3d"


def content(number):
    return arrays_to_bytes({"values": np.array([number, -number])})


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def checkpoint(store):
    return store.open(RELEASE)


def draw(checkpoint, name, number):
    checkpoint.begin_draw(name)
    checkpoint.seal_draw(name, content(number))


def test_stages_and_draws_are_found_again_unless_damaged(store, checkpoint, tmp_path):
    progress = checkpoint.progress()
    assert (progress.stages, progress.released, progress.drawn, progress.sealed) == (0, {}, {}, {})
    assert store.can_continue(RELEASE)
    assert not store.can_continue("r-20261121-ffffffff")
    assert store.release_ids() == {RELEASE}
    draw(checkpoint, "counts", 1)
    checkpoint.finish_stage(1, {"centres": np.eye(2)}, {"counts": 1})
    draw(checkpoint, "gradients-000000", 2)
    draw(checkpoint, "gradients-000001", 3)
    checkpoint.finish_stage(
        2,
        {"centres": np.eye(2), "weights": np.arange(3)},
        {"counts": 1, "gradients": 2},
        no_longer_needed=frozenset({"gradients-000000", "gradients-000001"}),
    )
    draw(checkpoint, "gradients-000002", 4)
    folder = tmp_path / "checkpoints" / RELEASE
    for name in ("sealed-more", "stage-0003"):  # what a writer left that was killed
        (folder / f".{name}.npz.new").write_bytes(b"PK")
    progress = store.open(RELEASE).progress()
    assert progress.stages == 2
    assert progress.drawn == {"counts": 1, "gradients": 2}
    assert list(progress.drawn) == ["counts", "gradients"]
    np.testing.assert_array_equal(progress.released["weights"], np.arange(3))
    assert set(progress.sealed) == {"counts", "gradients-000002"}
    np.testing.assert_array_equal(draw_of_bytes(progress.sealed["gradients-000002"]), [4, -4])
    (folder / "stage-0002.npz").write_bytes(b"{")  # damaged
    assert not store.can_continue(RELEASE)


def test_nothing_is_written_twice(checkpoint):
    draw(checkpoint, "counts", 1)
    for again in (
        lambda: checkpoint.begin_draw("counts"),
        lambda: checkpoint.seal_draw("counts", content(2)),
    ):
        with pytest.raises(IntegrityError, match=r"ALREADY_WRITTEN: file .* is already written"):
            again()
    assert checkpoint.progress().sealed == {"counts": content(1)}


def test_only_the_owner_may_look_and_all_is_removed(store, checkpoint, tmp_path):
    draw(checkpoint, "counts", 1)
    checkpoint.finish_stage(1, {"a": np.ones(1)}, {"counts": 1})
    root = tmp_path / "checkpoints"
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    store.remove(RELEASE)
    store.remove(RELEASE)
    assert list(root.iterdir()) == []
    assert store.release_ids() == frozenset()
