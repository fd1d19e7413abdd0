"""Steps around the budget: clean up after dead runs, reserve, and close an entry."""

from __future__ import annotations

from privacy.errors import ClustMixError
from privacy.ledger import Balance, EntryState, LedgerEntry
from storage.cohorts import CohortReader
from storage.schema import TableSchema
from storage.workspace import live_run_ids, purge_abandoned
from tasks.run import ReleaseJob, Site, stage


def clean_up(site: Site) -> None:
    """Close the entries of dead runs and delete what they left; live runs are not touched.

    An entry whose run died while it could draw noise is burned: its charge stands. One whose run
    died before it read a byte is void.
    """
    with stage("clean-up"):
        root = site.private_root
        site.ledger.burn_abandoned(live_run_ids(root))
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
        return site.ledger.reserve(
            dataset=job.ref.dataset,
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
    """Close the entry of a run that stopped: void, burned or withheld, by how far it came."""
    rows = {row.entry_id: row for row in site.ledger.entries(entry.dataset)}
    after = {
        EntryState.RESERVED: EntryState.VOID,
        EntryState.EXECUTING: EntryState.BURNED,
        EntryState.SEALED: EntryState.WITHHELD,
        EntryState.APPROVED: EntryState.WITHHELD,
    }
    state = rows[entry.entry_id].state
    if state in after:
        site.ledger.transition(entry.entry_id, after[state], expected_from=state, note=error.code)


def balance_after(job: ReleaseJob, site: Site) -> Balance:
    """Return the balance of the dataset with this release charged."""
    return site.ledger.balance(job.ref.dataset)
