"""How often the output gate finds a planted fault, and how often it stops an honest release.

    python -m benchmarks.output_gate RELEASE [RELEASE ...] [--repetitions N]

Samples each sealed measurement of this installation again and again, plants each fault in every
column that can have it, and holds the codes against the measurement as a release does. A fault
that the gate calls too small to be seen in a column is counted apart, in "unseen".
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flows.publication import job_of_measurement
from storage.releases.measurements import MeasurementStore
from storage.schema.vocabulary import Vocabulary
from storage.settings import load_settings
from tasks.gates.agreement import CodedTable
from tasks.gates.agreement_gate import REFERENCE_ROWS, agreement_gate
from tasks.ingest.conditional_rows import sample_rows
from tasks.ingest.encoding import domain_of
from tasks.measurement.encoded import EncodingDomain
from tasks.methods.registry import method_entry
from tasks.steps.publish_steps import noisy_counts

Fault = Callable[[CodedTable, np.random.Generator], tuple[CodedTable, list[int] | None]]
"""Returns the faulty table and the columns that are at fault; None where it is the label."""


def faults_of(domain: EncodingDomain, groups: list[list[int]]) -> dict[str, Fault]:
    """Every fault that the domain allows, each planted in all columns at once."""
    n_labels = domain.n_labels

    def labels(order: list[int]) -> Fault:
        mapping = np.array([*order, *range(len(order), n_labels)], dtype=np.uint16)
        return lambda t, _: (replace(t, label=mapping[t.label]), None)

    def independent(t: CodedTable, rng: np.random.Generator) -> tuple[CodedTable, None]:
        return replace(t, label=rng.permutation(t.label)), None

    def moved(t: CodedTable, _: np.random.Generator) -> tuple[CodedTable, list[int]]:
        codes = t.codes.copy()
        touched: list[int] = []
        for j, width in enumerate(domain.n_codes):
            present = width - domain.has_missing[j]
            if present < 2:
                continue
            column, touched = codes[:, j], [*touched, j]
            there = column < present
            if domain.numeric[j]:
                column[there] = (column[there] + 1) % present
            else:
                first, second = np.argsort(np.bincount(column[there], minlength=present))[-2:]
                was = column.copy()
                column[was == first], column[was == second] = second, first
        return replace(t, codes=codes), touched

    def constant(t: CodedTable, _: np.random.Generator) -> tuple[CodedTable, list[int]]:
        return replace(t, codes=np.zeros_like(t.codes)), list(range(domain.n_columns))

    def missing(t: CodedTable, _: np.random.Generator) -> tuple[CodedTable, list[int]]:
        codes = t.codes.copy()
        touched: list[int] = []
        for j in np.flatnonzero(domain.has_missing):
            codes[codes[:, j] == domain.n_codes[j] - 1, j] = 0
            touched.append(int(j))
        return replace(t, codes=codes), touched

    def exchanged(t: CodedTable, _: np.random.Generator) -> tuple[CodedTable, list[int]]:
        codes = t.codes.copy()
        touched: list[int] = []
        for group in groups:
            codes[:, group] = t.codes[:, [*group[1:], group[0]]]
            touched += group
        return replace(t, codes=codes), touched

    found: dict[str, Fault] = {
        "two label levels exchanged": labels([1, 0]),
        "labels independent of the columns": independent,
        "levels exchanged, or bins shifted by one": moved,
        "constant column": constant,
        "missing code as a level": missing,
        "columns exchanged": exchanged,
    }
    if n_labels > 2:
        found["two of three label levels exchanged"] = labels([0, 2, 1])
    return found


def measure(release_id: str, repetitions: int) -> None:
    """Print the table of one measurement."""
    measurement = MeasurementStore(load_settings().measurements).open(release_id)
    job = job_of_measurement(measurement, release_id)
    domain, released = domain_of(job.table_schema), measurement.released
    synthesizer, rng = job.synthesizer, np.random.default_rng()
    noisy = noisy_counts(method_entry(job.method.kind).histograms, domain, measurement)
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    names = list(domain.column_names)
    for coded in Vocabulary.of(job.table_schema).columns:
        alike[coded.codes] += [names.index(name) for name in coded.names]
    faults = faults_of(domain, [group for group in alike.values() if len(group) > 1])

    def sampled(n_rows: int) -> CodedTable:
        return sample_rows(synthesizer, job.table_schema, released, {}, rng=rng, n_rows=n_rows)

    alarms = 0
    found: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(repetitions):
        table, reference, guide = (
            sampled(min(job.rows, n)) for n in (job.rows, *[REFERENCE_ROWS[1]] * 2)
        )
        for name, fault in {"": None, **faults}.items():
            changed, columns = (table, None) if fault is None else fault(table, rng)
            report = agreement_gate(
                changed, reference, domain, guide=guide, label_name="(label)", noisy=noisy
            )
            if fault is None:
                alarms += not report.passed
            elif columns is None:
                found[name]["(label)"].append(not report.passed)
            else:
                failed = {check.column for check in report.failed_checks}
                for column in columns:
                    found[name][names[column]].append(names[column] in failed)
    print(
        f"{release_id} {job.ref.dataset} {job.method.kind}: {alarms} of {repetitions} honest "
        "releases stopped"
    )
    print("| fault | columns | found in .99 or more | in fewer |\n|---|---|---|---|")
    for name, hit in found.items():
        sure = [column for column, hits in hit.items() if np.mean(hits) >= 0.99]
        rest = {c: round(float(np.mean(h)), 2) for c, h in hit.items() if c not in sure}
        print(f"| {name} | {len(hit)} | {len(sure)} | {rest or '-'} |")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="+", metavar="RELEASE")
    parser.add_argument("--repetitions", type=int, default=100)
    arguments = parser.parse_args()
    for release_id in arguments.releases:
        measure(release_id, arguments.repetitions)


if __name__ == "__main__":
    main()
