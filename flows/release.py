"""The release flow: a hospital table goes in, a synthetic table with a guarantee comes out.

Order is everything here. The plan is calibrated and the budget charged before a private byte is
read; noise is drawn in this process, once, after aggregation, and sealed before it is used; the
private workspace is gone at the end, however the run ends. No step is cached or tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.states import Failed as FailedState

from flows.publication import ReleaseOutcome, publish_sealed, reuse
from flows.request import ReleaseRequest, load_job
from privacy.errors import BudgetRefused, ClustMixError, Withheld
from privacy.ledger import LedgerEntry
from storage.cohorts import CohortReader
from storage.diagnostics import DiagnosticsFile
from storage.settings import Settings, load_settings
from storage.workspace import PrivateWorkspace
from tasks import ingest_steps, ledger_steps, measure_steps, publish_steps
from tasks.cluster import connect, local_cluster
from tasks.compute import DaskExecutor, Executor, LocalExecutor
from tasks.orchestrator import end_server_with_this_process
from tasks.run import Randomness, ReleaseJob, Site, randomness_of_run, stage
from tasks.runtime import (
    Failed,
    PipelineError,
    guarded_call,
    guarded_task,
    private_log_directory,
)
from tasks.synthesizers.curator import Curator
from tasks.synthesizers.plan import MeasurementPlan

clean_up = guarded_task(name="clean-up")(ledger_steps.clean_up)
check_source = guarded_task(name="check-source")(ledger_steps.check_source)
plan_measurement = guarded_task(name="plan")(measure_steps.plan_measurement)
identify = guarded_task(name="identify")(ledger_steps.identify)
reserve = guarded_task(name="reserve")(ledger_steps.reserve)
ingest = guarded_task(name="ingest")(ingest_steps.ingest)
seal = guarded_task(name="seal")(measure_steps.seal)
prepare = guarded_task(name="prepare")(publish_steps.prepare)
publish = guarded_task(name="publish")(publish_sealed)


_reports: ContextVar[list[ReleaseOutcome | Failed]] = ContextVar("reports")
"""Where `run_release` finds what the flow did; its own state holds public text only."""


@flow(
    name="release",
    flow_run_name="{request.dataset}/{request.release_id}",
    log_prints=False,
    persist_result=False,
    retries=0,
    validate_parameters=True,
)
def release_cohort(request: ReleaseRequest) -> State[None]:
    """Make and publish one synthetic release of a dataset.

    Returns
    -------
    State
        Completed, or failed with the name Refused, Withheld or Failed; its message is public. No
        exception leaves the flow, because the orchestrator would pickle it to disk.
    """
    outcome = guarded_call("release", _run_with_private_log, request)
    _reports.get([]).append(outcome)
    if isinstance(outcome, Failed):
        name = {BudgetRefused: "Refused", Withheld: "Withheld"}.get(outcome.error_class, "Failed")
        return FailedState(name=name, message=f"{outcome.code}: {outcome.message}")
    return Completed(message=f"{outcome.state} {outcome.dataset}/{outcome.release_id}")


def run_release(request: ReleaseRequest) -> ReleaseOutcome:
    """Run the flow in this process and return what it published.

    Raises
    ------
    ClustMixError
        With a public code and message; its class says how the run ended.
    """
    report: list[ReleaseOutcome | Failed] = []
    token = _reports.set(report)
    end_server_with_this_process()
    try:
        release_cohort(request, return_state=True)
    finally:
        _reports.reset(token)
    if not report:
        raise PipelineError("release:NotRun", "the orchestrator did not run the flow")
    outcome = report[0]
    if isinstance(outcome, Failed):
        raise outcome.error()
    return outcome


def _run_with_private_log(request: ReleaseRequest) -> ReleaseOutcome | Failed:
    """Run with a private log for what may not leave; settings are read inside of the guard too."""
    settings = load_settings()
    log_directory = settings.diagnostics / request.release_id
    with private_log_directory(log_directory):
        outcome = guarded_call("release", _run, request, settings)
    with suppress(OSError):
        log_directory.rmdir()  # only if nothing was logged
    return outcome


def _run(request: ReleaseRequest, settings: Settings) -> ReleaseOutcome:
    site = Site(settings=settings)
    job = load_job(request)
    with _private_run(site, job) as workspace:
        clean_up(site)
        reader = CohortReader(job.source, settings=site.settings)
        check_source(job, reader)
        plan = plan_measurement(job)
        key = identify(job, site, reader)
        reservation = reserve(job, site, key, new_draw=request.new_draw)
        if reservation.created:
            with _closing(site, reservation.entry):
                return _release(job, site, workspace, reader, plan, reservation.entry)
    # The measurement has been paid for: what is left to do is done without the table.
    return reuse(job, site, reservation.entry)


def _release(
    job: ReleaseJob,
    site: Site,
    workspace: PrivateWorkspace,
    reader: CohortReader,
    plan: MeasurementPlan,
    entry: LedgerEntry,
) -> ReleaseOutcome:
    """Run a reserved release: measure, then publish."""
    randomness = randomness_of_run()
    ledger_steps.begin(site, entry)
    _measure(job, site, workspace, reader, plan, entry, randomness)
    measurement = site.measurements.open(job.ref.release_id)
    prepare(job, site, entry, measurement, randomness.sampling)
    return publish(job, site, entry)


def _measure(
    job: ReleaseJob,
    site: Site,
    workspace: PrivateWorkspace,
    reader: CohortReader,
    plan: MeasurementPlan,
    entry: LedgerEntry,
    randomness: Randomness,
) -> None:
    """Read the cohort, run the method's stages, seal; nothing after this reads private rows."""
    diagnostics = DiagnosticsFile(site.settings.diagnostics / f"{job.ref.release_id}.jsonl")
    shards = ingest(job, reader, workspace, diagnostics)
    seals = measure_steps.Seals(workspace)
    with _executor(job, site, workspace) as executor:
        curator = Curator(
            plan=plan,
            compute=measure_steps.ShardCompute(executor, shards),
            noise_source=randomness.noise_source,
            seal=seals,
        )
        released: dict[str, Any] = {}
        for method_stage in job.synthesizer.stages(mu=job.mu):
            run_stage = guarded_task(name=method_stage.name)(measure_steps.run_stage)
            released = run_stage(method_stage, curator, released)
    measure_steps.check_draws(plan, curator)
    for shard in shards:
        shard.unlink()
    seal(job, site, entry, curator, seals, released)


