"""Steps after the seal: make a bundle of a measurement, have it approved, publish it.

Everything here reads released values and public settings only, and draws no noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from privacy.errors import IntegrityError, Withheld
from privacy.event_records import event_from_dict
from privacy.ledger import EntryState, LedgerEntry
from storage.releases.measurements import Measurement
from storage.releases.signatures import Approval
from tasks.gates import expectations
from tasks.gates.agreement import CodedTable
from tasks.gates.agreement_gate import REFERENCE_ROWS, NoisyCounts, agreement_gate
from tasks.ingest.conditions import sample_rows
from tasks.ingest.encoding import decode, domain_of
from tasks.reporting.tables import (
    coded,
    formats_agree,
    is_stated,
    read_rows,
    table_files,
)
from tasks.steps import ledger_steps
from tasks.steps.bundle import Provenance, build_bundle
from tasks.steps.run import ReleaseJob, Site, stage
from tasks.synthesizers.registry import method_entry


def prepare(
    job: ReleaseJob,
    site: Site,
    entry: LedgerEntry,
    measurement: Measurement,
    rng: np.random.Generator,
    conditions: Mapping[str, str] | None = None,
) -> None:
    """Sample the rows, check them, and keep the whole bundle until it is published.

    Raises
    ------
    Withheld
        With the names of the checks that failed.
    IntegrityError
        If the schema gives another meaning to a code than the measurement.
    """
    conditions = conditions or {}
    measurement.vocabulary.require(job.table_schema)
    released = measurement.released
    with stage("decode"):
        sampled = sample_rows(
            job.synthesizer, job.table_schema, released, rng, conditions, n_rows=job.rows
        )
        frame = decode(sampled.codes, sampled.label, job.table_schema, rng=rng)
        tables = table_files(frame, job.table_schema)
    with stage("output-gate"):
        n_rows = int(np.clip(job.rows, *REFERENCE_ROWS))
        reference, guide = (
            sample_rows(
                job.synthesizer,
                job.table_schema,
                released,
                rng,
                conditions,
                n_rows=n_rows,
                all_of_them=False,
            )
            for _ in range(2)
        )
        noisy = None if conditions else noisy_counts(job, measurement)
        gate = output_gate(job, tables, reference, guide, noisy)
    with stage("report"):
        record = measurement.record
        origin = record.release_id if record.release_id != job.ref.release_id else None
        files, manifest = build_bundle(
            job,
            tables,
            frame,
            provenance=Provenance(
                events=tuple(event_from_dict(event) for event in record.events),
                ledger_entry=entry.entry_id,
                measurement_sha256=measurement.sha256,
                tainted=record.tainted,
                conditions=conditions,
                resampled_from=origin,
                order_declared_by=(
                    None if measurement.declared is None else measurement.declared.declared_by
                ),
            ),
            gate=gate,
        )
        site.pending.write(files, manifest)


def noisy_counts(job: ReleaseJob, measurement: Measurement) -> NoisyCounts | None:
    """Return the sealed counts of codes by label, or None if the method has none."""
    name = method_entry(job.method.kind).histograms
    if name is None:
        return None
    synthesizer = job.synthesizer
    planned = synthesizer.plan(mu=job.mu)[name]
    root = np.sqrt(len(job.table_schema.columns))
    cells = measurement.sealed_values(name) * (root / planned.scale)
    return NoisyCounts(
        by_label=cells.sum(axis=1),
        noise_stddev=float(planned.unit_noise_stddev * root * np.sqrt(cells.shape[1])),
    )


def output_gate(
    job: ReleaseJob,
    tables: Mapping[str, bytes],
    reference: CodedTable,
    guide: CodedTable,
    noisy: NoisyCounts | None,
) -> expectations.GateReport:
    """Check the files that will be published; refuse to go on if a check fails.

    Raises
    ------
    Withheld
        With the names of the failed checks.
    """
    frame = read_rows(tables)
    report = expectations.output_gate(frame, job.table_schema, job.rows)
    stated = is_stated(tables, job.table_schema) and formats_agree(tables)
    published = coded(frame, job.table_schema) if report.passed and stated else None
    checks = [*report.checks, expectations.GateCheck(name="files", column=None, passed=stated)]
    if published is not None:
        checks += agreement_gate(
            published,
            reference,
            domain_of(job.table_schema),
            guide=guide,
            label_name=job.table_schema.label.name,
            noisy=noisy,
        ).checks
    report = expectations.GateReport(checks=tuple(checks))
    if not report.passed or published is None:
        failed = "; ".join(check.title for check in report.failed_checks) or "rows are readable"
        raise Withheld("OUTPUT_GATE", f"the synthetic rows break these rules: {failed}")
    return report


def approve(site: Site, entry: LedgerEntry, approval: Approval | None = None) -> LedgerEntry:
    """Move a sealed entry to APPROVED: by the gate alone, or by the signature of an officer.

    The signature is on the disk before the ledger says that there is one.
    """
    with stage("commit"):
        if approval is None:
            return ledger_steps.advance(site, entry, EntryState.APPROVED)
        site.pending.approve(entry.release_id, approval)
        return ledger_steps.advance(
            site,
            entry,
            EntryState.APPROVED,
            note=approval.statement.reason,
            signers=(approval.key_id,),
        )


def publish(site: Site, entry: LedgerEntry) -> Path:
    """Publish the pending bundle of an approved entry, and say so in the ledger."""
    path, manifest_sha256 = publish_pending(site, entry.release_id)
    ledger_steps.advance(site, entry, EntryState.PUBLISHED, digest=manifest_sha256)
    site.pending.remove(entry.release_id)
    return path


def publish_pending(site: Site, release_id: str) -> tuple[Path, str]:
    """Sign a pending bundle and put it into the store: all of it or, after a crash, none of it.

    Returns
    -------
    path : Path
        Folder of the bundle.
    manifest_sha256 : str

    Raises
    ------
    IntegrityError
        If there is no such bundle, or it may not be published.
    """
    with stage("publish"):
        pending = site.pending.find(release_id)
        if pending is None:
            raise IntegrityError(
                "NOTHING_PENDING",
                f"expected a bundle of {release_id} that waits to be published, found none; make "
                "one from its measurement (clustmix resample)",
            )
        path = site.releases.publish(
            pending.manifest.ref,
            pending.files,
            pending.manifest,
            signer=site.keys.pipeline(),
            approval=pending.approval,
            officers=site.keys.officers(),
        )
        return path, hashlib.sha256(pending.manifest.to_bytes()).hexdigest()
