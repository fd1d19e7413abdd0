"""From a sealed measurement to a published bundle: publish, resume, resample.

None of this reads the table or draws noise, and none of it costs budget.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from flows.site.request import job_of
from flows.site.site_file import SiteFile
from privacy.errors import IntegrityError, LedgerError, Withheld
from privacy.ledger import EntryState, LedgerEntry
from storage.files.refs import ReleaseRef, new_release_id
from storage.files.workspace import PrivateWorkspace
from storage.releases.bundles import verify_bundle
from storage.releases.manifest import Manifest
from storage.releases.measurements import Measurement
from storage.releases.revocations import list_beside, read_revocations
from storage.releases.signatures import (
    APPROVAL_FILE,
    Approval,
)
from storage.releases.store import manifests_in
from storage.sources.declared import KEPT
from tasks.ingest.conditions import check_conditions
from tasks.measurement.randomness import randomness_of_run
from tasks.reporting.guarantee import Claim
from tasks.steps import ledger_steps, publish_steps
from tasks.steps.run import ReleaseJob, Site

_AFTER_SEAL = (EntryState.SEALED, EntryState.APPROVED)
_PUBLISHED_ONCE = (EntryState.PUBLISHED, EntryState.REVOKED)
_POLL_SECONDS = 0.5


class ReleaseOutcome(BaseModel):
    """What a release says about itself when its run ends; every field is public.

    Attributes
    ----------
    state : str
        ``published``, or ``sealed`` while an officer has not decided.
    bundle : str
        Folder of the bundle; of a sealed one, where the officer finds it.
    reused : bool
        Whether it was made from a measurement that had been paid for before.
    charged_rho : str
        What this run has charged.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    release_id: str
    state: Literal["published", "sealed"]
    bundle: str
    guarantee: str
    epsilon: float
    delta: float
    adjacency: str
    replace_one_epsilon: float
    reused: bool
    charged_rho: str
    remaining_rho: str
    releases_left: int


def publish_sealed(job: ReleaseJob, site: Site, entry: LedgerEntry) -> ReleaseOutcome:
    """Publish a prepared bundle, or leave it for an officer where one has to agree.

    The caller holds the workspace of the release.
    """
    entry = site.ledger.entry(entry.entry_id)
    if entry.state is EntryState.SEALED and entry.needs_approval:
        return pending_outcome(job, site, entry)
    if entry.state is EntryState.SEALED:
        entry = publish_steps.approve(site, entry)
    bundle = publish_steps.publish(site, entry)
    return published_outcome(job, site, bundle)


def answer(job: ReleaseJob, site: Site, entry: LedgerEntry) -> ReleaseOutcome:
    """Answer a request whose measurement has been paid for: publish, repeat or resample it.

    Raises
    ------
    Withheld
        If its measurement was withheld or revoked.
    """
    if entry.state in _AFTER_SEAL:
        outcome = resume(site, entry)
        if outcome is not None and outcome.state == "sealed":
            return outcome
        entry = site.ledger.entry(entry.entry_id)
    # A bundle in an order that was declared since stands, though the suspect one was taken back.
    bundle = published_as_asked(job, site, entry)
    if bundle is not None:
        return published_outcome(job, site, bundle, reused=True)
    refuse_withheld(entry)
    return resample(site, entry.release_id, rows=job.rows)


def refuse_withheld(entry: LedgerEntry) -> None:
    """Refuse to go on with a measurement that was withheld, or taken back.

    Raises
    ------
    Withheld
    """
    if entry.state in (EntryState.WITHHELD, EntryState.REVOKED):
        raise Withheld(
            "MEASUREMENT_WITHHELD",
            f"release {entry.release_id} of the same table was {entry.state.value}; a measurement "
            "with new noise is possible (--new-draw) and is charged again",
        )


def published_as_asked(job: ReleaseJob, site: Site, entry: LedgerEntry) -> Path | None:
    """Return a bundle of a measurement that is what a request asks for, or None."""
    # The release that paid comes before those that were sampled from it.
    bundles = sorted(manifests_in(site.releases), key=lambda m: m.release_id != entry.release_id)
    for manifest in bundles:
        as_asked = manifest.rows == job.rows and not manifest.conditions and not manifest.is_suspect
        if as_asked and manifest.ledger_entry == entry.entry_id:
            bundle = site.releases.path(manifest.ref)
            if not _is_revoked(site, bundle):
                return bundle
    return None


