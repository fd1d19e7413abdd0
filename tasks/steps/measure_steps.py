"""Steps that measure: run a method's stages against the shards, and seal what was drawn."""

import hashlib
from collections.abc import Mapping
from importlib.metadata import version

from privacy.event_records import event_to_dict
from privacy.ledger import EntryState, LedgerEntry
from privacy.mechanisms import NoisyStatistic
from storage.files.workspace import PrivateWorkspace
from storage.releases.measurements import (
    RELEASED_FILE,
    MeasurementRecord,
    MeasurementStore,
    arrays_to_bytes,
    sealed_file,
)
from storage.schema.vocabulary import Vocabulary
from tasks.measurement.curator import Curator
from tasks.measurement.method import Released
from tasks.steps.entries import Entries
from tasks.steps.job import ReleaseJob


class Seals:
    """Makes every draw durable before a method sees it, and keeps it for the record."""

    def __init__(self, workspace: PrivateWorkspace) -> None:
        self._workspace = workspace
        self._files: dict[str, bytes] = {}

    def __call__(self, name: str, statistic: NoisyStatistic) -> None:
        """Write one noisy statistic once; a second draw of the name cannot replace it.

        A draw of a series, whose name ends in its number, is kept as long as the run lasts; the
        measurement keeps what the method made of the series.
        """
        content, file_name = arrays_to_bytes({"values": statistic.values}), sealed_file(name)
        self._workspace.write_once(file_name, content)
        if name == statistic.event.statistic:
            self._files[file_name] = content

    def files_with(self, released: Released) -> dict[str, bytes]:
        """Return the files of a measurement: its draws, and what the method released."""
        return {**self._files, RELEASED_FILE: arrays_to_bytes(released)}


def record_of(
    job: ReleaseJob, entry: LedgerEntry, curator: Curator, files: Mapping[str, bytes]
) -> MeasurementRecord:
    """Return the record of a finished measurement with these files."""
    return MeasurementRecord(
        dataset=job.ref.dataset,
        release_id=job.ref.release_id,
        ledger_entry=entry.entry_id,
        request_key=entry.request_key,
        site=job.site,
        events=tuple(event_to_dict(event) for event in curator.event.events),
        tainted=curator.tainted,
        requester=job.requester,
        code_version=version("clustmix"),
        vocabulary=Vocabulary.of(job.table_schema),
        files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    )


def seal(
    record: MeasurementRecord,
    files: Mapping[str, bytes],
    *,
    measurements: MeasurementStore,
    entries: Entries,
) -> None:
    """Keep a finished measurement, then note it: a run that dies between the two has sealed."""
    digest = measurements.seal(record, files)
    entries.advance(record.ledger_entry, EntryState.SEALED, digest=digest)