@contextmanager
def _private_run(site: Site, job: ReleaseJob) -> Iterator[PrivateWorkspace]:
    """Give a run its private workspace, purged at the end however the run ends."""
    with PrivateWorkspace.create(site.private_root, job.ref.release_id) as workspace:
        yield workspace
        with stage("purge"):
            workspace.purge()


@contextmanager
def _closing(site: Site, entry: LedgerEntry) -> Iterator[None]:
    """Close the ledger entry of a run that stops; never give a charge back once data were read."""
    try:
        yield
    except BaseException as error:
        public = error if isinstance(error, ClustMixError) else _unnamed(error)
        ledger_steps.close_failed(site, entry, public)
        raise


def _unnamed(error: BaseException) -> ClustMixError:
    return PipelineError(f"release:{type(error).__name__}", "the run stopped")


@contextmanager
def _executor(job: ReleaseJob, site: Site, workspace: PrivateWorkspace) -> Iterator[Executor]:
    """Run sums on the configured Dask cluster, a local one, or in this process."""
    settings = site.settings
    if settings.dask_address is not None:
        with connect(settings.dask_address) as client:
            yield DaskExecutor(client, job.ref.release_id)
    elif settings.dask_workers == 0:
        yield LocalExecutor()
    else:
        with ExitStack() as cluster:
            with stage("cluster"):
                client = cluster.enter_context(
                    local_cluster(settings.dask_workers, workspace.path("dask"))
                )
            yield DaskExecutor(client, job.ref.release_id)
