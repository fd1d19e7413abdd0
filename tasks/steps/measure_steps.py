"""Steps that measure: run a method's stages against the shards, and seal what was drawn."""

import hashlib
import re
from importlib.metadata import version
from typing import Any

from numpy.typing import NDArray

from privacy.arrays import Integers
from privacy.errors import IntegrityError
from privacy.event_records import event_to_dict
from privacy.ledger import EntryState, LedgerEntry
from privacy.mechanisms import NoisyStatistic
from storage.files.workspace import PrivateWorkspace
from storage.releases.checkpoints import NOTHING, Checkpoint, ResumePoint
from storage.releases.measurements import (
    RELEASED_FILE,
    MeasurementRecord,
    MeasurementStore,
    arrays_to_bytes,
    draw_of_bytes,
    sealed_file,
)
from storage.schema.vocabulary import Vocabulary
from tasks.measurement.curator import Curator
from tasks.measurement.method import Stage
from tasks.measurement.plan import MeasurementPlan
from tasks.steps.entries import Entries
from tasks.steps.job import ReleaseJob
from tasks.steps.request_key import code_sha256


class Seals:
    """Makes every draw durable before a method sees it; `files` are the draws as written.

    They last as long as the run: there is no progress of an earlier one, and none of its draws is
    `sealed` to be used again.
    """

    def __init__(self, workspace: PrivateWorkspace) -> None:
        self._workspace = workspace
        self.files: dict[str, bytes] = {}
        self.progress = NOTHING
        self.sealed: dict[str, Integers] = {}

    def announce(self, name: str) -> None:
        """Do nothing: where a run stops after a draw has begun, nobody goes on with it."""

    def __call__(self, name: str, statistic: NoisyStatistic) -> None:
        """Write one noisy statistic once; a second draw of the name cannot replace it.

        A draw of a series, whose name ends in its number, is kept as long as the run lasts; the
        measurement keeps what the method made of the series.
        """
        content = _content_of(statistic)
        file_name = sealed_file(name)
        self._workspace.write_once(file_name, content)
        if name == statistic.event.statistic:
            self.files[file_name] = content

    def finish_stage(
        self, method_stage: Stage, number: int, released: dict[str, NDArray[Any]], curator: Curator
    ) -> None:
        """Do nothing, as no run goes on from here."""


class CheckpointSeals(Seals):
    """Makes draws durable where they outlive the run; `files` are kept for the record.

    What an earlier run has drawn is used again; a draw that it has lost is an IntegrityError.
    """

    def __init__(self, checkpoint: Checkpoint, plan: MeasurementPlan) -> None:
        progress = checkpoint.progress()
        if progress is None:
            raise IntegrityError(
                "DRAW_LOST",
                "expected every draw that was begun to be sealed, found one that was not; nothing "
                "is drawn twice, so ask for a new measurement (--new-draw), which is charged",
            )
        self._checkpoint = checkpoint
        self._of_series: set[str] = {name for name in progress.sealed if _is_of_series(name)}
        self.files = {
            sealed_file(name): content
            for name, content in progress.sealed.items()
            if not _is_of_series(name)
        }
        self.progress = progress
        self.sealed = sealed_values(plan, progress)

    def announce(self, name: str) -> None:
        """Note that a draw begins; one that is begun and not sealed is not made again."""
        self._checkpoint.begin_draw(_file_stem(name))

    def __call__(self, name: str, statistic: NoisyStatistic) -> None:
        """Write one noisy statistic once."""
        content, stem = _content_of(statistic), _file_stem(name)
        self._checkpoint.seal_draw(stem, content)
        if _is_of_series(stem):
            self._of_series.add(stem)
        else:
            self.files[sealed_file(name)] = content

    def finish_stage(
        self, method_stage: Stage, number: int, released: dict[str, NDArray[Any]], curator: Curator
    ) -> None:
        """Keep what is released so far, where the stage asks for it, in place of a series."""
        if method_stage.checkpoint:
            self._checkpoint.finish_stage(
                number, released, curator.drawn, no_longer_needed=frozenset(self._of_series)
            )
            self._of_series.clear()


def sealed_values(plan: MeasurementPlan, progress: ResumePoint) -> dict[str, Integers]:
    """Return the sealed draws of an earlier run by the names under which a curator asks."""
    names = {_file_stem(planned.name): planned.name for planned in plan.statistics}
    values = {}
    for stem, content in progress.sealed.items():
        base, number = (stem[:-7], stem[-6:]) if _is_of_series(stem) else (stem, None)
        name = names[base] if number is None else f"{names[base]}_{number}"
        values[name] = draw_of_bytes(content)
    return values


def _file_stem(name: str) -> str:
    return name.replace("_", "-")


def _is_of_series(stem: str) -> bool:
    return re.fullmatch(r".+-[0-9]{6}", stem) is not None


def _content_of(statistic: NoisyStatistic) -> bytes:
    return arrays_to_bytes({"values": statistic.values})


def seal(
    job: ReleaseJob,
    entry: LedgerEntry,
    curator: Curator,
    seals: Seals,
    released: dict[str, NDArray[Any]],
    *,
    measurements: MeasurementStore,
    entries: Entries,
) -> LedgerEntry:
    """Keep a finished measurement, then say so: who dies between the two has sealed."""
    files = {**seals.files, RELEASED_FILE: arrays_to_bytes(released)}
    record = MeasurementRecord(
        dataset=job.ref.dataset,
        release_id=job.ref.release_id,
        ledger_entry=entry.entry_id,
        request_key=entry.request_key,
        site=job.site,
        events=tuple(event_to_dict(event) for event in curator.event.events),
        tainted=curator.tainted,
        requester=job.requester,
        code_version=version("clustmix"),
        code_sha256=code_sha256(),
        vocabulary=Vocabulary.of(job.table_schema),
        files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    )
    digest = measurements.seal(record, files)
    return entries.advance(entry, EntryState.SEALED, digest=digest)