def _is_revoked(site: Site, bundle: Path) -> bool:
    """Whether a bundle was taken back by itself, while its measurement was not."""
    revoked = list_beside(bundle)
    if revoked is None:
        return False
    trusted = site.keys.pipeline_public()
    verified = verify_bundle(bundle, trusted=trusted, officers=site.keys.officers())
    try:
        read_revocations(revoked, trusted=trusted).require_not_revoked(verified)
    except IntegrityError as error:
        if error.code == "RELEASE_REVOKED":
            return True
        raise
    return False


def resume(site: Site, entry: LedgerEntry) -> ReleaseOutcome | None:
    """Go on with a release whose run ended between its seal and its publication.

    Where another process does so, wait for its end; return None if nothing is left to do then.
    """
    with (
        release_locked(site, entry.release_id, wait_seconds=ledger_steps.WAIT_SECONDS),
        ledger_steps.closing(site, entry),
    ):
        entry = site.ledger.entry(entry.entry_id)
        if entry.state not in _AFTER_SEAL:
            return None
        pending_manifest(site, entry)
        job = job_of_measurement(measurement_of(site, entry), entry.release_id)
        outcome = publish_sealed(job, site, entry)
    return outcome.model_copy(update={"reused": True, "charged_rho": "0"})


def publish(site: Site, release_id: str) -> ReleaseOutcome:
    """Go on with a sealed release by its id, without its table: whose table or program changed.

    Raises
    ------
    LedgerError
        If no such release is sealed or approved.
    """
    entry = entry_of(site, release_id)
    outcome = resume(site, entry) if entry.state in _AFTER_SEAL else None
    if outcome is None:
        state = site.ledger.entry(entry.entry_id).state.value
        raise LedgerError(
            "NOTHING_TO_PUBLISH",
            f"expected a sealed release that was not published, found {release_id} {state}",
        )
    return outcome


def resample(
    site: Site,
    release_id: str,
    *,
    rows: int | None = None,
    conditions: Mapping[str, str] | None = None,
) -> ReleaseOutcome:
    """Publish other rows from the measurement of a published release, at no cost.

    Parameters
    ----------
    site
        The installation.
    release_id
        A published release that paid for its measurement.
    rows
        Number of rows; as in the release if left out.
    conditions
        Declared levels, by column, that all rows have.

    Raises
    ------
    LedgerError
        If no such release has paid for a measurement.
    Withheld
        If it was not published, or the rows fail the gate.
    ConfigurationError
        If a condition is on no declared level.
    """
    entry = entry_of(site, release_id)
    measurement = measurement_of(site, entry) if entry.state in _PUBLISHED_ONCE else None
    if measurement is None or (entry.state is EntryState.REVOKED and not _of_order(measurement)):
        raise Withheld(
            "NOT_PUBLISHED",
            f"expected a published release, found {release_id} {entry.state.value}; only what was "
            "published once is sampled again",
        )
    job = job_of_measurement(measurement, new_release_id())
    job = replace(job, rows=job.rows if rows is None else rows)
    check_conditions(job.table_schema, conditions or {})
    approval = _approval_of(site, entry) if entry.needs_approval else None
    with release_locked(site, job.ref.release_id):
        publish_steps.prepare(
            job, site, entry, measurement, randomness_of_run().sampling, conditions
        )
        if approval is not None:
            site.pending.approve(job.ref.release_id, approval)
        bundle, _ = publish_steps.publish_pending(site, job.ref.release_id)
        site.pending.remove(job.ref.release_id)
    return published_outcome(job, site, bundle, reused=True)


def _of_order(measurement: Measurement) -> bool:
    """Whether an officer has said that a measurement was taken back for its order alone."""
    return measurement.declared is not None and measurement.declared.revoked_for_order


def published_outcome(
    job: ReleaseJob, site: Site, bundle: Path, *, reused: bool = False
) -> ReleaseOutcome:
    """Return what a published bundle says."""
    manifest = verify_bundle(
        bundle, trusted=site.keys.pipeline_public(), officers=site.keys.officers()
    ).manifest
    return _outcome(job, site, manifest, bundle, state="published", reused=reused)


def pending_outcome(job: ReleaseJob, site: Site, entry: LedgerEntry) -> ReleaseOutcome:
    """Return what a bundle says that waits for an officer."""
    pending = site.pending.find(entry.release_id)
    if pending is None:
        raise _nothing_pending(entry)
    folder = site.pending.path(entry.release_id)
    return _outcome(job, site, pending.manifest, folder, state="sealed", reused=False)


