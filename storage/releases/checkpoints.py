"""How far a long measurement came: what it has drawn, and what its finished stages released.

Everything here is noisy or public, so it may outlive the private workspace of the run. A run that
is stopped is continued by the next run of the same request: sealed draws are used again, byte for
byte, and nothing is drawn a second time. A draw that was begun and not sealed is lost; then nothing
can be continued, because a second draw of it is not in the plan.
"""

import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import IntegrityError
from storage.files import private
from storage.files.refs import check_file_name, check_name
from storage.releases.measurements import arrays_of_bytes, arrays_to_bytes

_BEGUN, _SEALED = "begun-", "sealed-"
_STAGE = "stage-{:04d}.npz"
_DRAWN, _RELEASED = "drawn-", "released-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a measurement goes on: finished stages, what they released, how many draws they made.

    `sealed` are draws by name: all that are kept for the record, and those since the last stage.
    """

    stages: int
    released: dict[str, NDArray[Any]]
    drawn: dict[str, int]
    sealed: dict[str, bytes]


NOTHING = ResumePoint(stages=0, released={}, drawn={}, sealed={})
"""Progress of a measurement that begins."""


class Checkpoint:
    """Progress of one measurement, in a private folder; no step twice (IntegrityError)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin_draw(self, name: str) -> None:
        """Note that a statistic is about to be drawn, on the disk before its noise is added."""
        private.write_durably(self._path(_BEGUN + name), b"")
        private.fsync_directory(self._folder)

    def seal_draw(self, name: str, content: bytes) -> None:
        """Make a draw durable."""
        self._write_whole(f"{_SEALED}{name}.npz", content)

    def finish_stage(
        self,
        number: int,
        released: Mapping[str, NDArray[Any]],
        drawn: Mapping[str, int],
        *,
        no_longer_needed: frozenset[str] = frozenset(),
    ) -> None:
        """Keep what is released after stage `number`, and forget draws that it stands for.

        Stages are counted from 1. `released` holds everything that was released so far, and `drawn`
        how many draws of each statistic were made; the released arrays stand for the sealed draws
        that are `no_longer_needed`.
        """
        counts = {_DRAWN + name: np.array(count) for name, count in drawn.items()}
        arrays = {_RELEASED + name: values for name, values in released.items()}
        # One file: the stage is finished with it and not before, wherever a run dies.
        self._write_whole(_STAGE.format(number), arrays_to_bytes({**counts, **arrays}))
        for name in sorted(no_longer_needed):
            # In this order: a draw that was begun and is not sealed would stop everything.
            self._path(_BEGUN + name).unlink(missing_ok=True)
            self._path(f"{_SEALED}{name}.npz").unlink(missing_ok=True)
        for earlier in range(1, number):
            self._path(_STAGE.format(earlier)).unlink(missing_ok=True)

    def progress(self) -> ResumePoint | None:
        """Return where to go on, or None if a draw was begun and never sealed."""
        names = {path.name for path in self._folder.iterdir()}
        begun = {name.removeprefix(_BEGUN) for name in names if name.startswith(_BEGUN)}
        sealed = {
            name.removeprefix(_SEALED).removesuffix(".npz")
            for name in names
            if name.startswith(_SEALED)
        }
        if not begun <= sealed:
            return None
        stages = max((int(name[6:10]) for name in names if name.startswith("stage-")), default=0)
        contents = {name: self._path(f"{_SEALED}{name}.npz").read_bytes() for name in sealed}
        if not stages:
            return ResumePoint(stages=0, released={}, drawn={}, sealed=contents)
        kept = arrays_of_bytes(self._path(_STAGE.format(stages)).read_bytes())
        return ResumePoint(
            stages=stages,
            released=_named(kept, _RELEASED),
            drawn={name: int(count) for name, count in _named(kept, _DRAWN).items()},
            sealed=contents,
        )

    def _write_whole(self, name: str, content: bytes) -> None:
        """Write a file that is whole under its name or not there; none is ever replaced."""
        target = self._path(name)
        if target.exists():
            raise IntegrityError("ALREADY_WRITTEN", f"file {name} is already written")
        private.replace_durably(target, content)

    def _path(self, name: str) -> Path:
        return self._folder / check_file_name(name)


class CheckpointStore:
    """Progress that can be continued, in ``<root>/<release_id>``; the root is of mode 0700."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, release_id: str) -> Checkpoint:
        """Return the checkpoint of a release, made if it is absent."""
        private.ensure_private_directory(self._root)
        return Checkpoint(private.ensure_private_directory(self._folder(release_id)))

    def can_continue(self, release_id: str) -> bool:
        """Return whether a stopped measurement can be continued without a second draw."""
        folder = self._folder(release_id)
        if not folder.is_dir():
            return False
        try:
            return Checkpoint(folder).progress() is not None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return False  # damaged: closed like any other measurement that stopped

    def release_ids(self) -> frozenset[str]:
        """Return the releases of which something is kept."""
        if not self._root.is_dir():
            return frozenset()
        return frozenset(path.name for path in self._root.iterdir())

    def remove(self, release_id: str) -> None:
        """Forget the progress of a release."""
        folder = self._folder(release_id)
        if folder.is_dir():
            shutil.rmtree(folder)
            private.fsync_directory(self._root)

    def _folder(self, release_id: str) -> Path:
        return self._root / check_name(release_id)


def _named(arrays: Mapping[str, NDArray[Any]], kind: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of one kind by their own names, in the order of the file."""
    return {name.removeprefix(kind): a for name, a in arrays.items() if name.startswith(kind)}
