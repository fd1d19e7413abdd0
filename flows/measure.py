"""The measurement of a cohort: from a request to a sealed entry of the ledger.

Order is everything here. The plan is calibrated and the budget reserved before a row is read; the
rows are held against the declared rules, and a table that breaks one is charged nothing; the charge
stands before anything is computed for release. Noise is drawn in this process, once, after
aggregation, and sealed before it is used; the private workspace is gone at the end, however the run
ends. No step is cached or tried again.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from prefect import flow
from prefect.client.schemas.objects import State

from flows import serving
from flows.publication import Publisher, refuse_withheld
from flows.repeated import HELD_BYTES, key_of
from flows.serving import Ending
from flows.site.request import ReleaseRequest
from privacy.ledger import EntryState, LedgerEntry
from storage.files.diagnostics import DiagnosticsFile
from storage.files.private import ensure_private_directory
from storage.files.workspace import PrivateWorkspace
from storage.installation import open_keys
from storage.releases.measurements import MeasurementStore
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from tasks.execution.dask_executor import DaskExecutor
from tasks.execution.executor import Executor, InProcessExecutor
from tasks.execution.runtime import guarded_stage, guarded_task, stage
from tasks.ingest.shards import ShardFile
from tasks.measurement.curator import Curator
from tasks.measurement.plan import MeasurementPlan
from tasks.measurement.randomness import randomness_of_run
from tasks.measurement.synthesizer import Stage, checked_plan, run_stage
from tasks.measurement.synthesizer import measure as measure_stages
from tasks.steps import ingest_steps, measure_steps, source
from tasks.steps.entries import Entries
from tasks.steps.job import ReleaseJob
from tasks.steps.measure_steps import Seals

check_source = guarded_stage("check-source")(source.check_source)
plan_measurement = guarded_stage("plan")(checked_plan)
identify = guarded_stage("identify")(key_of)
reserve = guarded_stage("reserve")(Entries.reserve)
ingest = guarded_task(name="ingest")(ingest_steps.ingest)
seal = guarded_stage("seal")(measure_steps.seal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The entry that has paid, sealed or further; this run has made it, or an earlier one has."""

    entry: LedgerEntry
    created: bool


@flow(
    name="measure",
    flow_run_name="{request.dataset}/{request.release_id}",
    log_prints=False,
    persist_result=False,
    retries=0,
    validate_parameters=True,
)
def measure_cohort(request: ReleaseRequest) -> State[None]:
    """Measure a dataset under differential privacy and seal what was measured.

    The run ends with the private rows deleted. What it has sealed is published by another run, of
    the flow "publish", which reads no row.

    The run ends Completed; Refused or Withheld, which are ordinary ends; or Failed. Its message is
    public. No exception leaves the flow, because the orchestrator would pickle it to disk.
    """
    return serving.run("measure", request, _measure_for_page)


def _measure_for_page(request: ReleaseRequest, settings: Settings) -> Ending:
    """Measure, and tell the page of the orchestrator what came of it."""
    with serving.arrival_of(request, settings) as job:
        measured = measure(job, settings, new_draw=request.new_draw)
        entry = measured.entry
        serving.show_budget(entry, Entries(settings).balance(entry, job.caps))
        if measured.created:
            return Ending(text=f"sealed {job.ref}")
        refuse_withheld(entry)
        if entry.state is not EntryState.PUBLISHED:
            text = f"{job.ref}: this table was measured before, as {entry.release_id}"
            return Ending(text=f"{text}, which is {entry.state.value}; nothing is charged")
        bundle = Publisher(settings).published_as_asked(
            entry, rows=job.rows, soft_labels=job.soft_labels
        )
        if bundle is None:
            serving.ask_for_publication(entry)
        text = f"{job.ref}: this table was released before, as {entry.release_id}"
        return Ending(text=f"{text}; nothing is charged")


