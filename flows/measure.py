"""The measurement of a cohort: from a request to a sealed entry of the ledger.

Order is everything here. The plan is calibrated and the budget charged before a private byte is
read; noise is drawn in this process, once, after aggregation, and sealed before it is used; the
private workspace is gone at the end, however the run ends. No step is cached or tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from prefect import flow
from prefect.client.schemas.objects import State

from flows import serving
from flows.declared_order import earlier_key
from flows.publication import published_as_asked, refuse_withheld
from flows.serving import Ending
from flows.site.request import ReleaseRequest
from privacy.ledger import EntryState, LedgerEntry
from storage.files.diagnostics import DiagnosticsFile
from storage.files.refs import ReleaseRef
from storage.files.workspace import PrivateWorkspace
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from tasks.execution.compute import DaskExecutor, Executor, LocalExecutor
from tasks.execution.runtime import guarded_task
from tasks.measurement.curator import Curator
from tasks.measurement.plan import MeasurementPlan
from tasks.measurement.randomness import randomness_of_run
from tasks.measurement.synthesizer import Stage
from tasks.measurement.synthesizer import measure as measure_stages
from tasks.steps import ingest_steps, ledger_steps, measure_steps
from tasks.steps.run import ReleaseJob, Site, stage

HELD_BYTES = 2**25
"""Up to this size of its files one process reads a table sooner than workers have started."""

check_source = guarded_task(name="check-source")(ledger_steps.check_source)
plan_measurement = guarded_task(name="plan")(measure_steps.plan_measurement)
reserve = guarded_task(name="reserve")(ledger_steps.reserve)
ingest = guarded_task(name="ingest")(ingest_steps.ingest)
seal = guarded_task(name="seal")(measure_steps.seal)


@guarded_task(name="clean-up")
def clean_up(site: Site) -> None:
    """Close and delete what dead runs have left."""
    with stage("clean-up"):
        ledger_steps.clean_up(site)


@guarded_task(name="identify")
def identify(
    job: ReleaseJob, site: Site, reader: CohortReader, executor: Executor, *, new_draw: bool
) -> str:
    """Return the key by which the same measurement is found again."""
    with stage("identify"):
        content_sha256 = ledger_steps.content_of(reader, executor)
        key = ledger_steps.key_of(job, site, content_sha256)
        if new_draw or any(
            entry.request_key == key
            for entry in site.ledger.entries()
            if entry.state not in (EntryState.VOID, EntryState.BURNED)
        ):
            return key
        return earlier_key(job, site, content_sha256) or key


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The entry that has paid for a measurement.

    Parameters
    ----------
    entry
        The entry, sealed or further.
    created
        Whether this run has made it; otherwise the same table was measured before.
    """

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

    Returns
    -------
    State
        Completed; Refused or Withheld, which are ordinary ends; or Failed. Its message is public.
        No exception leaves the flow, because the orchestrator would pickle it to disk.
    """
    return serving.run("measure", request, _measure_for_page)


def _measure_for_page(request: ReleaseRequest, settings: Settings) -> Ending:
    """Measure, and tell the page of the orchestrator what came of it."""
    site = Site(settings=settings)
    with serving.arrival_of(request, site) as job:
        measured = measure(job, site, new_draw=request.new_draw)
        entry = measured.entry
        serving.show_budget(job, site)
        if measured.created:
            return Ending(text=f"sealed {job.ref}")
        refuse_withheld(entry)
        if entry.state is not EntryState.PUBLISHED:
            text = f"{job.ref}: this table was measured before, as {entry.release_id}"
            return Ending(text=f"{text}, which is {entry.state.value}; nothing is charged")
        if published_as_asked(job, site, entry) is None:
            serving.ask_for_publication(entry)
        text = f"{job.ref}: this table was released before, as {entry.release_id}"
        return Ending(text=f"{text}; nothing is charged")


def measure(job: ReleaseJob, site: Site, *, new_draw: bool = False) -> Measured:
    """Measure a cohort, or find the measurement of the same table that was paid for before.

    Raises
    ------
    ClustMixError
        With a public code and message; its class says how the run ended.

    Privacy
    -------
    After it returns, nothing of this run holds a private row but the source itself.
    """
    with _private_run(site, job) as workspace:
        clean_up(site)
        reader = CohortReader(job.source, settings=site.settings)
        check_source(job, reader)
        plan = plan_measurement(job)
        with _executor(job, site, workspace, reader) as executor:
            key = identify(job, site, reader, executor, new_draw=new_draw)
            reservation = reserve(job, site, key, new_draw=new_draw)
            if reservation.created:
                with ledger_steps.closing(site, reservation.entry):
                    ledger_steps.begin(site, reservation.entry)
                    _draw(job, site, workspace, reader, plan, reservation.entry, executor)
            elif reservation.entry.state is EntryState.EXECUTING:
                _continue(job, site, reader, plan, reservation.entry, executor)
    entry = site.ledger.entry(reservation.entry.entry_id)
    return Measured(entry=entry, created=reservation.created)


def _draw(
    job: ReleaseJob,
    site: Site,
    workspace: PrivateWorkspace,
    reader: CohortReader,
    plan: MeasurementPlan,
    entry: LedgerEntry,
    executor: Executor,
) -> None:
    """Read the cohort, run the method's stages, seal; nothing after this reads private rows."""
    diagnostics = DiagnosticsFile(site.settings.diagnostics / f"{job.ref.release_id}.jsonl")
    shards = ingest(job, reader, workspace, diagnostics, executor)
    draws = measure_steps.draws_of(job, site, workspace, plan, entry)
    curator = Curator(
        plan=plan,
        compute=measure_steps.ShardCompute(executor, shards),
        noise_source=randomness_of_run().noise_source,
        seal=draws.seals,
        announce=draws.announce,
        drawn=draws.progress.drawn,
        sealed=draws.sealed,
    )
    released = measure_stages(
        job.synthesizer,
        curator,
        mu=job.mu,
        run=_run_as_task,
        finished=lambda stage, number, so_far: draws.finish_stage(stage, number, so_far, curator),
        n_finished=draws.progress.stages,
        released=draws.progress.released,
    )
    for shard in shards:
        shard.unlink()
    seal(job, site, entry, curator, draws.seals, released)
    site.checkpoints.remove(entry.release_id)


