"""Steps after the seal: make a bundle of a measurement, have it approved, publish it.

Everything here reads released values and public settings only, and draws no noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from privacy.errors import ConfigurationError, IntegrityError, Withheld
from privacy.event_records import event_from_dict
from privacy.ledger import EntryState, LedgerEntry
from storage.measurements import Measurement
from storage.schema import NumericColumn
from storage.signatures import Approval
from tasks import expectations, ledger_steps
from tasks.bundle import Provenance, build_bundle
from tasks.encoding import decode
from tasks.run import ReleaseJob, Site, stage
from tasks.synthesizers.base import Released

MAX_OVERSAMPLING = 200
"""Most rows that are sampled for each row that has to meet the conditions of a resample."""


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
    """
    conditions = conditions or {}
    with stage("decode"):
        frame = sample_rows(job, measurement.released, rng, conditions)
    with stage("output-gate"):
        gate = output_gate(job, frame)
    with stage("report"):
        record = measurement.record
        origin = record.release_id if record.release_id != job.ref.release_id else None
        files, manifest = build_bundle(
            job,
            frame,
            provenance=Provenance(
                events=tuple(event_from_dict(event) for event in record.events),
                ledger_entry=entry.entry_id,
                measurement_sha256=measurement.sha256,
                tainted=record.tainted,
                conditions=conditions,
                resampled_from=origin,
            ),
            gate=gate,
        )
        site.pending.write(files, manifest)


def sample_rows(
    job: ReleaseJob,
    released: Released,
    rng: np.random.Generator,
    conditions: Mapping[str, str],
) -> pd.DataFrame:
    """Sample synthetic rows and turn them into valid records; keep those that meet conditions.

    Raises
    ------
    ConfigurationError
        If a condition names no declared level, or is met by too few sampled rows.
    """
    check_conditions(job, conditions)
    frames: list[pd.DataFrame] = []
    n_kept, n_sampled = 0, 0
    while n_kept < job.rows:
        if n_sampled >= MAX_OVERSAMPLING * job.rows:
            raise ConfigurationError(
                "CONDITION_RARE",
                f"expected one of {MAX_OVERSAMPLING} sampled rows to meet "
                f"{_in_words(conditions)}, found fewer; ask for fewer conditions",
            )
        codes, labels = job.synthesizer.sample(released, n_rows=job.rows, rng=rng)
        frame = decode(codes, labels, job.table_schema, rng=rng)
        n_sampled += len(frame)
        for column, level in conditions.items():
            frame = frame[frame[column].astype(str) == level]
        frames.append(frame)
        n_kept += len(frame)
    if len(frames) == 1:
        return frames[0].head(job.rows)
    return pd.concat(frames, ignore_index=True).head(job.rows)


def check_conditions(job: ReleaseJob, conditions: Mapping[str, str]) -> None:
    """Refuse a condition on anything but a declared level of a column with levels.

    Raises
    ------
    ConfigurationError
        Naming the column.
    """
    schema = job.table_schema
    levels: dict[str, tuple[str, ...]] = {
        column.name: tuple(str(level) for level in column.levels)
        for column in schema.columns
        if not isinstance(column, NumericColumn)
    }
    levels[schema.label.name] = schema.label.level_names
    for column, level in conditions.items():
        if level not in levels.get(column, ()):
            raise ConfigurationError(
                "CONDITION_UNKNOWN",
                f"expected a declared level of a column with levels, found {column}={level}; the "
                "schema.json of a bundle lists them",
            )


def _in_words(conditions: Mapping[str, str]) -> str:
    return ", ".join(f"{column}={level}" for column, level in conditions.items())


def output_gate(job: ReleaseJob, frame: pd.DataFrame) -> expectations.GateReport:
    """Check the synthetic rows; refuse to go on if a check fails.

    Raises
    ------
    Withheld
        With the names of the failed checks.
    """
    report = expectations.output_gate(frame, job.table_schema, job.rows)
    if not report.passed:
        failed = "; ".join(check.title for check in report.failed_checks)
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
