"""Steps after the measurement: sample and decode, output gate, bundle, publish.

Everything here reads released values and public settings only.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privacy.accountants.gaussian import GaussianAccountant
from privacy.errors import Withheld
from privacy.events import ComposedEvent, event_to_dict
from privacy.ledger import Balance
from privacy.parameters import Adjacency, Analysis
from storage.manifest import GateRecord, Manifest, MethodRecord, file_digests
from tasks import expectations
from tasks.encoding import decode
from tasks.ledger_steps import unit_in_words
from tasks.reporting.data_card import DATA_CARD_FILE, render_data_card
from tasks.reporting.guarantee import Claim, guarantee_statement
from tasks.reporting.report import REPORT_FILE, render_report
from tasks.run import ReleaseJob, Site, stage
from tasks.synthesizers.base import Released

PARQUET_FILE = "synthetic.parquet"
CSV_FILE = "synthetic.csv"
SCHEMA_FILE = "schema.json"


def sample_and_decode(
    job: ReleaseJob, released: Released, rng: np.random.Generator
) -> pd.DataFrame:
    """Sample the synthetic rows and turn them into valid records."""
    with stage("decode"):
        codes, labels = job.synthesizer.sample(released, n_rows=job.rows, rng=rng)
        return decode(codes, labels, job.table_schema, rng=rng)


def output_gate(job: ReleaseJob, frame: pd.DataFrame) -> expectations.GateReport:
    """Check the synthetic rows; refuse to go on if a check fails.

    Raises
    ------
    Withheld
        With the names of the failed checks.
    """
    with stage("output-gate"):
        report = expectations.output_gate(frame, job.table_schema, job.rows)
        if not report.passed:
            failed = "; ".join(check.title for check in report.failed_checks)
            raise Withheld("OUTPUT_GATE", f"the synthetic rows break these rules: {failed}")
        return report


def build_manifest(
    job: ReleaseJob,
    *,
    event: ComposedEvent,
    ledger_entry: str,
    gate: expectations.GateReport,
    tainted: bool,
    files: Mapping[str, str],
    analysis: Analysis = Analysis.PROVEN,
    rows: int | None = None,
) -> Manifest:
    """State what was released, from the events that really happened."""
    delta = job.parameters.delta
    add_remove, replace_one = (
        GaussianAccountant(adjacency=adjacency).compose(event) for adjacency in Adjacency
    )
    accountant = add_remove if job.adjacency is Adjacency.ADD_REMOVE else replace_one
    facts: dict[str, Any] = {
        "dataset": job.ref.dataset,
        "release_id": job.ref.release_id,
        "created_on": datetime.now(UTC).date(),
        "analysis": analysis.value,
        "method": MethodRecord(
            name=job.method.kind, settings=job.method.model_dump(mode="json", exclude={"kind"})
        ),
        "request": {
            "epsilon": job.parameters.epsilon,
            "delta": delta,
            "adjacency": job.adjacency.value,
            "lifetime_epsilon": job.lifetime_epsilon,
            "rows": job.rows,
        },
        "code_version": version("clustmix"),
        "events": tuple(event_to_dict(part) for part in event.events),
        "mu": accountant.mu,
        "rho": accountant.rho,
        "epsilon": accountant.epsilon(delta=delta),
        "delta": delta,
        "replace_one_epsilon": replace_one.epsilon(delta=delta),
        "adjacency": job.adjacency.value,
        "privacy_unit": unit_in_words(job),
        "max_rows_per_patient": job.unit.max_rows,
        "ledger_entry": ledger_entry,
        "gate": tuple(GateRecord.model_validate(record) for record in gate.records()),
        "rows": job.rows if rows is None else rows,
        "tainted": tainted,
        "files": dict(files),
    }
    draft = Manifest(guarantee="-", **facts)
    return Manifest(guarantee=guarantee_statement(Claim.of(draft)), **facts)


def table_files(job: ReleaseJob, frame: pd.DataFrame, mark: Mapping[str, str]) -> dict[str, bytes]:
    """Write the synthetic rows, in both formats, and their schema.

    ``mark`` adds columns of constant text to every row, and keys to the schema file: what is not
    proven must say so wherever it is copied to.
    """
    marked = frame.assign(**mark)
    schema = {**mark, **job.table_schema.model_dump(mode="json")}
    return {
        PARQUET_FILE: _parquet(marked),
        CSV_FILE: marked.to_csv(index=False, lineterminator="\n").encode("utf-8"),
        SCHEMA_FILE: (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode("utf-8"),
    }


def build_bundle(
    job: ReleaseJob,
    frame: pd.DataFrame,
    balance: Balance | None,
    *,
    mark: Mapping[str, str] | None = None,
    **facts: Any,
) -> tuple[dict[str, bytes], Manifest]:
    """Make the files of the bundle and the manifest that names their digests.

    ``facts`` are those of `build_manifest`. The card and the page are written from a manifest
    that names the tables; the final one names them too.
    """
    with stage("report"):
        files = table_files(job, frame, mark or {})
        manifest = build_manifest(job, **facts, files=file_digests(files))
        files |= {
            DATA_CARD_FILE: render_data_card(
                manifest, job.table_schema, title=job.title, balance=balance
            ).encode("utf-8"),
            REPORT_FILE: render_report(
                manifest, frame, job.table_schema, title=job.title, balance=balance
            ).encode("utf-8"),
        }
        return files, manifest.model_copy(update={"files": file_digests(files)})


def publish(job: ReleaseJob, site: Site, files: dict[str, bytes], manifest: Manifest) -> Path:
    """Publish the bundle: all of it or, after a crash, none of it."""
    with stage("publish"):
        return site.releases.publish(job.ref, files, manifest)


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()