def measure(job: ReleaseJob, settings: Settings, *, new_draw: bool = False) -> Measured:
    """Measure a cohort, or find the measurement of the same table that was paid for before.

    The caller has cleaned up after dead runs, see `tasks.steps.janitor`.

    Privacy
    -------
    After it returns, nothing of this run holds a private row but the source itself.
    """
    entries = Entries(settings)
    with private_run(settings, job.ref.release_id) as workspace:
        reader = CohortReader(job.source, settings=settings)
        check_source(job.columns_to_read, job.table_schema, reader)
        plan = plan_measurement(job.synthesizer, parameters=job.parameters, adjacency=job.adjacency)
        with executor_of(settings, workspace, reader, run_id=job.ref.release_id) as executor:
            key = identify(job, reader, executor, open_keys(settings))
            charge = job.charge(key, owner=entries.owner)
            reservation = reserve(entries, charge, new_draw=new_draw)
            run = _Run(
                job=job,
                settings=settings,
                entries=entries,
                reader=reader,
                plan=plan,
                executor=executor,
            )
            if reservation.created:
                with entries.closing(reservation.entry):
                    with entries.checking(reservation.entry, job.declarations):
                        shards = run.checked(workspace, reservation.entry)
                    entries.begin(reservation.entry)
                    run.draw(shards, workspace, reservation.entry)
    return Measured(entry=entries.now(reservation.entry), created=reservation.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A measurement at work: from where it reads, what it draws, where that is kept."""

    job: ReleaseJob
    settings: Settings
    entries: Entries
    reader: CohortReader
    plan: MeasurementPlan
    executor: Executor

    def checked(self, workspace: PrivateWorkspace, entry: LedgerEntry) -> tuple[Path, ...]:
        """Read the cohort, hold it against the declared rules, and return it as shards."""
        return ingest(
            self.job.columns_to_read,
            self.job.rules,
            self.reader,
            workspace,
            DiagnosticsFile(self.settings.diagnostics / f"{entry.release_id}.jsonl"),
            self.executor,
        )

    def draw(
        self, shards: tuple[Path, ...], workspace: PrivateWorkspace, entry: LedgerEntry
    ) -> None:
        """Run the method's stages on shards, and seal; nothing after this reads private rows."""
        job, settings = self.job, self.settings
        seals = Seals(workspace)
        curator = Curator(
            plan=self.plan,
            shards=[ShardFile(path) for path in shards],
            executor=self.executor,
            noise_source=randomness_of_run().noise_source,
            seal=seals,
        )
        released = measure_stages(job.synthesizer, curator, mu=job.mu, run=_run_as_task)
        for shard in shards:
            shard.unlink()
        seal(
            job,
            entry,
            curator,
            seals,
            released,
            measurements=MeasurementStore(settings.measurements),
            entries=self.entries,
        )


def _run_as_task(
    method_stage: Stage, curator: Curator, released: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Run one stage of a method as a task of its own."""
    return guarded_stage(method_stage.name)(run_stage)(method_stage, curator, released)


@contextmanager
def private_run(settings: Settings, release_id: str) -> Iterator[PrivateWorkspace]:
    """Give a run its private workspace, purged at the end however the run ends."""
    root = ensure_private_directory(settings.private_root)
    with PrivateWorkspace.create(root, release_id) as workspace:
        yield workspace
        with stage("purge"):
            workspace.purge()


@contextmanager
def executor_of(
    settings: Settings, workspace: PrivateWorkspace, reader: CohortReader, *, run_id: str
) -> Iterator[Executor]:
    """Run sums on the configured Dask cluster, a local one, or in this process."""
    # Imported where they are needed: Dask takes a second to load.
    if settings.dask_address is not None:
        from tasks.execution.cluster import connect

        with connect(settings.dask_address) as client:
            yield DaskExecutor(client, run_id)
    elif (n_workers := _workers(settings, reader)) == 0:
        yield InProcessExecutor(guarded=True)
    else:
        with ExitStack() as cluster:
            with stage("cluster"):
                from tasks.execution.cluster import local_cluster

                client = cluster.enter_context(local_cluster(n_workers, workspace.path("dask")))
            yield DaskExecutor(client, run_id)


def _workers(settings: Settings, reader: CohortReader) -> int:
    """Return how many workers a run starts; 0 keeps everything in this process.

    Where nothing is set the size of the source decides. Nothing released tells: sums are the same
    bits on any number of workers, and noise is drawn in this process.
    """
    size = reader.size_bytes() if settings.dask_workers is None else None
    return 0 if size is not None and size <= HELD_BYTES else settings.workers