def _outcome(
    job: ReleaseJob,
    site: Site,
    manifest: Manifest,
    bundle: Path,
    *,
    state: Literal["published", "sealed"],
    reused: bool,
) -> ReleaseOutcome:
    balance = ledger_steps.balance_after(job, site)
    return ReleaseOutcome(
        dataset=manifest.dataset,
        release_id=manifest.release_id,
        state=state,
        bundle=str(bundle),
        guarantee=Claim(manifest).statement,
        epsilon=manifest.epsilon,
        delta=manifest.delta,
        adjacency=manifest.adjacency,
        replace_one_epsilon=manifest.replace_one_epsilon,
        reused=reused,
        charged_rho="0" if reused else f"{job.charge_rho:f}",
        remaining_rho=f"{balance.remaining_rho:f}",
        releases_left=balance.releases_left(job.charge_rho),
    )


@contextmanager
def release_locked(site: Site, release_id: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of a release, so that one process at a time works on it.

    What a dead process has left of it is cleaned up; a live one is waited for.
    """
    give_up = time.monotonic() + wait_seconds
    workspace = None
    while workspace is None:
        ledger_steps.clean_up(site)
        try:
            workspace = PrivateWorkspace.create(site.private_root, release_id)
        except IntegrityError as error:
            if error.code != "WORKSPACE_EXISTS" or time.monotonic() >= give_up:
                raise
            time.sleep(_POLL_SECONDS)
    with workspace:
        yield


def pending_manifest(site: Site, entry: LedgerEntry) -> Manifest:
    """Return the manifest that waits; its bundle is made again where it was lost."""
    waiting = site.pending.find(entry.release_id)
    if waiting is None or waiting.manifest.is_suspect:
        measurement = measurement_of(site, entry)
        _ = measurement.vocabulary  # refused here, nothing is lost
        site.pending.remove(entry.release_id)
        job = job_of_measurement(measurement, entry.release_id)
        publish_steps.prepare(job, site, entry, measurement, randomness_of_run().sampling)
        if waiting is not None and waiting.approval is not None:
            # It is about the charge, the measurement and the guarantee, which are the same.
            site.pending.approve(entry.release_id, waiting.approval)
    pending = site.pending.find(entry.release_id)
    if pending is None:
        raise _nothing_pending(entry)
    return pending.manifest


def _nothing_pending(entry: LedgerEntry) -> IntegrityError:
    return IntegrityError(
        "NOTHING_PENDING", f"expected a bundle of {entry.release_id} that waits, found none"
    )


def _approval_of(site: Site, entry: LedgerEntry) -> Approval:
    """Return the officer's signature of the release that paid, which holds for its measurement."""
    ref = ReleaseRef(dataset=entry.dataset, release_id=entry.release_id)
    bundle = site.releases.path(ref)
    verify_bundle(bundle, trusted=site.keys.pipeline_public(), officers=site.keys.officers())
    return Approval.from_bytes((bundle / APPROVAL_FILE).read_bytes())


def entry_of(site: Site, release_id: str) -> LedgerEntry:
    """Return the entry that has paid for a release.

    Raises
    ------
    LedgerError
        If no such release has paid.
    """
    for entry in site.ledger.entries():
        if entry.release_id == release_id:
            return entry
    raise LedgerError(
        "RELEASE_UNKNOWN",
        f"expected a release that paid for its measurement, found no {release_id[:80]!r} in the "
        "ledger (clustmix ledger show); a resample is sampled again from its original",
    )


def measurement_of(site: Site, entry: LedgerEntry) -> Measurement:
    """Open the sealed measurement of an entry; a row after SEALED may hold another digest."""
    sealed = next(
        row.digest
        for row in site.ledger.history()
        if row.entry_id == entry.entry_id and row.state is EntryState.SEALED
    )
    return site.measurements.open(entry.release_id, expected_sha256=sealed)


def job_of_measurement(measurement: Measurement, release_id: str) -> ReleaseJob:
    """Return the job that a measurement was made for, by the site file that it keeps."""
    site_file = SiteFile.model_validate(
        measurement.site, by_name=False, by_alias=True, context=dict(KEPT)
    )
    return job_of(site_file, release_id, requester=measurement.record.requester)
