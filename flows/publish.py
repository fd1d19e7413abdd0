"""The publication of a sealed measurement, as a run of its own. No table is read."""

from functools import partial
from pathlib import Path

from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows import decisions, serving
from flows.installation import Installation
from flows.publication import Publisher, ReleaseOutcome, job_of_measurement
from flows.site.request import FORM, ReleaseRequest, load_job
from privacy.errors import refusals
from privacy.ledger import EntryState, LedgerEntry
from storage.files.documents import DatasetName, Record, ReleaseId
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import Approval
from storage.schema.declarations import Declarations
from tasks.execution.runtime import guarded_task, run_of_request
from tasks.steps.entries import Entries
from tasks.steps.job import ReleaseJob

refusal = refusals(__package__)

_UNSEALED = (EntryState.RESERVED, EntryState.EXECUTING, EntryState.VOID, EntryState.BURNED)

publish = guarded_task("publish")(Publisher.answer)
carry_out = guarded_task("carry-out-decision")(decisions.carry_out)


class PublishRequest(Record):
    """Publish a sealed measurement, with an officer's decision if one is needed.

    The decision carries the signature of the officer's own key, so anybody may paste it here.
    """

    model_config = FORM

    dataset: DatasetName
    """Name of the dataset, in lower-case letters, digits and hyphens."""
    release_id: ReleaseId
    """Id of the release whose measurement is sealed, r-YYYYMMDD-xxxxxxxx."""
    decision: str | None = Field(default=None, title="Signed decision", max_length=20_000)
    """Printed by clustmix sign for the officer, approving or rejecting. Leave it out where no
    officer has to agree."""


@run_of_request("publish")
def publish_measurement(request: PublishRequest) -> State[None]:
    """Publish a sealed measurement; where an officer has to agree, only with a signed decision.

    The run ends Completed; Waiting, where an officer has to decide; Withheld, also where one has
    rejected; or Failed. Its message is public.
    """
    about = (request.dataset, request.release_id)
    return serving.run("publish", about, partial(_publish_for_page, request))


def _publish_for_page(request: PublishRequest, here: Installation) -> State[None]:
    entry = here.entries.of_release(request.release_id)
    if entry.dataset != request.dataset:
        raise refusal(
            "OTHER_DATASET", dataset=request.dataset, release=entry.release_id, other=entry.dataset
        )
    if request.decision is None:
        job = _job_of(entry, here.entries, sites=here.sites, requester=here.requester)
        outcome = publish(here.publisher, entry, job.asked)
    else:
        signed = Approval.from_bytes(request.decision.strip().encode("utf-8"))
        decided = carry_out(here.publisher, request.release_id, signed)
        if not isinstance(decided, ReleaseOutcome):
            return Completed(
                name="Withheld", message=f"{decided.release_id}: rejected by an officer"
            )
        outcome = decided
    bundle = Path(outcome.bundle)
    manifest = Manifest.from_bytes((bundle / MANIFEST_FILE).read_bytes())
    if outcome.state == "published":
        serving.show_release(manifest, bundle, here.releases_url)
        return Completed(message=f"published {manifest.ref}")
    declared = Declarations.of(here.entries.measurement(entry).record.site)
    changed = here.entries.changed_since_check(entry.entry_id, declared)
    serving.show_waiting(manifest, bundle, changed)
    return Completed(name="Waiting", message=f"{manifest.ref} waits for an officer")


def _job_of(
    entry: LedgerEntry, entries: Entries, *, sites: Path, requester: str | None
) -> ReleaseJob:
    """Return the job of a release as sealed; once published, as its site file now declares it."""
    if entry.state in _UNSEALED:
        raise refusal("NOTHING_TO_PUBLISH now", release=entry.release_id, state=entry.state.value)
    if entry.state is not EntryState.PUBLISHED:
        return job_of_measurement(entries.measurement(entry), entry.release_id)
    asked = ReleaseRequest(dataset=entry.dataset, release_id=entry.release_id)
    return load_job(asked, sites=sites, requester=requester)
