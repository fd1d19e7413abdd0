"""Requests that were answered before: found by the key of what shapes a measurement."""

from flows.installation import HELD_BYTES
from flows.publication import Publisher, ReleaseOutcome
from privacy.ledger import EntryState, entry_paid_for
from tasks.execution.executor import InProcessExecutor
from tasks.steps.job import ReleaseJob
from tasks.steps.source import Tables


def answered_before(
    job: ReleaseJob, *, tables: Tables, publisher: Publisher
) -> ReleaseOutcome | None:
    """Return the bundle that is in the store for the same request, with no run for it; or None.

    Nothing is charged, no row is measured. A request that asks for anything else of the ledger (an
    approval that is new, other rows) is left to a run, and so is a large table.
    """
    entries = publisher.entries
    if not any(
        entry.dataset == job.ref.dataset and entry.state is EntryState.PUBLISHED
        for entry in entries.all()
    ):
        return None
    reader = tables.reader(job.source)
    size = reader.size_bytes()
    if size is None or size > HELD_BYTES:
        return None  # workers of a run read it sooner, and if it is new it is read once
    entries.check_publishable(job.ref.dataset)  # as by a run
    key, _ = tables.key(reader, InProcessExecutor(), **job.identity)
    asked = job.charge(key, owner=entries.owner)
    entry = entry_paid_for(asked, entries.all())
    if (
        entry is None
        or entry.state is not EntryState.PUBLISHED
        or (entry.needs_approval, entry.caps) != (asked.needs_approval, asked.caps)
        or publisher.published_as_asked(entry.entry_id, job.asked) is None
    ):
        return None
    # As by a run: the rows of a killed one do not wait for the next charge.
    publisher.janitor.clean_up()
    return publisher.answer(entry, job.asked)
