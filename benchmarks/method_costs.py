"""Time, memory and utility of every registered method, proven beside published.

One run of each method on Adult (split seed 0, as in `benchmarks.utility`) and on the 60,000 MNIST
images, through the pure stages and a curator, without an orchestrator. Every run has a process of
its own; the noise of proven forms comes from the operating system. Processor time includes the
children that draw much noise, the peak of memory does not. Rows are written one by one, and a run
skips what the file has: to measure a method again, name it.

``python -m benchmarks.method_costs [--dataset adult|mnist] [--method KIND]``
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from benchmarks.results import (
    CLAIMED,
    NO_GUARANTEE,
    PROVEN,
    RESULTS,
    ResultRow,
    read_rows,
    table,
    write_rows,
)
from benchmarks.tables import SITES, design, split
from benchmarks.utility import Clock, peak_rss_mib, train_and_test
from flows.site import SiteFile, load_site
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from storage import image_datasets
from storage.idx_files import read_idx
from storage.sources import IdxSource
from tasks import encoding
from tasks.metrics.marginal_distance import marginal_distance
from tasks.metrics.utility import Utility, train_on_synthetic_test_on_real
from tasks.synthesizers.curator import Curator, InProcessCompute
from tasks.synthesizers.encoded import EncodedRows
from tasks.synthesizers.registry import METHODS, build, build_published, method_entry

DATASETS = ("adult", "mnist")
REAL = ("real", "none")
SEED = 0
"""Seed of the split of Adult; never one of privacy noise."""

DECLARED_PATIENTS = {"adult": 24_000, "mnist": 60_000}
"""Public round numbers, for methods that sample patients at a declared rate."""

LIMIT_SECONDS = 3_600
"""Time after which a run is given up."""

RESULT_FILE = RESULTS / "method_costs.json"

Records = tuple[NDArray[np.uint16], NDArray[np.uint16]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a method is run on, and how its records are scored.

    Parameters
    ----------
    site
        Site file of the dataset.
    rows
        Training records.
    rows_read, columns_read
        Size of the table that was read.
    score
        From the released records to utility and, for tables, marginal distances.
    decode
        From released records to what a user gets; part of the cost of a method.
    """

    site: SiteFile
    rows: EncodedRows
    rows_read: int
    columns_read: int
    decode: Callable[[Records], Any]
    score: Callable[[Records, Any], dict[str, float]]


def table_task(dataset: str) -> Task:
    """Adult: LightGBM trained on the decoded records, tested on a quarter of the real ones."""
    part = split(dataset, SEED)
    schema = part.site.table_schema
    domain = encoding.domain_of(schema)
    test = design(part.test, schema)

    def decode(records: Records) -> Any:
        return encoding.decode(*records, schema, rng=np.random.default_rng())

    def score(records: Records, frame: Any) -> dict[str, float]:
        release = design(frame, schema)
        distance = marginal_distance(release.codes, test.codes, (*domain.n_codes, domain.n_labels))
        return {
            **_scores(train_and_test(release, test, n_labels=domain.n_labels)),
            "tvd_1way": round(distance.one_way, 5),
            "tvd_2way": round(distance.two_way, 5),
        }

    return Task(
        site=part.site,
        rows=part.rows,
        rows_read=len(part.train) + len(part.test),
        columns_read=len(part.site.columns_to_read),
        decode=decode,
        score=score,
    )


def image_task(dataset: str) -> Task:
    """MNIST: logistic regression trained on released pixels, tested on the 10,000 test images."""
    site = load_site(SITES / f"{dataset}.yaml")
    domain = encoding.domain_of(site.table_schema)
    if not isinstance(site.source, IdxSource) or set(domain.n_codes) != {256}:
        raise ValueError("expected a site file of images with 256 gray levels")
    codes, labels = _images(site.source.data or dataset, "train")
    test_codes, test_labels = _images(site.source.data or dataset, "test")

    def score(records: Records, _: Any) -> dict[str, float]:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        with warnings.catch_warnings():
            # A hundred iterations are the measure, converged or not.
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = train_on_synthetic_test_on_real(
                LogisticRegression(max_iter=100),
                records[0] / 255.0,
                records[1],
                test_codes / 255.0,
                test_labels,
                n_labels=domain.n_labels,
            )
        return _scores(found)

    return Task(
        site=site,
        rows=EncodedRows(
            codes=codes,
            label=labels,
            weight=np.ones(len(labels)),
            fold=(np.arange(len(labels)) % 5).astype(np.uint8),
            patient=np.arange(len(labels), dtype=np.uint32),
        ),
        rows_read=len(labels),
        columns_read=domain.n_columns + 1,
        decode=lambda records: None,
        score=score,
    )


