"""Steps around the budget: clean up after dead runs, reserve, and close an entry."""

from __future__ import annotations

from types import MappingProxyType

from privacy.errors import ClustMixError, IntegrityError, LedgerError
from privacy.ledger import Balance, EntryState, LedgerEntry
from storage.cohorts import CohortReader
from storage.releases import verify_bundle
from storage.schema import TableSchema
from storage.workspace import live_run_ids, purge_abandoned
from tasks.run import ReleaseJob, Site, stage

_SEALED_STATES = (EntryState.SEALED, EntryState.APPROVED)

_CLOSED = MappingProxyType(
    {
        EntryState.RESERVED: EntryState.VOID,
        EntryState.EXECUTING: EntryState.BURNED,
        EntryState.SEALED: EntryState.WITHHELD,
        EntryState.APPROVED: EntryState.WITHHELD,
    }
)
"""What becomes of the entry of a run that stopped, by the state it was in."""


def clean_up(site: Site) -> None:
    """Close the entries of dead runs and delete what they left; live runs are not touched.

    An entry whose run died while it could draw noise is burned: its charge stands. One whose run
    died before it read a byte is void. One whose run died after it sealed is published if its
    bundle is in the store, whole and its own, and withheld if not.
    """
    with stage("clean-up"):
        root = site.private_root
        # Entries first: a run holds its workspace from before its reservation to after its last
        # transition, so an open entry that was seen here and has no live run is abandoned.
        entries = site.ledger.entries()
        live = live_run_ids(root)
        site.ledger.burn_abandoned(live)
        for entry in entries:
            if entry.state in _SEALED_STATES and entry.release_id not in live:
                _close(site, entry, note="ABANDONED")
        purge_abandoned(root)
        site.releases.clean_staging()


def check_source(job: ReleaseJob, reader: CohortReader) -> None:
    """Compare the header of the source with the schema, before any row is read or paid for."""
    with stage("check-source"):
        required, schema = job.columns_to_read, job.table_schema
        schema.check_header(reader.header(), also=_beside(required, schema))


def _beside(columns: tuple[str, ...], schema: TableSchema) -> tuple[str, ...]:
    released = set(schema.released_columns)
    return tuple(column for column in columns if column not in released)


def reserve(job: ReleaseJob, site: Site) -> LedgerEntry:
    """Charge the release before a private byte is read.

    Raises
    ------
    BudgetRefused
        If the charge does not fit under the cap.
    """
    with stage("reserve"):
        # A release that could not be published must not be paid for.
        site.releases.check_usable(job.ref.dataset)
        return site.ledger.reserve(
            dataset=job.cohort,
            release_id=job.ref.release_id,
            rho=job.charge_rho,
            epsilon=job.parameters.epsilon,
            delta=job.parameters.delta,
            adjacency=job.adjacency,
            unit=unit_in_words(job),
            lifetime_cap_rho=job.lifetime_cap_rho,
        )


def unit_in_words(job: ReleaseJob) -> str:
    """Return what one neighbour adds or removes, for the ledger and the manifest."""
    if job.unit.column is None:
        return "one row, which is one patient"
    return f"one patient, named by column {job.unit.column}"


def begin(site: Site, entry: LedgerEntry) -> None:
    """Move an entry to EXECUTING: from here on its charge stands, whatever happens."""
    site.ledger.transition(entry.entry_id, EntryState.EXECUTING, expected_from=EntryState.RESERVED)


def advance(
    site: Site, entry: LedgerEntry, state: EntryState, *, digest: str | None = None
) -> LedgerEntry:
    """Move an entry one state on from the state it is in."""
    before = {row.entry_id: row for row in site.ledger.entries(entry.dataset)}[entry.entry_id]
    return site.ledger.transition(entry.entry_id, state, expected_from=before.state, digest=digest)


def close_failed(site: Site, entry: LedgerEntry, error: ClustMixError) -> None:
    """Close the entry of a run that stopped, by how far it came; nothing is given back once read.

    A run that stopped between the appearance of its bundle and the ledger row that says so has
    published.
    """
    rows = {row.entry_id: row for row in site.ledger.entries(entry.dataset)}
    _close(site, rows[entry.entry_id], note=error.code)


def _close(site: Site, entry: LedgerEntry, *, note: str) -> None:
    """Move an entry to the closed state that follows its state; closed ones stay as they are."""
    following = _CLOSED.get(entry.state)
    digest = None
    if entry.state is EntryState.APPROVED:
        digest = _published_digest(site, entry)
        if digest is not None:
            following = EntryState.PUBLISHED
    if following is None:
        return
    try:
        site.ledger.transition(
            entry.entry_id, following, expected_from=entry.state, digest=digest, note=note
        )
    except LedgerError as error:
        # Another process has closed it in the meantime, or its run has.
        if error.code != "STATE_CHANGED":
            raise


def _published_digest(site: Site, entry: LedgerEntry) -> str | None:
    """Return the digest of the manifest of an entry's bundle if it is in the store and verifies."""
    ref = site.releases.find(entry.release_id)
    if ref is None:
        return None
    try:
        verified = verify_bundle(site.releases.path(ref))
    except IntegrityError:
        return None
    manifest = verified.manifest
    is_its_own = manifest.ref == ref and manifest.ledger_entry == entry.entry_id
    return verified.manifest_sha256 if is_its_own else None


def balance_after(job: ReleaseJob, site: Site) -> Balance:
    """Return the balance of the dataset with this release charged."""
    return site.ledger.balance(job.cohort)
