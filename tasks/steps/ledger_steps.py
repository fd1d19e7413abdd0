"""Steps around the budget: clean up after dead runs, reserve, move and close an entry."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from privacy.charges import unit_in_words
from privacy.errors import ClustMixError, IntegrityError, LedgerError, Withheld
from privacy.ledger import Balance, Charge, EntryState, LedgerEntry
from storage.files.folders import remove_staging, staged
from storage.files.workspace import live_run_ids, purge_abandoned
from storage.ledger.ledger_db import Reservation
from storage.releases.bundles import verify_bundle
from storage.schema.table import TableSchema
from storage.sources.cohorts import CohortReader
from tasks.steps.request_key import request_key
from tasks.steps.run import ReleaseJob, Site, stage

if TYPE_CHECKING:
    from tasks.execution.compute import (
        Executor,  # which imports Dask: a bad request is answered without it
    )

WAIT_SECONDS = 1800.0
"""How long a request waits for another run of the same request."""

_POLL_SECONDS = 0.5
_BEFORE_SEAL = (EntryState.RESERVED, EntryState.EXECUTING)
_AFTER_SEAL = (EntryState.SEALED, EntryState.APPROVED)

_CLOSED = MappingProxyType(
    {EntryState.RESERVED: EntryState.VOID, EntryState.EXECUTING: EntryState.BURNED}
)
"""What becomes of the entry of a run that stopped before its measurement was whole."""


def clean_up(site: Site) -> None:
    """Close the entries of dead runs and delete what they left; live runs are not touched.

    An entry whose run died before it read a byte is void. One whose run died while it could draw
    noise is burned, its charge stands; but if its measurement is whole, it is sealed, and if it can
    be continued, it is left open for the next run of the same request. A sealed or
    approved entry stays as it is, to be published by the next run of the same request, unless its
    bundle is in the store already.
    """
    root = site.private_root
    # Entries first: a run holds its workspace from before its reservation to after its last
    # transition, so an open entry that was seen here and has no live run is abandoned.
    owner = site.owner
    entries = [entry for entry in site.ledger.entries() if entry.owner == owner]
    # The same holds for the folders that it writes. They are listed here and not taken from the
    # workspaces that are purged, since a clean-up may die too.
    written = staged(site.settings.measurements) | site.pending.release_ids()
    live = live_run_ids(root)
    for entry in entries:
        if entry.release_id not in live and not can_continue(site, entry):
            _close_dead(site, entry)
    # Listed before the entries are read: a checkpoint is made after its entry is executing.
    kept = site.checkpoints.release_ids()
    open_entries = {e.release_id for e in site.ledger.entries() if e.state is EntryState.EXECUTING}
    for release_id in kept - open_entries - live:
        site.checkpoints.remove(release_id)
    waiting = {e.release_id for e in site.ledger.entries() if e.state in _AFTER_SEAL}
    purge_abandoned(root)
    for release_id in written - live:
        remove_staging(site.settings.measurements, release_id)
        remove_staging(site.settings.pending, release_id)
        if release_id not in waiting:
            site.pending.remove(release_id)
    site.releases.clean_staging()


def can_continue(site: Site, entry: LedgerEntry) -> bool:
    """Return whether the measurement of an entry can go on where its run has stopped.

    Its measurement may be whole already; then it is recovered and not continued.
    """
    return (
        entry.state is EntryState.EXECUTING
        and site.checkpoints.can_continue(entry.release_id)
        and _sealed_digest(site, entry) is None
    )


def _close_dead(site: Site, entry: LedgerEntry, *, note: str = "ABANDONED") -> None:
    """Say in the ledger how far a run came that is no more, and close what it left open.

    The entry was read before its run was found dead, so nobody else moves it from that state but
    those who do the same.
    """
    _recover(site, entry)
    following = _CLOSED.get(entry.state)
    if following is not None:
        _move(site, entry, following, note=note)


def _recover(site: Site, entry: LedgerEntry) -> None:
    """Record a measurement or a bundle that is whole, and that its run could not record."""
    digest, following = None, EntryState.SEALED
    if entry.state is EntryState.EXECUTING:
        digest = _sealed_digest(site, entry)
    elif entry.state is EntryState.APPROVED:
        digest, following = _published_digest(site, entry), EntryState.PUBLISHED
    if digest is not None:
        _move(site, entry, following, digest=digest, note="RECOVERED")


def check_source(job: ReleaseJob, reader: CohortReader) -> None:
    """Compare names and types of the source with the schema, before any row is read or paid for."""
    with stage("check-source"):
        required, schema = job.columns_to_read, job.table_schema
        schema.check_header(reader.header(), also=_beside(required, schema))
        reader.check_types(required)


def _beside(columns: tuple[str, ...], schema: TableSchema) -> tuple[str, ...]:
    released = set(schema.released_columns)
    return tuple(column for column in columns if column not in released)


def content_of(reader: CohortReader, executor: Executor) -> str:
    """Return a digest of the table; private.

    The content of a database is not known before it is read, so each of its releases is new.
    """
    return reader.content_sha256(map=executor.map) or os.urandom(32).hex()


def key_of(job: ReleaseJob, site: Site, content_sha256: str) -> str:
    """Return the key by which the same measurement is found again."""
    return request_key(
        site.keys.ledger_secret(), content_sha256=content_sha256, settings=job.measurement_settings
    )


def reserve(job: ReleaseJob, site: Site, key: str, *, new_draw: bool = False) -> Reservation:
    """Charge the release before a private byte is read, or find the entry that has paid.

    Where another run of the same request is at work, wait for its end.

    Returns
    -------
    Reservation
        A new entry, or the one that has paid for the same measurement. If that one is still being
        executed, its run has died and its measurement can be continued.

    Raises
    ------
    BudgetRefused
        If the charge does not fit under a cap.
    LedgerError
        If another run of the same request does not end.
    """
    with stage("reserve"):
        # A release that could not be published must not be paid for.
        site.releases.check_usable(job.ref.dataset)
        site.keys.pipeline()
        charge = Charge(
            cohort=job.cohort,
            dataset=job.ref.dataset,
            release_id=job.ref.release_id,
            request_key=key,
            rho=job.charge_rho,
            epsilon=job.parameters.epsilon,
            delta=job.parameters.delta,
            adjacency=job.adjacency,
            unit=unit_in_words(job.unit, job.partition),
            caps=job.caps,
            partition=job.partition,
            owner=site.owner,
            requester=job.requester,
            needs_approval=job.needs_approval,
        )
        give_up = time.monotonic() + WAIT_SECONDS
        while True:
            reservation = site.ledger.reserve(charge, new_draw=new_draw)
            entry = reservation.entry
            live = live_run_ids(site.private_root)
            if reservation.created or not _runs(entry, live):
                return reservation
            if _is_own_and_dead(site, entry, live):
                if can_continue(site, entry):
                    # It may have died while this run waited, and left what the next one makes.
                    purge_abandoned(site.private_root)
                    return reservation
                _close_dead(site, entry)
                continue
            if time.monotonic() > give_up:
                raise LedgerError(
                    "RELEASE_RUNNING",
                    f"expected release {entry.release_id} of the same table to end within "
                    f"{WAIT_SECONDS:.0f} seconds, found it {entry.state.value}; wait for its end, "
                    "or end it and run again",
                )
            time.sleep(_POLL_SECONDS)


def _is_own_and_dead(site: Site, entry: LedgerEntry, live: Collection[str]) -> bool:
    return (
        entry.state in _BEFORE_SEAL and entry.owner == site.owner and entry.release_id not in live
    )


def _runs(entry: LedgerEntry, live: Collection[str]) -> bool:
    """Whether a run is at work on an entry; another installation's can be told by state alone."""
    return entry.state in _BEFORE_SEAL or (entry.state in _AFTER_SEAL and entry.release_id in live)