def _run_as_task(
    method_stage: Stage, curator: Curator, released: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Run one stage of a method as a task of its own."""
    run_stage = guarded_task(name=method_stage.name)(measure_steps.run_stage)
    return run_stage(method_stage, curator, released)


def _continue(
    job: ReleaseJob,
    site: Site,
    reader: CohortReader,
    plan: MeasurementPlan,
    entry: LedgerEntry,
    executor: Executor,
) -> None:
    """Go on with a measurement whose run has died, under its own name and its own charge."""
    continued = replace(job, ref=ReleaseRef(dataset=entry.dataset, release_id=entry.release_id))
    # Its workspace is its lock: two runs cannot go on with it at once.
    with _private_run(site, continued) as workspace:
        if site.ledger.entry(entry.entry_id).state is not EntryState.EXECUTING:
            return  # another run went on with it, to its end, before this one held the lock
        with ledger_steps.closing(site, entry):
            _draw(continued, site, workspace, reader, plan, entry, executor)


@contextmanager
def _private_run(site: Site, job: ReleaseJob) -> Iterator[PrivateWorkspace]:
    """Give a run its private workspace, purged at the end however the run ends."""
    with PrivateWorkspace.create(site.private_root, job.ref.release_id) as workspace:
        yield workspace
        with stage("purge"):
            workspace.purge()


@contextmanager
def _executor(
    job: ReleaseJob, site: Site, workspace: PrivateWorkspace, reader: CohortReader
) -> Iterator[Executor]:
    """Run sums on the configured Dask cluster, a local one, or in this process."""
    # Imported where they are needed: Dask takes a second to load.
    settings = site.settings
    if settings.dask_address is not None:
        from tasks.execution.cluster import connect

        with connect(settings.dask_address) as client:
            yield DaskExecutor(client, job.ref.release_id)
    elif (n_workers := _workers(settings, reader)) == 0:
        yield LocalExecutor()
    else:
        with ExitStack() as cluster:
            with stage("cluster"):
                from tasks.execution.cluster import local_cluster

                client = cluster.enter_context(local_cluster(n_workers, workspace.path("dask")))
            yield DaskExecutor(client, job.ref.release_id)


def _workers(settings: Settings, reader: CohortReader) -> int:
    """Return how many workers a run starts; 0 keeps everything in this process.

    Privacy
    -------
    Where nothing is set the size of the source decides, in which nothing is released: sums are the
    same bits on any number of workers, and noise is drawn in this process.
    """
    size = reader.size_bytes() if settings.dask_workers is None else None
    return 0 if size is not None and size <= HELD_BYTES else settings.workers