def _scores(utility: Utility) -> dict[str, float]:
    return {"auc": round(utility.auc, 5), "accuracy": round(utility.accuracy, 5)}


def _images(name: str, part: str) -> Records:
    """Pixels and labels: with 256 gray levels the code of a pixel is its value."""
    images, labels = (read_idx(path) for path in image_datasets.find_images(name, part))
    return images.reshape(len(images), -1).astype(np.uint16), labels.astype(np.uint16)


def config_of(site: SiteFile, kind: str) -> BaseModel:
    """Return the settings of the site file where it names the method, else the defaults."""
    if site.method.kind == kind:
        return site.method
    config = method_entry(kind).config
    settings: dict[str, Any] = {"kind": kind}
    if "declared_patients" in config.model_fields:
        settings["declared_patients"] = DECLARED_PATIENTS[site.dataset]
    return config.model_validate(settings)


def proven_records(task: Task, kind: str, clock: Clock) -> Records:
    """Run the stages of the proven form and sample as many records as the site file asks for."""
    privacy = task.site.privacy
    synthesizer = build(config_of(task.site, kind), encoding.domain_of(task.site.table_schema))
    with clock.stage("plan"):
        mu = gdp_mu(epsilon=privacy.epsilon, delta=privacy.delta)
        plan = synthesizer.plan(mu=mu)
    curator = Curator(
        plan=plan, compute=InProcessCompute([task.rows]), noise_source=OperatingSystemNoise()
    )
    released: dict[str, NDArray[Any]] = {}
    for stage in synthesizer.stages(mu=mu):
        with clock.stage(stage.name):
            released.update(stage.run(curator, released))
    with clock.stage("sample"):
        return synthesizer.sample(released, n_rows=task.site.rows, rng=np.random.default_rng())


def published_records(task: Task, kind: str, clock: Clock) -> Records:
    """Run the published form; how many records it makes is its own affair."""
    privacy = task.site.privacy
    method = build_published(
        config_of(task.site, kind),
        encoding.domain_of(task.site.table_schema),
        PrivacyParameters(epsilon=privacy.epsilon, delta=privacy.delta),
        clock=time.monotonic,
    )
    with clock.stage("synthesize"):
        return method.synthesize(task.rows.codes, task.rows.label, np.random.default_rng())


def run_one(dataset: str, method: str, analysis: str) -> ResultRow:
    """Measure one form of one method; runs in a process of its own."""
    site = load_site(SITES / f"{dataset}.yaml")
    task = (image_task if isinstance(site.source, IdxSource) else table_task)(dataset)
    clock, private, cpu_before = Clock(), method != "real", _cpu_seconds()
    if analysis == "proven":
        records = proven_records(task, method, clock)
    elif analysis == "published":
        records = published_records(task, method, clock)
    else:
        records = task.rows.codes, task.rows.label
    with clock.stage("decode"):
        decoded = task.decode(records)
    cpu_seconds = _cpu_seconds() - cpu_before
    peak, seconds = peak_rss_mib(), clock.stage_seconds
    return ResultRow(
        dataset=dataset,
        method=method,
        analysis=analysis,
        guarantee={"none": NO_GUARANTEE, "proven": PROVEN, "published": CLAIMED}[analysis],
        epsilon=site.privacy.epsilon if private else None,
        delta=site.privacy.delta if private else None,
        seed=None if isinstance(site.source, IdxSource) else SEED,
        rows=task.rows_read,
        columns=task.columns_read,
        **task.score(records, decoded),
        wall_seconds=round(sum(seconds.values()), 3),
        cpu_seconds=round(cpu_seconds, 3),
        method_seconds=round(sum(seconds.values()) - seconds.get("plan", 0.0), 3),
        stage_seconds=seconds,
        peak_rss_mib=peak,
    )