def begin(site: Site, entry: LedgerEntry) -> None:
    """Move an entry to EXECUTING: from here on its charge stands, whatever happens."""
    site.ledger.transition(entry.entry_id, EntryState.EXECUTING, expected_from=EntryState.RESERVED)


def advance(
    site: Site,
    entry: LedgerEntry,
    state: EntryState,
    *,
    digest: str | None = None,
    note: str | None = None,
    signers: tuple[str, ...] = (),
) -> LedgerEntry:
    """Move an entry one state on from the state it is in."""
    before = site.ledger.entry(entry.entry_id)
    return site.ledger.transition(
        entry.entry_id,
        state,
        expected_from=before.state,
        digest=digest,
        note=note,
        signers=signers,
    )


@contextmanager
def closing(site: Site, entry: LedgerEntry) -> Iterator[None]:
    """Close the entry of a run that stops, by how far it came; nothing is given back once read.

    A run that must not be published is withheld. One whose rows the gate has stopped, or that
    failed after its measurement was sealed, leaves the entry open: the next run of the same
    request goes on from there. What cannot be noted now, on a full disk for example, is noted by
    the next `clean_up`.
    """
    try:
        yield
    except BaseException as error:
        with suppress(Exception):
            _close_failed(site, entry, error)
        raise


def _close_failed(site: Site, entry: LedgerEntry, error: BaseException) -> None:
    current = site.ledger.entry(entry.entry_id)
    if not isinstance(error, Exception) and can_continue(site, current):
        return  # stopped from outside, not by a fault that the next run would meet again
    note = error.code if isinstance(error, ClustMixError) else f"run:{type(error).__name__}"
    if note == "OUTPUT_GATE" and current.state in _AFTER_SEAL:
        return  # the rows were at fault, not the measurement: other rows of it may be published
    if isinstance(error, Withheld) and current.state in _AFTER_SEAL:
        _move(site, current, EntryState.WITHHELD, note=note)
    else:
        _close_dead(site, current, note=note)


def _move(
    site: Site,
    entry: LedgerEntry,
    following: EntryState,
    *,
    digest: str | None = None,
    note: str | None = None,
) -> None:
    try:
        site.ledger.transition(
            entry.entry_id, following, expected_from=entry.state, digest=digest, note=note
        )
    except LedgerError as error:
        # Another process has moved it in the meantime, or its run has.
        if error.code != "STATE_CHANGED":
            raise


def _sealed_digest(site: Site, entry: LedgerEntry) -> str | None:
    """Return the digest of an entry's measurement if it is whole and its own."""
    try:
        measurement = site.measurements.open(entry.release_id)
    except IntegrityError:
        return None
    return measurement.sha256 if measurement.record.ledger_entry == entry.entry_id else None


def _published_digest(site: Site, entry: LedgerEntry) -> str | None:
    """Return the digest of the manifest of an entry's bundle if it is in the store and verifies."""
    ref = site.releases.find(entry.release_id)
    if ref is None:
        return None
    try:
        verified = verify_bundle(
            site.releases.path(ref),
            trusted=site.keys.pipeline_public(),
            officers=site.keys.officers(),
        )
    except IntegrityError:
        return None
    manifest = verified.manifest
    is_its_own = manifest.ref == ref and manifest.ledger_entry == entry.entry_id
    return verified.manifest_sha256 if is_its_own else None


def balance_after(job: ReleaseJob, site: Site) -> Balance:
    """Return what is spent and what is left for releases like this one."""
    return site.ledger.balance(
        job.cohort, dataset=job.ref.dataset, partition=job.partition, caps=job.caps
    )
