"""From a sealed measurement to a bundle, at no cost; no table is read and no noise is drawn."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from flows.site.request import job_of
from flows.site.site_file import SiteFile
from privacy import randomness
from privacy.charges import Caps
from privacy.errors import IntegrityError, refusals
from privacy.ledger import EntryState, LedgerEntry
from storage.files.documents import KEPT, Record
from storage.files.refs import ReleaseRef, new_release_id
from storage.files.workspace import PrivateWorkspace
from storage.keys.key_store import KeyStore
from storage.keys.keys import PublicKey
from storage.releases.bundles import VerifiedBundle, verify_bundle
from storage.releases.manifest import Manifest
from storage.releases.measurements import Measurement
from storage.releases.pending import PendingBundles
from storage.releases.release_store import manifests_in
from storage.releases.revocations import list_beside, read_revocations
from storage.releases.signatures import APPROVAL_FILE, Approval
from tasks.execution.executor import Executor
from tasks.execution.runtime import stage
from tasks.gates.suites import gate_stated
from tasks.reporting.claim import Claim
from tasks.reporting.teacher_files import SOFT_LABELS_FILE
from tasks.steps import publish_steps
from tasks.steps.entries import AFTER_SEAL, WAIT_SECONDS, Entries
from tasks.steps.janitor import Janitor
from tasks.steps.job import ReleaseJob, RowsAsked

refusal = refusals(__package__)

_POLL_SECONDS = 0.5


class ReleaseOutcome(Record):
    """Public result of a release; ``sealed`` while an officer has not decided."""

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
    pool: str | None = None
    charged_rho: str
    remaining_rho: str
    releases_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Publishes from the sealed measurements of an installation."""

    entries: Entries
    keys: KeyStore
    pending: PendingBundles
    janitor: Janitor
    executor: Callable[[str], AbstractContextManager[Executor]]

    def answer(self, entry: LedgerEntry, asked: RowsAsked) -> ReleaseOutcome:
        """Answer a request whose measurement has been paid for: publish, repeat or resample it."""
        if entry.state in AFTER_SEAL:
            outcome = self._finish(entry, asked.gate)
            if outcome is not None and outcome.state == "sealed":
                return outcome
            entry = self.entries.now(entry)
        bundle = self.published_as_asked(entry.entry_id, asked)
        if bundle is not None:
            manifest = self._verified(bundle).manifest
            pool = self._pool(entry)
            return self._outcome(entry, manifest, bundle, caps=asked.caps, reused=True, pool=pool)
        refuse_withheld(entry)
        return self.resample(
            entry.release_id,
            rows=asked.rows,
            soft_labels=asked.soft_labels,
            points=asked.points,
            gate=asked.gate,
        )

    def published_as_asked(self, entry_id: str, asked: RowsAsked) -> Path | None:
        """Return a bundle of a measurement that fits a request and is not revoked, else None."""
        # The release that paid comes before those that were sampled from it.
        releases = self.entries.releases
        for manifest in sorted(manifests_in(releases), key=lambda m: m.resampled_from is not None):
            if manifest.ledger_entry == entry_id and _is_as_asked(manifest, asked):
                bundle = releases.path(manifest.ref)
                if not self._is_revoked(bundle):
                    return bundle
        return None

    def publish(self, release_id: str) -> ReleaseOutcome:
        """Publish a sealed release by its id; its table is not read and may have changed."""
        entry = self.entries.of_release(release_id)
        outcome = self._finish(entry) if entry.state in AFTER_SEAL else None
        if outcome is None:
            state = self.entries.now(entry).state.value
            raise refusal("NOTHING_TO_PUBLISH", release=release_id, state=state)
        return outcome

    def publish_sealed(
        self, entry: LedgerEntry, approval: Approval | None = None
    ) -> ReleaseOutcome:
        """Publish a prepared bundle, or leave it for an officer; the caller holds the lock."""
        self.entries.measurement(entry)  # refused here if it is not the one that was sealed
        release_id = entry.release_id
        if entry.state is EntryState.SEALED:
            if entry.needs_approval and approval is None:
                manifest = self.pending.require(release_id).manifest
                folder = self.pending.path(release_id)
                return self._outcome(entry, manifest, folder, state="sealed")
            self._approve(entry, approval)
        bundle = self._put_into_store(release_id)
        published = self._verified(bundle)
        digest = published.manifest_sha256
        entry = self.entries.advance(entry.entry_id, EntryState.PUBLISHED, digest=digest)
        self.pending.remove(release_id)
        return self._outcome(entry, published.manifest, bundle, pool=self._pool(entry))

    def published(self, release_id: str) -> Measurement:
        """Return the measurement of a published release (else Withheld)."""
        entry = self.entries.of_release(release_id)
        if entry.state is not EntryState.PUBLISHED:
            raise refusal("NOT_PUBLISHED", release=release_id, state=entry.state.value)
        return self.entries.measurement(entry)

    def resample(
        self,
        release_id: str,
        *,
        rows: int | None = None,
        conditions: Mapping[str, str] | None = None,
        soft_labels: bool = False,
        points: int | None = None,
        draws: int = 0,
        gate: dict[str, Any] | None = None,
    ) -> ReleaseOutcome:
        """Publish other rows from the measurement of a published release, at no cost.

        `rows` is by default that of the release; `conditions` are declared levels by column. Soft
        labels and distilled points are made if the release or this call asks. Rows of other draws
        of the noise are in a file of their own. `gate` defaults to that of the measured site file.
        """
        measurement, new_id = self.published(release_id), new_release_id()
        entry = self.entries.of_release(release_id)
        approval = self._approval_of(entry) if entry.needs_approval else None
        with self.locked(new_id):
            more: dict[str, Any] = {"soft_labels": soft_labels, "points": points, "gate": gate}
            self._prepare(measurement, new_id, rows, conditions, draws=draws, **more)
            if approval is not None:
                self.pending.approve(new_id, approval)
            bundle = self._put_into_store(new_id)
            self.pending.remove(new_id)
        return self._outcome(entry, self._verified(bundle).manifest, bundle, reused=True)

    def publish_pool(self, pool: Measurement, *, hospitals: Sequence[PublicKey]) -> Path:
        """Publish rows of a pool, at no cost; hospitals have signed parts of it."""
        release_id = pool.record.release_id
        with self.locked(release_id):
            self._prepare(pool, release_id)
            bundle = self._put_into_store(release_id, hospitals=hospitals)
            self.pending.remove(release_id)
        return bundle

    def pools(self) -> dict[frozenset[str], Path]:
        """Return the pools in the store, by the releases that are their parts."""
        return {
            frozenset(manifest.parts): self.entries.releases.path(manifest.ref)
            for manifest in manifests_in(self.entries.releases)
            if manifest.pooled
        }

    def _pool(self, entry: LedgerEntry) -> Path | None:
        pool: Path | None = import_module("flows.pooling").pool_of_last(self, entry)
        return pool

    def pending_manifest(self, entry: LedgerEntry, gate: dict[str, Any] | None = None) -> Manifest:
        """Return the manifest that waits, made again if lost; the caller holds the lock."""
        release_id = entry.release_id
        if not self.pending.path(release_id).is_dir():
            self._prepare(self.entries.measurement(entry), release_id, gate=gate)
        return self.pending.require(release_id).manifest

    @contextmanager
    def locked(self, release_id: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
        """Hold the lock of a release: a live holder is waited for, a dead one cleaned up after."""
        give_up = time.monotonic() + wait_seconds
        workspace = None
        while workspace is None:
            self.janitor.clean_up()
            try:
                workspace = PrivateWorkspace.create(self.entries.workspaces, release_id)
            except IntegrityError as error:
                if error.code != "WORKSPACE_EXISTS" or time.monotonic() >= give_up:
                    raise
                time.sleep(_POLL_SECONDS)
        with workspace:
            yield

    def _finish(
        self, entry: LedgerEntry, gate: dict[str, Any] | None = None
    ) -> ReleaseOutcome | None:
        """Continue from seal to publication, once other processes are done; None if they did it."""
        with self.locked(entry.release_id, wait_seconds=WAIT_SECONDS), self.entries.closing(entry):
            entry = self.entries.now(entry)
            if entry.state not in AFTER_SEAL:
                return None
            self.pending_manifest(entry, gate)
            outcome = self.publish_sealed(entry)
        return outcome.model_copy(update={"reused": True, "charged_rho": "0"})

    def _prepare(
        self,
        measurement: Measurement,
        release_id: str,
        rows: int | None = None,
        conditions: Mapping[str, str] | None = None,
        *,
        soft_labels: bool = False,
        points: int | None = None,
        draws: int = 0,
        gate: dict[str, Any] | None = None,
    ) -> None:
        job = job_of_measurement(measurement, release_id)
        job = replace(job, rows=rows or job.rows, points=points or job.points)
        job = replace(job, soft_labels=soft_labels or job.soft_labels)
        charges = {part["ledger_entry"] for part in measurement.pooled}
        charges = charges or {measurement.record.ledger_entry}
        checks = [
            len(self.entries.checked_before(entry.entry_id, job.declarations))
            for entry in self.entries.all()
            if entry.entry_id in charges
        ]
        job = job if gate is None else replace(job, site={**job.site, "gate": gate})
        files, manifest = publish_steps.prepare(
            job,
            measurement,
            randomness.system_generator(),
            conditions,
            draws=draws,
            checks_before=max(checks, default=0),  # later parts count those of earlier ones
            executor=partial(self.executor, release_id),
        )
        self.pending.write(files, manifest)

    def _approve(self, entry: LedgerEntry, approval: Approval | None) -> None:
        """Approve a sealed entry: by the gate, or by an officer's signature, kept first."""
        with stage("commit"):
            if approval is None:
                self.entries.advance(entry.entry_id, EntryState.APPROVED)
                return
            self.pending.approve(entry.release_id, approval)
            reason, signers = approval.statement.reason, (approval.key_id,)
            self.entries.advance(entry.entry_id, EntryState.APPROVED, note=reason, signers=signers)

    def _put_into_store(self, release_id: str, *, hospitals: Sequence[PublicKey] = ()) -> Path:
        """Sign and publish a bundle, whole or not at all (IntegrityError); return its folder."""
        with stage("publish"):
            waiting = self.pending.require(release_id)
            return self.entries.releases.publish(
                waiting.files,
                waiting.manifest,
                signer=self.keys.pipeline(),
                approval=waiting.approval,
                officers=self.keys.officers(),
                hospitals=hospitals,
            )

    def _verified(self, bundle: Path) -> VerifiedBundle:
        trusted, officers = self.keys.pipeline_public(), self.keys.officers()
        return verify_bundle(bundle, trusted=trusted, officers=officers)

    def _is_revoked(self, bundle: Path) -> bool:
        """Return whether a bundle, or a release that it was made of, is listed as revoked."""
        revoked = list_beside(bundle)
        if revoked is None:
            return False
        listed = read_revocations(revoked, trusted=self.keys.pipeline_public())
        return listed.of(self._verified(bundle)) is not None

    def _approval_of(self, entry: LedgerEntry) -> Approval:
        """Return the officer's signature of the release that paid, for its measurement."""
        ref = ReleaseRef(dataset=entry.dataset, release_id=entry.release_id)
        bundle = self.entries.releases.path(ref)
        self._verified(bundle)
        return Approval.from_bytes((bundle / APPROVAL_FILE).read_bytes())

    def _outcome(
        self,
        entry: LedgerEntry,
        manifest: Manifest,
        bundle: Path,
        *,
        caps: Caps | None = None,
        state: Literal["published", "sealed"] = "published",
        reused: bool = False,
        pool: Path | None = None,
    ) -> ReleaseOutcome:
        """Describe a bundle, and the budget left under these caps, or those of the entry."""
        balance = self.entries.balance(entry, caps or entry.caps)
        stated = ("dataset", "release_id", "epsilon", "delta", "adjacency", "replace_one_epsilon")
        return ReleaseOutcome(
            **{name: getattr(manifest, name) for name in stated},
            state=state,
            bundle=str(bundle),
            guarantee=Claim(manifest).statement,
            reused=reused,
            pool=None if pool is None else str(pool),
            charged_rho="0" if reused else f"{entry.rho:f}",
            remaining_rho=f"{balance.remaining_rho:f}",
            releases_left=balance.releases_left(entry.rho),
        )


def _is_as_asked(manifest: Manifest, asked: RowsAsked) -> bool:
    soft = not asked.soft_labels or SOFT_LABELS_FILE in manifest.files
    gate = {"gate": manifest.request["gate"]} if "gate" in manifest.request else {}
    same = manifest.rows == asked.rows and gate == gate_stated(asked.gate)
    distilled = asked.points in (None, manifest.request.get("distilled_points"))
    return soft and same and distilled and not manifest.conditions


def refuse_withheld(entry: LedgerEntry) -> None:
    """Refuse to go on with a measurement that was withheld, or taken back."""
    if entry.state in (EntryState.WITHHELD, EntryState.REVOKED):
        raise refusal("MEASUREMENT_WITHHELD", release=entry.release_id, state=entry.state.value)


def job_of_measurement(measurement: Measurement, release_id: str) -> ReleaseJob:
    """Return the job that a measurement was made for, by the site file that it keeps."""
    site_file = SiteFile.model_validate(
        measurement.record.site, by_name=False, by_alias=True, context=dict(KEPT)
    )
    record = measurement.record
    return job_of(site_file, release_id, requester=record.requester, period=record.period)