def _cpu_seconds() -> float:
    """Processor time of this process and of the children that drew noise for it."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _answer(answers: Connection, job: tuple[str, str, str]) -> None:
    try:
        answers.send(run_one(*job))
    # Whatever stops one method is a result of it, and no reason to skip the others.
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")


def run_apart(
    job: tuple[str, str, str], *, limit_seconds: float = LIMIT_SECONDS
) -> ResultRow | str:
    """Run a job in a fresh process; return its row, or one line that says why there is none."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, job))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_seconds):
            return f"given up after {limit_seconds:g} s"
        found: ResultRow | str = receiver.recv()
    except EOFError:
        return "the process ended without an answer; it may have run out of memory"
    else:
        return found
    finally:
        process.kill()
        process.join()


def jobs_of(
    datasets: Sequence[str],
    kinds: Sequence[str] | None,
    done: Iterable[ResultRow],
    *,
    analysis: str | None = None,
) -> list[tuple[str, str, str]]:
    """Return what is to be run: what was named, or else everything that the file lacks."""
    forms = [REAL] if kinds is None else []
    for entry in METHODS:
        if kinds is None or entry.kind in kinds:
            forms += [(entry.kind, "proven")] if entry.proven else []
            forms += [(entry.kind, "published")] if entry.has_published_form else []
    if analysis is not None:
        forms = [form for form in forms if form[1] == analysis]
    known = {(row.dataset, row.method, row.analysis) for row in done} if kinds is None else set()
    jobs = [(dataset, *form) for dataset in datasets for form in forms]
    return [job for job in jobs if job not in known]


def cost_table(rows: Iterable[ResultRow]) -> str:
    """Lay out the rows, the forms of a method one below the other."""
    order = ["real", *(entry.kind for entry in METHODS)]
    lines = [
        (
            row.dataset,
            row.method,
            row.guarantee,
            "-" if row.epsilon is None else f"{row.epsilon:g}",
            "-" if row.auc is None else f"{row.auc:.4f}",
            "-" if row.accuracy is None else f"{row.accuracy:.3f}",
            "-" if row.tvd_2way is None else f"{row.tvd_2way:.3f}",
            f"{row.wall_seconds:.1f}",
            f"{row.cpu_seconds:.1f}",
            f"{row.peak_rss_mib:.0f}",
        )
        for row in sorted(
            rows, key=lambda r: (r.dataset, order.index(r.method), r.analysis != "proven")
        )
    ]
    header = (
        "dataset", "method", "guarantee", "epsilon", "AUC", "accuracy", "TVD 2-way", "wall s",
        "CPU s", "peak MiB",
    )  # fmt: skip
    return table(header, lines, n_left=3)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.method_costs", description=__doc__)
    parser.add_argument("--dataset", action="append", choices=DATASETS, help="may be repeated")
    known = [entry.kind for entry in METHODS]
    parser.add_argument("--method", action="append", choices=known, help="may be repeated")
    parser.add_argument("--analysis", choices=("proven", "published"), help="one form alone")
    options = parser.parse_args(arguments)
    rows, failed = read_rows(RESULT_FILE), False
    datasets = options.dataset or DATASETS
    for job in jobs_of(datasets, options.method, rows, analysis=options.analysis):
        found = run_apart(job)
        if isinstance(found, str):
            failed = True
            print(f"{' '.join(job)}: {found}", file=sys.stderr, flush=True)
            continue
        rows = [r for r in rows if (r.dataset, r.method, r.analysis) != job] + [found]
        write_rows(RESULT_FILE, rows)
        print(
            f"{' '.join(job)}: AUC {found.auc:.4f}, accuracy {found.accuracy:.4f}, "
            f"{found.wall_seconds:.1f} s wall, {found.cpu_seconds:.1f} s CPU, "
            f"{found.peak_rss_mib:.0f} MiB",
            file=sys.stderr,
            flush=True,
        )
    print(cost_table(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
