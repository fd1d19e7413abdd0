"""The step after the seal: make and check a bundle of released and public values, without noise."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from privacy.errors import Withheld
from storage.releases.manifest import GateRecord, Manifest
from storage.releases.measurements import Measurement
from storage.schema.table import TableSchema
from tasks.execution.executor import Executor
from tasks.execution.runtime import stage
from tasks.gates import table_rules
from tasks.gates.agreement import CodedTable
from tasks.gates.agreement_gate import REFERENCE_ROWS, NoisyCounts, agreement_gate
from tasks.gates.suites import PAGE_FILE, Suite, cells_of, suite_checks, suite_page
from tasks.ingest.conditional_rows import Conditional, sample_rows
from tasks.ingest.constraint_rules import words
from tasks.ingest.encoding import decode, domain_of
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.method import Released, Synthesizer
from tasks.methods.registry import method_entry
from tasks.reporting.released_tables import released_tables
from tasks.reporting.tables import (
    coded,
    formats_agree,
    is_stated,
    parquet_of,
    read_rows,
    table_files,
)
from tasks.reporting.teacher_files import teacher_files
from tasks.steps.bundle import build_bundle
from tasks.steps.job import ReleaseJob


def prepare(
    job: ReleaseJob,
    measurement: Measurement,
    rng: np.random.Generator,
    conditions: Mapping[str, str] | None = None,
    *,
    draws: int = 0,
    checks_before: int,
    executor: Callable[[], AbstractContextManager[Executor]],
) -> tuple[dict[str, bytes], Manifest]:
    """Sample the rows and check them; return the files of the bundle, and its manifest.

    Released rows are distilled where `executor` says; rows of other `draws` are added. It is
    Withheld, naming failed checks; IntegrityError if codes mean something else now.
    """
    schema, record, conditions = job.table_schema, measurement.record, conditions or {}
    record.vocabulary.require(schema)
    synthesizer, released = job.synthesizer, measurement.released
    settings: Any = {"released": released, "conditions": conditions, "rng": rng}
    beside = job.histories and job.histories.sampling(job.unit.column, mu=job.mu, **settings)
    draw = beside.draw if beside else partial(sample_rows, synthesizer, schema, **settings)
    with stage("decode"):
        rows = draw(n_rows=job.rows)
        flat = partial(_tables, synthesizer, schema=schema, released=released, rng=rng)
        tables = beside.files(rows) if beside else flat(rows, soft_labels=job.soft_labels)
        # The tables describe rows without conditions.
        if not conditions:
            tables |= released_tables(measurement, schema, synthesizer)
    if job.source.kind == "omop":
        part = import_module("tasks.reporting.omop_tables")  # which parses queries
        tables |= part.omop_files(tables, schema, job.source, job.events)
    tables |= _distilled(rows, schema, job.points, executor)
    asked = {"mu": job.mu, "rows": job.rows, "draws": draws, "rng": rng}
    tables |= _drawn_again(synthesizer, schema, measurement, asked) if draws else {}
    del rows
    with stage("output-gate"):
        n_rows = int(np.clip(job.rows, *REFERENCE_ROWS))
        # Fewer than asked for where conditions are rare.
        reference, guide = (draw(n_rows=n_rows, all_of_them=False) for _ in range(2))
        # Rejection changes the distribution of rows, which the sealed counts then do not describe.
        own: Any = getattr(synthesizer, "of_patients", synthesizer)
        rejects = conditions or (schema.constraints and not isinstance(own, Conditional))
        histograms = () if rejects else method_entry(job.method.kind).histograms
        suite = job.asked.gate.get("expectations")
        held = (tables, reference, None if conditions else measurement.noisy)
        given: Any = {"reference": reference, "guide": guide, "rows": job.rows, "suite": suite}
        given["noisy"] = noisy_counts(histograms, own.domain, measurement)
        given["more"] = beside and partial(beside.checks, *held)
        gate = output_gate(schema, tables, **given)
        if suite is not None and job.asked.gate["page"]:
            tables[PAGE_FILE] = suite_page(read_rows(tables, schema), suite, cells_of(schema))
    with stage("report"):
        said: Any = {"gate": gate, "conditions": conditions, "checks_before": checks_before}
        said["events"] = beside.sections(tables) if beside else ()
        return build_bundle(job, measurement, tables, read_rows(tables, schema), **said)


def _drawn_again(
    synthesizer: Synthesizer, schema: TableSchema, measurement: Measurement, asked: dict[str, Any]
) -> dict[str, bytes]:
    with stage("draws"):
        parts = import_module("tasks.steps.parts")
        again = parts.drawn_again(synthesizer, schema, measurement, **asked)
        return {parts.DRAWS_FILE: parquet_of(again)}


def _distilled(
    rows: CodedTable,
    schema: TableSchema,
    points: int | None,
    executor: Callable[[], AbstractContextManager[Executor]],
) -> dict[str, bytes]:
    if points is None:
        return {}
    with stage("distill"), executor() as workers:
        part = import_module("tasks.distillation.distilled_rows")  # it needs the extra distill
        return {part.DISTILLED_FILE: parquet_of(part.distilled(rows, schema, points, workers))}


def _tables(
    synthesizer: Synthesizer,
    rows: CodedTable,
    *,
    schema: TableSchema,
    released: Released,
    rng: np.random.Generator,
    soft_labels: bool,
) -> dict[str, bytes]:
    frame = decode(rows.codes, rows.label, schema, rng=rng)
    return table_files(frame, schema, released=released) | teacher_files(
        synthesizer, released, schema, rows.codes, soft_labels=soft_labels
    )


def noisy_counts(
    names: Sequence[str], domain: EncodingDomain, measurement: Measurement
) -> NoisyCounts | None:
    """Return sealed counts of codes by label of one of these statistics, or None; in patients."""
    drawn = measurement.noise_stddevs
    for name in names:
        if name in drawn:
            return NoisyCounts.of_draw(
                measurement.sealed_values(name),
                noise_stddev=drawn[name],
                domain=domain,
                released=measurement.released,
            )
    return None


def output_gate(
    schema: TableSchema,
    tables: Mapping[str, bytes],
    *,
    reference: CodedTable,
    guide: CodedTable,
    noisy: NoisyCounts | None,
    rows: int,
    suite: Suite | None = None,
    more: Callable[[CodedTable], Iterable[GateRecord]] | None = None,
) -> list[GateRecord]:
    """Check the files that will be published; Withheld names the checks that failed.

    ``more`` are checks of tables of events, given the coded patients.
    """
    frame, published = read_rows(tables, schema), None
    checks = table_rules.output_gate(frame, schema, rows)
    stated = is_stated(tables, schema) and formats_agree(tables, frame, schema)
    checks.append(GateRecord(check="files", passed=stated))
    if all(check.passed for check in checks):
        published, broken = coded(frame, schema)
        rules = [*map(words, schema.constraints), *(one.title for one in schema.derived.values())]
        checks += [GateRecord(check=rule, passed=rule not in broken) for rule in rules]
    if published is not None:
        checks += [] if more is None else more(published)
        checks += suite_checks(frame, suite, cells_of(schema)) if suite is not None else ()
        checks += agreement_gate(
            published,
            reference,
            domain_of(schema),
            guide=guide,
            label_name=schema.labels.name,
            noisy=noisy,
        )
    failed = "; ".join(check.check for check in checks if not check.passed)
    if failed or published is None:
        text = f"the synthetic rows break these rules: {failed or 'rows are readable'}"
        raise Withheld("OUTPUT_GATE", text)
    return checks
