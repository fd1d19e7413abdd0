"""Requests that were answered before: found by the key of what shapes a measurement."""

from flows.publication import Publisher, ReleaseOutcome
from privacy.ledger import EntryState, entry_paid_for
from storage.installation import open_keys
from storage.keys.key_store import KeyStore
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from tasks.execution.executor import Executor, InProcessExecutor
from tasks.steps import source
from tasks.steps.entries import Entries
from tasks.steps.job import ReleaseJob
from tasks.steps.request_key import request_key

HELD_BYTES = 2**25
"""Up to this size of its files one process reads a table sooner than workers have started."""


def key_of(
    job: ReleaseJob,
    reader: CohortReader,
    executor: Executor,
    keys: KeyStore,
) -> str:
    """Return the key of a measurement: of its content, its settings and the method's version."""
    return request_key(
        keys.ledger_secret(),
        content_sha256=source.content_of(reader, executor),
        settings=job.measurement_settings,
        method_version=job.method_version,
    )


def answered_before(job: ReleaseJob, settings: Settings) -> ReleaseOutcome | None:
    """Return the bundle that is in the store for the same request, with no run for it; or None.

    Nothing is charged, no row is measured. A request that asks for anything else of the ledger (an
    approval that is new, other rows) is left to a run, and so is a large table.
    """
    entries, keys = Entries(settings), open_keys(settings)
    if not any(
        entry.dataset == job.ref.dataset and entry.state is EntryState.PUBLISHED
        for entry in entries.all()
    ):
        return None
    reader = CohortReader(job.source, settings=settings)
    size = reader.size_bytes()
    if size is None or size > HELD_BYTES:
        return None  # workers of a run read it sooner, and if it is new it is read once
    keys.pipeline()  # made or refused first, as by a run
    key = key_of(job, reader, InProcessExecutor(), keys)
    asked = job.charge(key, owner=entries.owner)
    entry = entry_paid_for(asked, entries.all())
    if (
        entry is None
        or entry.state is not EntryState.PUBLISHED
        or (entry.needs_approval, entry.caps) != (asked.needs_approval, asked.caps)
    ):
        return None
    publisher = Publisher(settings)
    rows, soft_labels = job.rows, job.soft_labels
    if publisher.published_as_asked(entry, rows=rows, soft_labels=soft_labels) is None:
        return None
    return publisher.answer(entry, rows=rows, caps=job.caps, soft_labels=soft_labels)
