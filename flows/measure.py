"""The measurement of a cohort as a run of an orchestrator, which ends without a private row."""

from functools import partial

from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows import serving
from flows.events import emit, release_event
from flows.installation import Installation
from flows.measurement import measure
from flows.publication import refuse_withheld
from flows.site.request import ReleaseRequest, load_job
from flows.site.yearly import next_year
from privacy.ledger import EntryState
from tasks.execution.runtime import run_of_request


@run_of_request("measure")
def measure_cohort(request: ReleaseRequest) -> State[None]:
    """Measure a dataset under differential privacy and seal what was measured.

    The run deletes the private rows. A run of "publish", which reads none, publishes what it seals.

    The run ends Completed; Refused or Withheld, which are ordinary ends; or Failed. Its message is
    public. No exception leaves the flow, because the orchestrator would pickle it to disk.
    """
    about = (request.dataset, request.release_id)
    return serving.run("measure", about, partial(_measure_for_page, request))


def _measure_for_page(request: ReleaseRequest, here: Installation) -> State[None]:
    job = load_job(request, sites=here.sites, requester=here.requester)
    with serving.arrival_of(request, folder=here.arrivals, janitor=here.janitor) as table:
        job = job.reading(table)
        measured = measure(
            job,
            entries=here.entries,
            tables=here.tables,
            workplace=here.workplace,
            new_draw=request.new_draw,
            # To deliver a table anew is to ask for a new charge: see `serving.arrival_of`.
            again=request.again or request.arrival is not None,
        )
        entry = measured.entry
        balance, when = here.entries.balance(entry, job.caps), job.site.get("schedule")
        paid = (entry.partition, entry.rho)
        year = when and next_year(when, paid, entries=here.entries.all(), balance=balance)
        serving.show_budget(entry, balance, year or "")
        if measured.created:
            return Completed(message=f"sealed {job.ref}")
        refuse_withheld(entry)
        if entry.state is not EntryState.PUBLISHED:
            text = f"{job.ref}: this table was measured before, as {entry.release_id}"
            return Completed(message=f"{text}, which is {entry.state.value}; nothing is charged")
        if here.publisher.published_as_asked(entry.entry_id, job.asked) is None:
            # From a measurement that was sealed in an earlier run.
            emit([release_event("measurement.sealed", entry.dataset, entry.release_id)])
        text = f"{job.ref}: this table was released before, as {entry.release_id}"
        return Completed(message=f"{text}; nothing is charged")
