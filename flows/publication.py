"""From a sealed measurement to a bundle, at no cost; no table is read and no noise is drawn."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from flows.site.request import job_of
from flows.site.site_file import SiteFile
from privacy.charges import Caps
from privacy.errors import IntegrityError, LedgerError, Withheld
from privacy.ledger import EntryState, LedgerEntry
from storage.files.documents import KEPT, Record
from storage.files.private import ensure_private_directory
from storage.files.refs import ReleaseRef, new_release_id
from storage.files.workspace import PrivateWorkspace
from storage.installation import open_keys
from storage.releases.bundles import verify_bundle
from storage.releases.manifest import Manifest
from storage.releases.measurements import Measurement
from storage.releases.pending import PendingBundles
from storage.releases.release_store import ReleaseStore, manifests_in
from storage.releases.revocations import list_beside, read_revocations
from storage.releases.signatures import APPROVAL_FILE, Approval
from storage.settings import Settings
from tasks.execution.runtime import stage
from tasks.ingest.conditional_rows import allowed_codes
from tasks.measurement.run_randomness import randomness_of_run
from tasks.reporting.guarantee import Claim
from tasks.reporting.released_teacher import SOFT_LABELS_FILE
from tasks.steps import janitor, publish_steps
from tasks.steps.entries import AFTER_SEAL, WAIT_SECONDS, Entries
from tasks.steps.job import ReleaseJob

_POLL_SECONDS = 0.5


class ReleaseOutcome(Record):
    """What a release says of itself, all public; ``sealed`` while an officer has not decided."""

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


class Publisher:
    """Publishes from the sealed measurements of an installation."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._entries = Entries(settings)
        self._pending = PendingBundles(settings.pending)
        self._releases = ReleaseStore(settings.releases)
        self._keys = open_keys(settings)

    def answer(
        self, entry: LedgerEntry, *, rows: int, caps: Caps, soft_labels: bool = False
    ) -> ReleaseOutcome:
        """Answer a request whose measurement has been paid for: publish, repeat or resample it.

        ``caps`` are those of the request, under which it is told what is left.
        """
        if entry.state in AFTER_SEAL:
            outcome = self._resume(entry)
            if outcome is not None and outcome.state == "sealed":
                return outcome
            entry = self._entries.now(entry)
        bundle = self.published_as_asked(entry, rows=rows, soft_labels=soft_labels)
        if bundle is not None:
            return self._outcome(entry, caps, self._verified(bundle), bundle, reused=True)
        refuse_withheld(entry)
        return self.resample(entry.release_id, rows=rows, soft_labels=soft_labels)

    def published_as_asked(
        self, entry: LedgerEntry, *, rows: int, soft_labels: bool = False
    ) -> Path | None:
        """Return a bundle of a measurement with so many rows, on no condition; None if none is."""
        # The release that paid comes before those that were sampled from it.
        bundles = sorted(
            manifests_in(self._releases), key=lambda m: m.release_id != entry.release_id
        )
        for manifest in bundles:
            as_asked = manifest.rows == rows and not manifest.conditions
            as_asked &= not soft_labels or SOFT_LABELS_FILE in manifest.files
            if as_asked and manifest.ledger_entry == entry.entry_id:
                bundle = self._releases.path(manifest.ref)
                if not self._is_revoked(bundle):
                    return bundle
        return None

    def publish(self, release_id: str) -> ReleaseOutcome:
        """Go on with a sealed release by its id, without its table: that or the program changed."""
        entry = self._entries.of_release(release_id)
        outcome = self._resume(entry) if entry.state in AFTER_SEAL else None
        if outcome is None:
            raise LedgerError(
                "NOTHING_TO_PUBLISH",
                f"expected a sealed release that was not published, found {release_id} "
                f"{self._entries.now(entry).state.value}",
            )
        return outcome

    def publish_sealed(
        self, entry: LedgerEntry, approval: Approval | None = None
    ) -> ReleaseOutcome:
        """Publish a prepared bundle, or leave it for an officer; the caller holds the lock."""
        entry = self._entries.now(entry)
        self._entries.measurement(entry)  # refused here if it is not the one that was sealed
        if entry.state is EntryState.SEALED and entry.needs_approval and approval is None:
            manifest = self._pending.require(entry.release_id).manifest
            folder = self._pending.path(entry.release_id)
            return self._outcome(entry, entry.caps, manifest, folder, state="sealed")
        if entry.state is EntryState.SEALED:
            entry = self._approved(entry, approval)
        bundle, manifest_sha256 = self._put_into_store(entry.release_id)
        self._entries.advance(entry, EntryState.PUBLISHED, digest=manifest_sha256)
        self._pending.remove(entry.release_id)
        return self._outcome(entry, entry.caps, self._verified(bundle), bundle)

    def resample(
        self,
        release_id: str,
        *,
        rows: int | None = None,
        conditions: Mapping[str, str] | None = None,
        soft_labels: bool = False,
    ) -> ReleaseOutcome:
        """Publish other rows from the measurement of a published release, at no cost.

        As many as in the release if left out, and with conditions on declared levels by column;
        with soft labels if the release has asked for them or these are.
        """
        entry = self._entries.of_release(release_id)
        if entry.state is not EntryState.PUBLISHED:
            raise Withheld(
                "NOT_PUBLISHED",
                f"expected a published release, found {release_id} {entry.state.value}; only what "
                "was published once is sampled again",
            )
        measurement = self._entries.measurement(entry)
        job = job_of_measurement(measurement, new_release_id())
        soft_labels = soft_labels or job.soft_labels
        job = replace(job, rows=job.rows if rows is None else rows, soft_labels=soft_labels)
        allowed_codes(job.table_schema, conditions or {})  # refuses what is not declared
        approval = self._approval_of(entry) if entry.needs_approval else None
        new_id = job.ref.release_id
        with self.locked(new_id):
            publish_steps.prepare(
                job,
                entry,
                measurement,
                randomness_of_run().sampling,
                conditions,
                pending=self._pending,
                failed_checks=len(self._entries.failed_before(entry, job.declarations)),
            )
            if approval is not None:
                self._pending.approve(new_id, approval)
            bundle, _ = self._put_into_store(new_id)
            self._pending.remove(new_id)
        return self._outcome(entry, job.caps, self._verified(bundle), bundle, reused=True)

    def pending_manifest(self, entry: LedgerEntry) -> Manifest:
        """Return the manifest that waits, made again if lost; the caller holds the lock."""
        if self._pending.find(entry.release_id) is None:
            measurement = self._entries.measurement(entry)
            job = job_of_measurement(measurement, entry.release_id)
            publish_steps.prepare(
                job,
                entry,
                measurement,
                randomness_of_run().sampling,
                pending=self._pending,
                failed_checks=len(self._entries.failed_before(entry, job.declarations)),
            )
        return self._pending.require(entry.release_id).manifest

    @contextmanager
    def locked(self, release_id: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
        """Hold the lock of a release: a live holder is waited for, a dead one cleaned up after."""
        give_up = time.monotonic() + wait_seconds
        workspaces = ensure_private_directory(self._settings.private_root)
        workspace = None
        while workspace is None:
            janitor.clean_up(self._settings)
            try:
                workspace = PrivateWorkspace.create(workspaces, release_id)
            except IntegrityError as error:
                if error.code != "WORKSPACE_EXISTS" or time.monotonic() >= give_up:
                    raise
                time.sleep(_POLL_SECONDS)
        with workspace:
            yield

    def _resume(self, entry: LedgerEntry) -> ReleaseOutcome | None:
        """Go on between seal and publication, after who else does so; None if nothing is left."""
        with self.locked(entry.release_id, wait_seconds=WAIT_SECONDS), self._entries.closing(entry):
            entry = self._entries.now(entry)
            if entry.state not in AFTER_SEAL:
                return None
            self.pending_manifest(entry)
            outcome = self.publish_sealed(entry)
        return outcome.model_copy(update={"reused": True, "charged_rho": "0"})

    def _approved(self, entry: LedgerEntry, approval: Approval | None) -> LedgerEntry:
        """Approve a sealed entry: by the gate, or by an officer's signature, kept first."""
        with stage("commit"):
            if approval is None:
                return self._entries.advance(entry, EntryState.APPROVED)
            self._pending.approve(entry.release_id, approval)
            reason, signers = approval.statement.reason, (approval.key_id,)
            return self._entries.advance(entry, EntryState.APPROVED, note=reason, signers=signers)

    def _put_into_store(self, release_id: str) -> tuple[Path, str]:
        """Sign and publish a bundle, whole or not at all (IntegrityError); with its digest."""
        with stage("publish"):
            waiting = self._pending.require(release_id)
            bundle = self._releases.publish(
                waiting.manifest.ref,
                waiting.files,
                waiting.manifest,
                signer=self._keys.pipeline(),
                approval=waiting.approval,
                officers=self._keys.officers(),
            )
            return bundle, hashlib.sha256(waiting.manifest.to_bytes()).hexdigest()

    def _verified(self, bundle: Path) -> Manifest:
        trusted, officers = self._keys.pipeline_public(), self._keys.officers()
        return verify_bundle(bundle, trusted=trusted, officers=officers).manifest

    def _is_revoked(self, bundle: Path) -> bool:
        """Whether a bundle was taken back by itself, while its measurement was not."""
        revoked = list_beside(bundle)
        if revoked is None:
            return False
        trusted = self._keys.pipeline_public()
        verified = verify_bundle(bundle, trusted=trusted, officers=self._keys.officers())
        try:
            read_revocations(revoked, trusted=trusted).require_not_revoked(verified)
        except IntegrityError as error:
            if error.code == "RELEASE_REVOKED":
                return True
            raise
        return False

    def _approval_of(self, entry: LedgerEntry) -> Approval:
        """Return the officer's signature of the release that paid, for its measurement."""
        bundle = self._releases.path(ReleaseRef(dataset=entry.dataset, release_id=entry.release_id))
        self._verified(bundle)
        return Approval.from_bytes((bundle / APPROVAL_FILE).read_bytes())

    def _outcome(
        self,
        entry: LedgerEntry,
        caps: Caps,
        manifest: Manifest,
        bundle: Path,
        *,
        state: Literal["published", "sealed"] = "published",
        reused: bool = False,
    ) -> ReleaseOutcome:
        balance = self._entries.balance(entry, caps)
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
            charged_rho="0" if reused else f"{entry.rho:f}",
            remaining_rho=f"{balance.remaining_rho:f}",
            releases_left=balance.releases_left(entry.rho),
        )


def refuse_withheld(entry: LedgerEntry) -> None:
    """Refuse to go on with a measurement that was withheld, or taken back."""
    if entry.state in (EntryState.WITHHELD, EntryState.REVOKED):
        raise Withheld(
            "MEASUREMENT_WITHHELD",
            f"release {entry.release_id} of the same table was {entry.state.value}; a measurement "
            "with new noise is possible (--new-draw) and is charged again",
        )


def job_of_measurement(measurement: Measurement, release_id: str) -> ReleaseJob:
    """Return the job that a measurement was made for, by the site file that it keeps."""
    site_file = SiteFile.model_validate(
        measurement.record.site, by_name=False, by_alias=True, context=dict(KEPT)
    )
    return job_of(site_file, release_id, requester=measurement.record.requester)
