"""The publication of a sealed measurement, as a run of its own. No table is read."""

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State

from flows import serving
from flows.approval import Decisions
from flows.publication import Publisher, ReleaseOutcome, job_of_measurement
from flows.serving import Ending
from flows.site.request import PublishRequest, ReleaseRequest, load_job
from privacy.errors import LedgerError
from privacy.ledger import EntryState, LedgerEntry
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import Approval
from storage.schema.declarations import Declarations
from storage.settings import Settings
from tasks.execution.runtime import guarded_task
from tasks.steps.entries import Entries
from tasks.steps.job import ReleaseJob

_UNSEALED = (EntryState.RESERVED, EntryState.EXECUTING, EntryState.VOID, EntryState.BURNED)

publish = guarded_task(name="publish")(Publisher.answer)
carry_out = guarded_task(name="carry-out-decision")(Decisions.carry_out)


@flow(
    name="publish",
    flow_run_name="{request.dataset}/{request.release_id}",
    log_prints=False,
    persist_result=False,
    retries=0,
    validate_parameters=True,
)
def publish_measurement(request: PublishRequest) -> State[None]:
    """Publish a sealed measurement; where an officer has to agree, only with a signed decision.

    The run ends Completed; Waiting, where an officer has to decide; Withheld, also where one has
    rejected; or Failed. Its message is public.
    """
    return serving.run("publish", request, _publish_for_page)


def _publish_for_page(request: PublishRequest, settings: Settings) -> Ending:
    """Publish, or carry out a decision, and tell the page what came of it."""
    entry = Entries(settings).of_release(request.release_id)
    if entry.dataset != request.dataset:
        raise LedgerError(
            "OTHER_DATASET",
            f"expected a release of dataset {request.dataset!r}, found {entry.release_id} of "
            f"{entry.dataset!r}",
        )
    if request.decision is None:
        job = _asked(request, settings, entry)
        outcome = publish(
            Publisher(settings), entry, rows=job.rows, caps=job.caps, soft_labels=job.soft_labels
        )
    else:
        approval = Approval.from_bytes(request.decision.strip().encode("utf-8"))
        decided = carry_out(Decisions(settings), request.release_id, approval)
        if not isinstance(decided, ReleaseOutcome):
            return Ending(name="Withheld", text=f"{decided.release_id}: rejected by an officer")
        outcome = decided
    return _shown(outcome, settings)


def _asked(request: PublishRequest, settings: Settings, entry: LedgerEntry) -> ReleaseJob:
    """Return what is asked: as sealed, or as the site file asks of a published one by now."""
    if entry.state in _UNSEALED:
        raise LedgerError(
            "NOTHING_TO_PUBLISH",
            f"expected a sealed measurement, found {entry.release_id} {entry.state.value}",
        )
    if entry.state is not EntryState.PUBLISHED:
        return job_of_measurement(Entries(settings).measurement(entry), entry.release_id)
    asked = ReleaseRequest(dataset=request.dataset, release_id=request.release_id)
    return load_job(asked, settings)


def _shown(outcome: ReleaseOutcome, settings: Settings) -> Ending:
    """Show the bundle on the page and say how the run ends."""
    bundle = Path(outcome.bundle)
    manifest = Manifest.from_bytes((bundle / MANIFEST_FILE).read_bytes())
    if outcome.state == "sealed":
        entries = Entries(settings)
        entry = entries.of_release(manifest.release_id)
        declared = Declarations.of(entries.measurement(entry).record.site)
        serving.show_waiting(manifest, bundle, entries.changed_since_check(entry, declared))
        return Ending(name="Waiting", text=f"{manifest.ref} waits for an officer")
    serving.show_release(manifest, bundle, settings)
    return Ending(text=f"published {manifest.ref}")
