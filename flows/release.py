"""A release in one run: a hospital table goes in, a synthetic table with a guarantee comes out.

This is what ``clustmix release`` does. Where an orchestrator is served, the two halves are runs of
their own: `flows.measure`, which ends without a private row, and `flows.publish`.
"""

from contextvars import ContextVar

from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.installation import Installation
from flows.measurement import clean_up, measure
from flows.publication import Publisher, ReleaseOutcome
from flows.site.request import SiteRequest, load_job
from storage.settings import Settings
from tasks.execution.runtime import (
    Failed,
    PipelineError,
    guarded_task,
    run_of_request,
    with_private_log,
)
from tasks.steps.job import ReleaseJob

publish = guarded_task("publish")(Publisher.answer)

_reports: ContextVar[list[ReleaseOutcome | Failed]] = ContextVar("reports")
"""Results of the flow, for `run_release`; the state of the flow holds public text only."""

_jobs: ContextVar[ReleaseJob | None] = ContextVar("jobs")
"""Job that was read before the flow; the orchestrator gets the request alone."""


@run_of_request("release")
def release_cohort(request: SiteRequest) -> State[None]:
    """Make and publish one synthetic release of a dataset.

    The run ends Completed; Refused or Withheld; or Failed. Its message is public. No exception
    leaves the flow, because the orchestrator would pickle it to disk.
    """
    outcome = with_private_log(
        "release", request.release_id, lambda settings: _release(request, settings)
    )
    _reports.get([]).append(outcome)
    if isinstance(outcome, Failed):
        return outcome.state()
    return Completed(message=f"{outcome.state} {outcome.dataset}/{outcome.release_id}")


def run_release(request: SiteRequest, job: ReleaseJob | None = None) -> ReleaseOutcome:
    """Run the flow here, with a job that was read before; return what it published, or raise."""
    report: list[ReleaseOutcome | Failed] = []
    token, read_before = _reports.set(report), _jobs.set(job)
    try:
        release_cohort(request, return_state=True)
    finally:
        _reports.reset(token)
        _jobs.reset(read_before)
    if not report:
        raise PipelineError("release:NotRun", "the orchestrator did not run the flow")
    outcome = report[0]
    if isinstance(outcome, Failed):
        raise outcome.error()
    return outcome


def _release(request: SiteRequest, settings: Settings) -> ReleaseOutcome:
    job = _jobs.get(None) or load_job(request, sites=settings.sites, requester=settings.requester)
    here = Installation.open(settings)
    clean_up(here.janitor)
    measured = measure(
        job,
        entries=here.entries,
        tables=here.tables,
        workplace=here.workplace,
        new_draw=request.new_draw,
        again=request.again,
    )
    entry = measured.entry
    outcome = publish(here.publisher, entry, job.asked)
    if measured.created:
        return outcome.model_copy(update={"reused": False, "charged_rho": f"{entry.rho:f}"})
    return outcome
