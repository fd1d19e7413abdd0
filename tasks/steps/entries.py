"""Ledger entries, moved by this installation's runs, whose progress is read from files on disk."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

from privacy.charges import Caps, Charge, ChargeColumns
from privacy.errors import (
    ClustMixError,
    InputError,
    IntegrityError,
    LedgerError,
    Withheld,
    refusals,
)
from privacy.ledger import TABLE_TAG, Balance, EntryState, LedgerEntry, Noted
from storage.files.private import file_locked
from storage.files.workspace import live_run_ids
from storage.keys.key_store import KeyStore
from storage.ledger.ledger_db import LedgerDatabase, Reservation
from storage.ledger.register import PatientRegister, open_register
from storage.releases.bundles import verify_bundle
from storage.releases.measurements import Measurement, MeasurementStore, unknown_charges
from storage.releases.release_store import ReleaseStore
from storage.schema.declarations import Declarations

refusal = refusals(__package__)

WAIT_SECONDS = 1800.0
"""Time limit of the wait for another run of the same request."""

AFTER_SEAL = (EntryState.SEALED, EntryState.APPROVED)
"""States of a measurement that is whole and not published."""

CHECK_PASSED, CHECK_FAILED = "CHECK_PASSED", "CHECK_FAILED"
"""Notes of a void entry that was reserved for a check alone."""

_POLL_SECONDS = 0.5
_BEFORE_SEAL = (EntryState.RESERVED, EntryState.EXECUTING)

_CLOSED = MappingProxyType(
    {EntryState.RESERVED: EntryState.VOID, EntryState.EXECUTING: EntryState.BURNED}
)
"""Final state of the entry of a run that stopped before its measurement was whole."""


class Entries:
    """The entries of a ledger, moved on by one installation, the `owner` of those that it runs.

    Locks of the `workspaces` show if a run is alive; its measurement and bundle show its progress.
    `declarations` is the folder of those that failed a check, and `register` the file of the
    patients who were read by entry.
    """

    def __init__(
        self,
        ledger: LedgerDatabase,
        *,
        owner: str,
        keys: KeyStore,
        measurements: MeasurementStore,
        releases: ReleaseStore,
        workspaces: Path,
        declarations: Path,
        register: Path,
    ) -> None:
        self._ledger = ledger
        self.owner = owner
        self._keys = keys
        self.measurements = measurements
        self.releases = releases
        self.workspaces = workspaces
        self._declarations = declarations
        self._register = register

    def all(self) -> tuple[LedgerEntry, ...]:
        """Return the latest row of each entry, in the order of reservation."""
        return self._ledger.entries()

    def now(self, entry: LedgerEntry) -> LedgerEntry:
        """Return an entry as it is by now."""
        return self._ledger.entry(entry.entry_id)

    def of_release(self, release_id: str) -> LedgerEntry:
        """Return the entry that has paid for a release (LedgerError)."""
        for entry in self.all():
            if entry.release_id == release_id:
                return entry
        raise refusal("RELEASE_UNKNOWN", release=release_id[:80])

    def measurement(self, entry: LedgerEntry) -> Measurement:
        """Open the sealed measurement of an entry; a row after SEALED may hold another digest."""
        sealed = next(
            row.digest
            for row in self._ledger.history()
            if row.entry_id == entry.entry_id and row.state is EntryState.SEALED
        )
        return self.measurements.open(entry.release_id, expected_sha256=sealed)

    def balance(self, entry: LedgerEntry, caps: Caps) -> Balance:
        """Return what is spent and what is left, under these caps, for releases like this one."""
        return self._ledger.balance(
            entry.cohort, dataset=entry.dataset, partition=entry.partition, caps=caps
        )

    def keeps_smaller_cap(self, cohort: str, caps: Caps) -> bool:
        """Return whether a cohort was ever given a smaller lifetime cap, which holds."""
        return (self._ledger.balance(cohort).cap_rho or caps.lifetime_rho) < caps.lifetime_rho

    def check_publishable(self, dataset: str) -> None:
        """Refuse a dataset whose release could not be published: it must not be paid for."""
        self.releases.check_usable(dataset)
        self._keys.pipeline()

    def reserve(
        self, charge: Charge, *, new_draw: bool = False, unless_burned: bool = False
    ) -> Reservation:
        """Reserve the charge of a release before a row is decoded, or find the entry that has paid.

        Another run of the same request is waited for; a dead one is closed first, as burned if it
        may have drawn noise. It is BudgetRefused if a cap is in the way, and with `unless_burned`
        Withheld if the last charge of the dataset burned.
        """
        self.check_publishable(charge.dataset)
        require_known(self.measurements, self.releases, self.all)
        with self.reading(charge) as register:
            if charge.partition is not None and register is not None:
                own = replace(charge.partition, register=register.register_id)
                charge = replace(charge, partition=own)
        give_up = time.monotonic() + WAIT_SECONDS
        while True:
            reservation = self._ledger.reserve(
                charge, new_draw=new_draw, unless_burned=unless_burned
            )
            entry = reservation.entry
            live = live_run_ids(self.workspaces)
            if reservation.created or not _runs(entry, live):
                return reservation
            dead = entry.owner == self.owner and entry.release_id not in live
            if dead and entry.state in _BEFORE_SEAL:
                self.close_dead(entry)
                continue
            if time.monotonic() > give_up:
                state = entry.state.value
                raise refusal(
                    "RELEASE_RUNNING", release=entry.release_id, state=state, seconds=WAIT_SECONDS
                )
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def reading(self, charge: ChargeColumns) -> Iterator[PatientRegister | None]:
        """Hold the register of read patients, if the charge is by entry: one run at a time."""
        if charge.partition is None or charge.partition.period is None:
            yield None
            return
        with file_locked(self._register.with_name(f"{self._register.name}.lock")):
            secret, rows = self._keys.ledger_secret(), self._ledger.history()
            yield open_register(self._register, secret, rows, owner=self.owner, charge=charge)

    def begin(self, entry: LedgerEntry, table: str, register: PatientRegister | None) -> None:
        """Move an entry to EXECUTING: from here on its charge stands, whatever happens.

        The row holds the tag of the table, by which `checked_before` finds checks of it; a table of
        which only other cohorts were charged is BudgetRefused, as its patients would have two
        budgets. Patients whom a register has chosen are kept before, and the row holds its head.
        """
        executing = [row for row in self._ledger.history() if row.state is EntryState.EXECUTING]
        paid = {row.cohort for row in executing if row.table == table}
        if paid and entry.cohort not in paid:
            cohort = " or ".join(sorted(paid))
            raise refusal("COHORT_OTHER", found=entry.cohort, cohort=cohort)
        note, head = f"CHECKED{TABLE_TAG}{table}", None
        if register is not None:
            head = register.keep(entry.entry_id)
        self.advance(entry.entry_id, EntryState.EXECUTING, note=note, digest=head)

    def advance(self, entry_id: str, state: EntryState, **noted: Unpack[Noted]) -> LedgerEntry:
        """Move an entry one state on from the state it is in."""
        now = self._ledger.entry(entry_id).state
        return self._ledger.transition(entry_id, state, expected_from=now, **noted)

    @contextmanager
    def checking(self, entry: LedgerEntry, declared: Declarations, table: str) -> Iterator[None]:
        """Give back what was reserved where the rows break a declared rule (InputError)."""
        try:
            yield
        except InputError as error:
            with suppress(ClustMixError, OSError):  # the next clean-up gives back what this did not
                self.end_check(entry, declared, table, code=error.code)
            raise

    def end_check(
        self, entry: LedgerEntry, declared: Declarations, table: str, *, code: str
    ) -> None:
        """Give back what was reserved for a check alone.

        The ledger row has the time, the requester, the declarations' digest and the table's tag.
        """
        note = f"{code}{TABLE_TAG}{table}"
        self.advance(entry.entry_id, EntryState.VOID, digest=declared.sha256, note=note)
        declared.keep(self._declarations)

    def checked_before(self, entry_id: str, declared: Declarations) -> tuple[str, ...]:
        """Return digests of other declarations by which rows of these patients were checked.

        One for each such check before an entry was reserved, in order: of its dataset, of its
        cohort, or, by any name, of files of the same content on this installation.
        """
        history = self._ledger.history()
        own = [row for row in history if row.entry_id == entry_id]
        tables = {row.table for row in own} - {None}
        return tuple(
            row.digest
            for row in history[: own[0].sequence - 1]
            if (row.dataset == own[0].dataset or row.cohort == own[0].cohort or row.table in tables)
            and row.state is EntryState.VOID
            and row.digest not in (None, declared.sha256)
        )

    def changed_since_check(self, entry_id: str, declared: Declarations) -> tuple[str, ...]:
        """Return the lines of the declarations that differ from those of the last check."""
        checked = self.checked_before(entry_id, declared)
        return declared.changed_since(self._declarations, checked[-1]) if checked else ()

    @contextmanager
    def closing(self, entry: LedgerEntry) -> Iterator[None]:
        """Close the entry of a run that stops, by how far it came; nothing read is given back.

        A measurement that must not be published is withheld. After the seal, or if the gate stopped
        only the rows, the entry stays open, and the next run of the same request goes on from it. A
        state that cannot be noted now, on a full disk for example, is noted by the next clean-up.
        """
        try:
            yield
        except BaseException as error:
            with suppress(Exception):
                self._close_failed(entry, error)
            if isinstance(error, ClustMixError) and entry.state in _BEFORE_SEAL:
                said = error.message + self._standing(entry)
                raise type(error)(error.code, said) from error
            raise

    def _standing(self, entry: LedgerEntry) -> str:
        """Return the words on a charge that stands after a run has stopped; "" if it does not."""
        try:
            state = self.now(entry).state
        except ClustMixError:
            return "; take it as charged until the ledger can be read"
        if state in (EntryState.RESERVED, EntryState.VOID):
            return ""
        rest = ", and the same request goes on from it at no charge" if state in AFTER_SEAL else ""
        return f"; the charge of epsilon {entry.epsilon:g} stands{rest}"

    def close_dead(self, entry: LedgerEntry, *, note: str = "ABANDONED") -> None:
        """Record the progress of a dead run in the ledger, and close its entry."""
        self._recover(entry)
        following = _CLOSED.get(entry.state)
        if following is not None:
            self._move(entry, following, note=note)

    def _recover(self, entry: LedgerEntry) -> None:
        """Record a measurement or a bundle that is whole, and that its run could not record."""
        digest, following = None, EntryState.SEALED
        if entry.state in _BEFORE_SEAL:
            digest = self._sealed_digest(entry)
            if digest is not None and entry.state is EntryState.RESERVED:
                # A restored ledger may lack EXECUTING, which comes before every seal.
                self._move(entry, EntryState.EXECUTING, note="RECOVERED")
                entry = self.now(entry)
        elif entry.state is EntryState.APPROVED:
            digest, following = self._published_digest(entry), EntryState.PUBLISHED
        if digest is not None:
            self._move(entry, following, digest=digest, note="RECOVERED")

    def _close_failed(self, entry: LedgerEntry, error: BaseException) -> None:
        current = self.now(entry)
        note = error.code if isinstance(error, ClustMixError) else f"run:{type(error).__name__}"
        if note == "OUTPUT_GATE" and current.state in AFTER_SEAL:
            return  # the rows were at fault, not the measurement: other rows may be published
        if isinstance(error, Withheld) and current.state in AFTER_SEAL:
            self._move(current, EntryState.WITHHELD, note=note)
        else:
            self.close_dead(current, note=note)

    def _move(self, entry: LedgerEntry, state: EntryState, **noted: Unpack[Noted]) -> None:
        try:
            self._ledger.transition(entry.entry_id, state, expected_from=entry.state, **noted)
        except LedgerError as error:
            # Another process has moved it in the meantime, or its run has.
            if error.code != "STATE_CHANGED":
                raise

    def _sealed_digest(self, entry: LedgerEntry) -> str | None:
        """Return the digest of an entry's measurement if it is whole and its own."""
        try:
            measurement = self.measurements.open(entry.release_id)
        except IntegrityError:
            return None
        return measurement.sha256 if measurement.record.ledger_entry == entry.entry_id else None

    def _published_digest(self, entry: LedgerEntry) -> str | None:
        """Return the digest of the manifest of an entry's bundle if it is in the store, whole."""
        ref = self.releases.find(entry.release_id)
        if ref is None:
            return None
        try:
            verified = verify_bundle(
                self.releases.path(ref),
                trusted=self._keys.pipeline_public(),
                officers=self._keys.officers(),
            )
        except IntegrityError:
            return None
        manifest = verified.manifest
        is_its_own = manifest.ref == ref and manifest.ledger_entry == entry.entry_id
        return verified.manifest_sha256 if is_its_own else None


def require_known(
    measurements: MeasurementStore,
    releases: ReleaseStore,
    entries: Callable[[], Sequence[LedgerEntry]],
) -> None:
    """Refuse if a draw is not in the ledger (IntegrityError), whose sums are then too small."""
    found = unknown_charges(measurements, releases, entries)
    if found:
        names = ", ".join(each.release_id for each in found[:3]) + (", ..." if found[3:] else "")
        raise refusal("LEDGER_INCOMPLETE", names=names)


def _runs(entry: LedgerEntry, live: Collection[str]) -> bool:
    """Return whether a run is at work on an entry; for other installations by state alone."""
    return entry.state in _BEFORE_SEAL or (entry.state in AFTER_SEAL and entry.release_id in live)
