"""The files of a bundle: synthetic rows, schema, card, page, and the manifest that names them.

A release of images also has them in a picture.

Everything here reads released values and public settings only.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pandas as pd

from privacy.event_records import event_to_dict
from privacy.events import Event
from storage.files.documents import FileDigest
from storage.releases.bundles import totals_of
from storage.releases.manifest import GateRecord, Manifest, MethodRecord, file_digests
from tasks.gates import expectations
from tasks.reporting.catalogue import catalogue_files
from tasks.reporting.claim import Claim
from tasks.reporting.contact_sheet import CONTACT_SHEET_FILE, contact_sheet
from tasks.reporting.described import Described
from tasks.reporting.released_tables import TABLES_PARQUET_FILE
from tasks.reporting.rendering import words
from tasks.reporting.report import (
    DATA_CARD_FILE,
    REPORT_FILE,
    RISK_APPENDIX_FILE,
    render_data_card,
    render_report,
    render_risk_appendix,
)
from tasks.steps.job import ReleaseJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of the rows of a bundle, and the entry that paid; noise drawn again taints."""

    events: tuple[Event, ...]
    ledger_entry: str
    measurement_sha256: str
    tainted: bool
    conditions: Mapping[str, str] = field(default_factory=dict)
    resampled_from: str | None = None
    corrected_after_checks: int = 0


def build_manifest(
    job: ReleaseJob,
    *,
    provenance: Provenance,
    gate: expectations.GateReport,
    files: Mapping[str, FileDigest],
    rows: int,
) -> Manifest:
    """State what was released, from the events that really happened."""
    delta, adjacency = job.parameters.delta, job.adjacency
    totals = totals_of(provenance.events, adjacency=adjacency, delta=delta)
    facts: dict[str, Any] = {
        "dataset": job.ref.dataset,
        "release_id": job.ref.release_id,
        "created_on": datetime.now(UTC).date(),
        "method": MethodRecord(
            name=job.method.kind, settings=job.method.model_dump(mode="json", exclude={"kind"})
        ),
        "request": {
            "epsilon": job.parameters.epsilon,
            "delta": delta,
            "adjacency": adjacency.value,
            "lifetime_epsilon": job.lifetime_epsilon,
            "rows": job.rows,
        },
        "code_version": version("clustmix"),
        "events": tuple(event_to_dict(event) for event in provenance.events),
        **asdict(totals),
        "delta": delta,
        "adjacency": adjacency.value,
        "privacy_unit": job.unit_in_words,
        "max_rows_per_patient": job.unit.max_rows,
        "ledger_entry": provenance.ledger_entry,
        "measurement_sha256": provenance.measurement_sha256,
        "needs_approval": job.needs_approval,
        "requester": job.requester,
        "conditions": dict(provenance.conditions),
        "resampled_from": provenance.resampled_from,
        "corrected_after_checks": provenance.corrected_after_checks,
        "gate": tuple(GateRecord.model_validate(record) for record in gate.records()),
        "rows": rows,
        "tainted": provenance.tainted,
        "files": dict(files),
    }
    draft = Manifest(guarantee="-", **facts)
    return Manifest(guarantee=Claim(draft).statement, **facts)


def build_bundle(
    job: ReleaseJob,
    tables: Mapping[str, bytes],
    frame: pd.DataFrame,
    *,
    provenance: Provenance,
    gate: expectations.GateReport,
) -> tuple[dict[str, bytes], Manifest]:
    """Make the files of the bundle and the manifest that names their digests.

    ``tables`` hold the rows of ``frame``; card and page are written from a manifest that names
    them.
    """
    files = dict(tables)
    manifest = build_manifest(
        job, provenance=provenance, gate=gate, files=file_digests(files), rows=len(frame)
    )
    card = render_data_card(manifest, job.table_schema, title=job.title)
    shares = tables.get(TABLES_PARQUET_FILE)
    page = render_report(manifest, frame, job.table_schema, title=job.title, tables=shares)
    files |= {DATA_CARD_FILE: card.encode("utf-8"), REPORT_FILE: page.encode("utf-8")}
    if job.table_schema.image is not None:
        note = "; ".join(Claim(manifest).markers)
        files[CONTACT_SHEET_FILE] = contact_sheet(frame, job.table_schema, note=note)
    declared = job.catalogue
    appendix = render_risk_appendix(
        manifest, job.table_schema, title=job.title, review_on=declared.review_on
    )
    described = Described(
        manifest=manifest,
        schema=job.table_schema,
        title=job.title,
        declared=declared,
        patients=job.patients,
        public=bool(job.site.get("public_benchmark_data")),
        files=file_digests({k: v for k, v in files.items() if k in words()["files"]}),
    )
    files |= {RISK_APPENDIX_FILE: appendix.encode("utf-8"), **catalogue_files(described)}
    return files, manifest.model_copy(update={"files": file_digests(files)})
