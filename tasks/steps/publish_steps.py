"""The step after the seal: make a bundle of a measurement, and check it.

Everything here reads released values and public settings only, and draws no noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from privacy.errors import Withheld
from privacy.event_records import event_from_dict
from privacy.events import Gaussian
from privacy.ledger import LedgerEntry
from storage.releases.measurements import Measurement
from storage.releases.pending import PendingBundles
from storage.schema.table import TableSchema
from tasks.execution.runtime import stage
from tasks.gates import expectations
from tasks.gates.agreement import CodedTable
from tasks.gates.agreement_gate import REFERENCE_ROWS, NoisyCounts, agreement_gate
from tasks.ingest.conditional_rows import Conditional, sample_rows
from tasks.ingest.constraint_rules import words
from tasks.ingest.encoding import decode, domain_of
from tasks.measurement.encoded import EncodingDomain
from tasks.methods.registry import method_entry
from tasks.reporting.released_tables import released_tables
from tasks.reporting.released_teacher import teacher_files
from tasks.reporting.tables import coded, formats_agree, is_stated, read_rows, table_files
from tasks.steps.bundle import Provenance, build_bundle
from tasks.steps.job import ReleaseJob


def prepare(
    job: ReleaseJob,
    entry: LedgerEntry,
    measurement: Measurement,
    rng: np.random.Generator,
    conditions: Mapping[str, str] | None = None,
    *,
    pending: PendingBundles,
    failed_checks: int = 0,
) -> None:
    """Sample the rows, check them, and keep the whole bundle until it is published.

    It is Withheld, naming failed checks; IntegrityError if codes mean something else now.
    """
    conditions = conditions or {}
    measurement.vocabulary.require(job.table_schema)
    synthesizer, schema, released = job.synthesizer, job.table_schema, measurement.released
    with stage("decode"):
        sampled = sample_rows(synthesizer, schema, released, rng, conditions, n_rows=job.rows)
        frame = decode(sampled.codes, sampled.label, schema, rng=rng)
        tables = table_files(frame, schema, released=released)
        tables |= teacher_files(released, schema, sampled.codes, soft_labels=job.soft_labels)
        # From here on the files tell: memory holds the rows once.
        del frame, sampled
        # Under conditions the rows are others than those of whom the tables tell.
        if not conditions:
            domain = replace(domain_of(schema), rows_per_patient=job.unit.max_rows)
            tables |= released_tables(measurement, schema, domain)
    with stage("output-gate"):
        n_rows = int(np.clip(job.rows, *REFERENCE_ROWS))
        reference, guide = (
            sample_rows(
                synthesizer, schema, released, rng, conditions, n_rows=n_rows, all_of_them=False
            )
            for _ in range(2)
        )
        # Rows that are thrown away are none of those that were counted.
        thrown = conditions or (schema.constraints and not isinstance(synthesizer, Conditional))
        histograms = () if thrown else method_entry(job.method.kind).histograms
        noisy = noisy_counts(histograms, domain_of(schema), measurement)
        gate = output_gate(schema, tables, reference, guide, noisy, rows=job.rows)
    with stage("report"):
        record = measurement.record
        origin = record.release_id if record.release_id != job.ref.release_id else None
        files, manifest = build_bundle(
            job,
            tables,
            read_rows(tables),
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
                corrected_after_checks=failed_checks,
            ),
            gate=gate,
        )
        pending.write(files, manifest)


def noisy_counts(
    names: Sequence[str], domain: EncodingDomain, measurement: Measurement
) -> NoisyCounts | None:
    """Return sealed counts of codes by label of one of these statistics, or None; in patients."""
    drawn = {
        event.statistic: event.noise_stddev
        for event in map(event_from_dict, measurement.record.events)
        if isinstance(event, Gaussian)
    }
    name = next((n for n in names if n in drawn), None)
    if name is None:
        return None
    return NoisyCounts.of_draw(
        measurement.sealed_values(name),
        noise_stddev=drawn[name],
        domain=domain,
        released=measurement.released,
    )


def output_gate(
    schema: TableSchema,
    tables: Mapping[str, bytes],
    reference: CodedTable,
    guide: CodedTable,
    noisy: NoisyCounts | None,
    *,
    rows: int,
) -> expectations.GateReport:
    """Check the files that will be published; Withheld names the checks that failed."""
    frame = read_rows(tables)
    report = expectations.output_gate(frame, schema, rows)
    stated = is_stated(tables, schema) and formats_agree(tables, frame, schema)
    published = None
    checks = [*report.checks, expectations.GateCheck(name="files", column=None, passed=stated)]
    if report.passed and stated:
        published, broken = coded(frame, schema)
        checks += [
            expectations.GateCheck(name=rule, column=None, passed=rule not in broken)
            for rule in map(words, schema.constraints)
        ]
    if published is not None:
        checks += agreement_gate(
            published,
            reference,
            domain_of(schema),
            guide=guide,
            label_name=schema.labels.name,
            noisy=noisy,
        ).checks
    report = expectations.GateReport(checks=tuple(checks))
    if not report.passed or published is None:
        failed = "; ".join(check.title for check in report.failed_checks) or "rows are readable"
        raise Withheld("OUTPUT_GATE", f"the synthetic rows break these rules: {failed}")
    return report
