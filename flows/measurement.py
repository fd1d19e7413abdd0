"""The measurement of a cohort: from a request to a sealed entry of the ledger.

The order of the steps is essential. The plan is calibrated and the budget reserved before a row is
decoded. Then the rows are checked against the declared rules; a table that breaks one is charged
nothing. The charge stands before anything is computed for release. Noise is drawn once, in this
process, after aggregation, and sealed before it is used. The private workspace is deleted however
the run ends. No step is cached or tried again.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from flows.installation import Workplace
from privacy import randomness
from privacy.events import event_to_dict
from privacy.ledger import EntryState, LedgerEntry
from privacy.mechanisms import NoisyStatistic
from storage.files.workspace import PrivateWorkspace
from storage.ledger.ledger_db import Reservation
from storage.releases.measurements import (
    RELEASED_FILE,
    MeasurementRecord,
    arrays_to_bytes,
    sealed_file,
)
from storage.schema.vocabulary import Vocabulary
from tasks.execution.executor import Executor
from tasks.execution.runtime import guarded_stage, guarded_task
from tasks.ingest.shards import ShardFile
from tasks.measurement.curator import Curator
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Released, Stage, Synthesizer, checked_plan, run_stage
from tasks.measurement.method import measure as measure_stages
from tasks.steps import ingest_steps, source
from tasks.steps.entries import Entries
from tasks.steps.janitor import Janitor
from tasks.steps.job import ReleaseJob
from tasks.steps.source import Tables

check_source = guarded_stage("check-source")(source.check_source)
plan_measurement = guarded_stage("plan")(checked_plan)
identify = guarded_stage("identify")(Tables.key)
reserve = guarded_stage("reserve")(Entries.reserve)
ingest = guarded_task("ingest")(ingest_steps.ingest)


@guarded_stage("clean-up")
def clean_up(janitor: Janitor) -> None:
    """Close and delete what dead runs have left, before a run reserves a budget."""
    janitor.clean_up()


class _Seals:
    """Makes every draw durable before a method sees it, and keeps it for the record."""

    def __init__(self, workspace: PrivateWorkspace) -> None:
        self._workspace = workspace
        self._files: dict[str, bytes] = {}

    def __call__(self, name: str, statistic: NoisyStatistic) -> None:
        """Write one noisy statistic once; a second draw of the name cannot replace it.

        A draw of a series, whose name ends in its number, is kept only during the run; the
        measurement keeps the result that the method computes from the series.
        """
        content, file_name = arrays_to_bytes({"values": statistic.values}), sealed_file(name)
        self._workspace.write_once(file_name, content)
        if name == statistic.event.statistic:
            self._files[file_name] = content

    def files_with(self, released: Released) -> dict[str, bytes]:
        """Return the files of a measurement: its draws, and what the method released."""
        return {**self._files, RELEASED_FILE: arrays_to_bytes(released)}


def measure(
    job: ReleaseJob,
    *,
    entries: Entries,
    tables: Tables,
    workplace: Workplace,
    new_draw: bool = False,
    again: bool = False,
) -> Reservation:
    """Measure a cohort, or find the measurement of the same table that was paid for before.

    The entry that has paid is returned, sealed or further; `created` if this run has made it. If
    the last charge of the dataset burned, it is Withheld unless a person says `again`.

    Privacy
    -------
    After it returns, nothing of this run holds a private row but the source itself.
    """
    release_id = job.ref.release_id
    with workplace.workspace(release_id) as workspace:
        reader = tables.reader(job.source, job.events)
        check_source(job.columns_to_read, job.table_schema, reader, job.events)
        plan = plan_measurement(job.synthesizer, parameters=job.parameters, adjacency=job.adjacency)
        with workplace.executor(workspace, table_bytes=reader.size_bytes()) as executor:
            key, table = identify(tables, reader, executor, **job.identity)
            charge = job.charge(key, owner=entries.owner)
            # Checked before the charge and again before noise is drawn: a full or read-only store
            # would burn one charge after the other.
            entries.measurements.check_writable(release_id, _most_bytes(plan))
            reservation = reserve(entries, charge, new_draw=new_draw, unless_burned=not again)
            entry = reservation.entry
            if reservation.created:
                with entries.closing(entry), entries.reading(entry) as register:
                    with entries.checking(entry, job.declarations, table):
                        shards = ingest(
                            job.columns_to_read,
                            job.rules,
                            reader,
                            workspace=workspace,
                            diagnostics=workplace.diagnostics_of(release_id),
                            executor=executor,
                            register=register,
                        )
                    entries.measurements.check_writable(release_id, _most_bytes(plan))
                    entries.begin(entry, table, register)
                    seals = _Seals(workspace)
                    own: Any = {"seals": seals, "executor": executor, "events": reader.beside}
                    curator, released = draw(job.synthesizer, plan, shards, **own)
                    files = seals.files_with(released)
                    record = record_of(job, entry, curator, files)
                    seal(entries, record, files)
    return replace(reservation, entry=entries.now(entry))


def _most_bytes(plan: MeasurementPlan) -> int:
    """Return an upper bound of the bytes of a measurement's file, from the sizes of its sums."""
    return 2**20 + 32 * sum(math.prod(planned.shape) for planned in plan.statistics)


def draw(
    synthesizer: Synthesizer,
    plan: MeasurementPlan,
    shards: tuple[Path, ...],
    *,
    seals: _Seals,
    executor: Executor,
    events: Iterable[str] = (),
) -> tuple[Curator, dict[str, NDArray[Any]]]:
    """Run the method's stages on shards and delete these; nothing afterwards reads private rows.

    Shards of tables of events lie beside those of the patients.
    """
    beside = {name: [ShardFile(path).beside(name) for path in shards] for name in events}
    curator = Curator(
        plan=plan,
        shards=[ShardFile(path) for path in shards],
        beside=beside,
        executor=executor,
        noise_source=randomness.OperatingSystemNoise(),
        seal=seals,
    )
    released = measure_stages(synthesizer, curator, run=_run_as_task)
    for shard in (*shards, *(own.path for every in beside.values() for own in every)):
        shard.unlink()
    return curator, released


def _run_as_task(
    method_stage: Stage, curator: Curator, released: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    return guarded_stage(method_stage.name)(run_stage)(method_stage, curator, released)


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
        period=job.period,
        code_version=version("clustmix"),
        vocabulary=Vocabulary.of(job.table_schema),
        files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    )


@guarded_stage("seal")
def seal(entries: Entries, record: MeasurementRecord, files: Mapping[str, bytes]) -> None:
    """Keep a finished measurement, then note it: a run that dies between the two has sealed."""
    digest = entries.measurements.seal(record, files)
    entries.advance(record.ledger_entry, EntryState.SEALED, digest=digest)
