"""A bundle's files from released values and public settings: rows, schema, card, page, manifest."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pandas as pd

from privacy.events import event_from_dict
from storage.releases.bundles import totals_of
from storage.releases.manifest import GateRecord, Manifest, MethodRecord, file_digests
from storage.releases.measurements import Measurement
from tasks.gates.suites import gate_stated
from tasks.reporting.catalogue import catalogue_files
from tasks.reporting.claim import Claim
from tasks.reporting.plots import crowded_columns
from tasks.reporting.released_images import CONTACT_SHEET_FILE, contact_sheet
from tasks.reporting.released_tables import TABLES_PARQUET_FILE, hidden_levels, unmeasured_pairs
from tasks.reporting.report import (
    DATA_CARD_FILE,
    REPORT_FILE,
    RISK_APPENDIX_FILE,
    render_data_card,
    render_report,
    render_risk_appendix,
)
from tasks.steps.job import ReleaseJob


def build_bundle(
    job: ReleaseJob,
    measurement: Measurement,
    tables: Mapping[str, bytes],
    frame: pd.DataFrame,
    *,
    gate: Sequence[GateRecord],
    conditions: Mapping[str, str],
    checks_before: int = 0,
    events: Sequence[Mapping[str, Any]] = (),
) -> tuple[dict[str, bytes], Manifest]:
    """Make the files of the bundle and the manifest that names their digests.

    ``tables`` hold the rows of ``frame``; card and page are written from a manifest that names
    them. ``events`` are sections on tables of events (`tasks.histories.event_pages`).
    """
    files, schema, title = dict(tables), job.table_schema, job.title
    manifest = Manifest(
        **_facts(job, measurement),
        conditions=dict(conditions),
        corrected_after_checks=checks_before,
        gate=tuple(gate),
        rows=len(frame),
        files=file_digests(files),
    )
    claim = Claim(manifest)
    manifest = manifest.model_copy(update={"guarantee": claim.statement})
    # Under conditions the rows are no picture of the source.
    crowded = "" if conditions else crowded_columns(frame, schema)
    said: dict[str, Any] = {"title": title, "crowded": crowded, "events": events}
    shares = tables.get(TABLES_PARQUET_FILE)
    lost = {"levels": hidden_levels(shares, schema), "pairs": unmeasured_pairs(shares)}
    card = render_data_card(manifest, schema, lost=lost, **said)
    if schema.image is not None:
        files[CONTACT_SHEET_FILE] = contact_sheet(frame, schema, note="; ".join(claim.markers))
    said |= {"tables": shares, "sheet": files.get(CONTACT_SHEET_FILE)}
    page = render_report(manifest, frame, schema, **said)
    files |= {DATA_CARD_FILE: card.encode("utf-8"), REPORT_FILE: page.encode("utf-8")}
    declared = job.catalogue
    appendix = render_risk_appendix(manifest, schema, title=title, review_on=declared.review_on)
    entries = catalogue_files(
        manifest,
        schema,
        declared,
        title=title,
        patients=job.patients,
        public=bool(job.site.get("public_benchmark_data")),
        files=file_digests(files),
        key=job.unit.column,
        events=events,
    )
    files |= {RISK_APPENDIX_FILE: appendix.encode("utf-8"), **entries}
    return files, manifest.model_copy(update={"files": file_digests(files)})


def _facts(job: ReleaseJob, measurement: Measurement) -> dict[str, Any]:
    """Return what a manifest says of a measurement, from the events that really happened."""
    delta, adjacency, record = job.parameters.delta, job.adjacency, measurement.record
    events = [event_from_dict(event) for event in record.events]
    is_resample = record.release_id != job.ref.release_id
    return {
        "dataset": job.ref.dataset,
        "release_id": job.ref.release_id,
        "created_on": datetime.now(UTC).date(),
        "guarantee": "-",
        "method": MethodRecord(
            name=job.method.kind, settings=job.method.model_dump(mode="json", exclude={"kind"})
        ),
        "request": {
            "epsilon": job.parameters.epsilon,
            "delta": delta,
            "adjacency": adjacency.value,
            "lifetime_epsilon": job.lifetime_epsilon,
            **({"cohort": job.cohort} if job.cohort != job.ref.dataset else {}),
            "rows": job.rows,
            **({} if job.points is None else {"distilled_points": job.points}),
            **gate_stated(job.asked.gate),
        },
        "code_version": version("clustmix"),
        "events": record.events,
        **totals_of(events, adjacency=adjacency, delta=delta),
        "delta": delta,
        "adjacency": adjacency.value,
        "privacy_unit": measurement.unit or job.unit_in_words,
        "max_rows_per_patient": job.unit.max_rows + sum(e.max_rows_per_patient for e in job.events),
        "ledger_entry": record.ledger_entry,
        "measurement_sha256": measurement.sha256,
        "needs_approval": job.needs_approval,
        "requester": job.requester,
        "resampled_from": record.release_id if is_resample else None,
        "tainted": record.tainted,
        "pooled": measurement.pooled,
    }
