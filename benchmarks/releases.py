"""Whole releases by the program that users run, scored from their files by another process.

A table is split by patient. The training part is written to a file of its own, the site file is
pointed at it, and ``clustmix release`` runs on it in an empty home; of a rival
``python -m benchmarks.rivals`` does. `benchmarks.score` then judges the files by the held-out rows
in a process that imports nothing of the pipeline. Images have test files of their own and no split.

``python -m benchmarks.releases [--dataset SITE] [--method KIND] [--analysis A] [--seed N]`` runs
what is named; without names, all that `RESULT_FILE` lacks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.bundle_rows import MISSING, label_of, mapped
from benchmarks.process_memory import MeasuredCommand, run_measured
from benchmarks.results import (
    BENCHMARK_OUTPUT,
    BUNDLE,
    IN_PROCESS,
    RESULTS,
    Requirement,
    ResultRow,
    keep_rows,
    read_rows,
    requirement_table,
    run_table,
)
from benchmarks.rivals.registry import ACCOUNTED, PRINTED, RIVALS
from benchmarks.tables import (
    ROOT,
    divided,
    has_split,
    read_table,
    site_document,
    site_names,
    with_method,
    write_site,
)
from flows.site.site_file import SiteFile, load_site
from tasks.ingest.encoding import domain_of
from tasks.methods.registry import METHODS, build

RESULT_FILE = RESULTS / "releases.json"
SEEDS, MORE_SEEDS = (0, 1, 2), (3, 4)
"""Splits of every table, and those that are made of a table when they are named."""

FORMS = {"published": PRINTED, "accounted": ACCOUNTED}
"""Forms of rivals, by analysis."""

LIMIT_SECONDS = 3_600
"""Time after which a command is ended."""

TABLES = (
    "adult", "diabetes130-readmission", "diabetes130-length-of-stay", "physionet2012-mortality",
    "physionet2012-length-of-stay", "cardiotocography", "breast-cancer",
)  # fmt: skip
"""Tables on which the real rows, naive Bayes and the method of the site file are compared."""

OTHER_EPSILONS = (
    "adult-epsilon-0.2", "adult-epsilon-10", "diabetes130-readmission-epsilon-10",
    "physionet2012-mortality-epsilon-10",
)  # fmt: skip
TABLE_3 = ("mnist-epsilon-10", ("dp_cda", "dp_mix", "local_perturbation", "random_projection"))
"""Site file and methods of Table 3 of the DP-CDA paper."""

OTHER_KINDS = ("fashion-mnist", "mnist-binarised", "diabetes130-items")
EVERY_METHOD = ("adult", "mnist")
"""Datasets on which every method and every form of every rival is run."""

NOTHING_MADE = ("mnist", "clustmix", "published")
"""The paper's form at its own settings: a slice of 2,000 images has no 2,494 of one digit, which is
the smallest cluster that its noise allows at epsilon 1."""

ASKED_AUC = {"adult": 0.900, "physionet2012-mortality": 0.78}
ASKED_SECONDS, ASKED_METHOD_SECONDS, ASKED_PEAK_MIB = 60.0, 10.0, 2048.0
"""Of a release of Adult: the whole command, the method's own stages, all processes together."""


class Job(NamedTuple):
    """One run: site file, method, analysis, and seed of the split (None without a split).

    The last is an epsilon other than that of the site file, and a budget that it fits into.
    """

    site: str
    method: str
    analysis: str
    seed: int | None
    epsilon: float | None = None

    def document(self) -> dict[str, Any]:
        """Return the site file of the run."""
        document = site_document(self.site)
        if self.epsilon is not None:
            cap = max(document["budget"]["lifetime_epsilon"], self.epsilon)
            document["privacy"] = {**document["privacy"], "epsilon": self.epsilon}
            document["budget"] = {**document["budget"], "lifetime_epsilon": cap}
        return document


def scored(bundle: Path, test: Path) -> dict[str, Any]:
    """Score files in a process of its own."""
    answer = subprocess.run(  # noqa: S603, the command is the benchmark's own
        [sys.executable, "-m", "benchmarks.score", "--networks", str(bundle), str(test)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = json.loads(answer.stdout)
    kept = ("auc", "accuracy", "log_loss", "calibration_error", "tvd_1way", "tvd_2way",
            "cnn_accuracy", "teacher_accuracy")  # fmt: skip
    figures = {
        "largest_label_share_error": round(
            max(abs(real - made) for real, made in found["label_shares"].values()), 5
        ),
        "worst_column": max(found["worst_columns"].values()),
    }
    more = ("calibration_by_chance", "query_error", "paper_cnn_accuracy", "read_as_class")
    figures |= {name: found[name] for name in more if found.get(name) is not None}
    for label, of_label in found["more_labels"].items():
        figures |= {f"{name}, {label}": of_label[name] for name in ("auc", "accuracy", "log_loss")}
    return {
        **{name: found.get(name) for name in kept},
        "rows_out": found["rows"],
        "figures": figures,
    }


def commanded(arguments: Sequence[str], folder: Path) -> tuple[MeasuredCommand, dict[str, Any]]:
    """Run a command in an empty home; return what it used and what it answered."""
    measured = run_measured(
        ["timeout", str(LIMIT_SECONDS), *arguments, "--json"],
        {
            "CLUSTMIX_HOME": f"{folder}/home",
            "CLUSTMIX_RELEASES": f"{folder}/releases",
            "PYTHONPATH": str(ROOT),
        },
    )
    if measured.exit_code != 0:
        said = (measured.stdout + measured.stderr).strip()[-2000:]
        raise RuntimeError(
            f"expected {' '.join(arguments[:3])} to end with exit code 0, found "
            f"{measured.exit_code}: {said}"
        )
    return measured, json.loads(measured.stdout)


def measure_command(
    site_path: Path,
    test: Path,
    *,
    method: str | None = None,
    analysis: str,
    rows: int,
    seed: int | None,
    folder: Path,
) -> ResultRow:
    """Run one release, or one rival, and score its files by the test rows.

    Parameters
    ----------
    site_path
        Site file of a public or generated table.
    test
        Rows that its source does not hold.
    method
        A rival; the method of the site file if left out.
    analysis
        ``proven``: ``clustmix release``; ``published`` or ``accounted``: a form of a rival.
    rows, seed
        Rows of the source and seed of the split, noted in the result.
    folder
        Scratch folder, where home and bundles are put.

    Raises
    ------
    RuntimeError
        If the command fails, with its own public message.
    """
    site = load_site(site_path)
    method = method or site.method.kind
    if analysis == "proven":
        program = Path(sys.executable).parent / "clustmix"
        measured, answer = commanded([str(program), "release", str(site_path)], folder)
        bundle = folder / "releases" / site.dataset / answer["release_id"]
    else:
        command = [sys.executable, "-m", "benchmarks.rivals", method, "--dataset", str(site_path)]
        command += ["--form", FORMS[analysis], "--output", str(folder / "output")]
        measured, answer = commanded(command, folder)
        bundle = Path(answer["folder"])
    seconds: dict[str, float] = answer.get("stage_seconds", {})
    synthesizer = build(site.method, domain_of(site.table_schema)) if seconds else None
    # Sampling and decoding belong to the method: without them there are no records.
    own = {s.name for s in synthesizer.stages()} if synthesizer else set()
    own |= {"decode", "paper-method"}
    return ResultRow(
        dataset=site.dataset,
        method=method,
        analysis=analysis,
        epsilon=site.privacy.epsilon,
        delta=site.privacy.delta,
        seed=seed,
        source=BUNDLE if analysis == "proven" else BENCHMARK_OUTPUT,
        rows=rows,
        columns=len(site.columns_to_read),
        **scored(bundle, test),
        wall_seconds=measured.wall_seconds,
        cpu_seconds=measured.cpu_seconds,
        method_seconds=round(sum(t for n, t in seconds.items() if n in own), 3)
        if seconds
        else None,
        stage_seconds=seconds,
        peak_rss_mib=measured.peak_rss_mib,
        peak_pss_mib=measured.peak_pss_mib,
    )


def measure_real(
    site: SiteFile, test: Path, *, rows: int, seed: int | None, folder: Path
) -> ResultRow:
    """Score the real training rows as if they were a bundle: the ceiling, without privacy.

    Rows without one of the labels are left out, as they are by a release.
    """
    (folder / "schema.json").write_text(site.table_schema.model_dump_json(), encoding="utf-8")
    frame = read_table(site)
    for declared in (site.table_schema.label, *site.table_schema.more_labels):
        label = declared.model_dump(mode="json")
        levels = mapped(frame[label["name"]], partial(label_of, label=label))
        frame = frame[levels != MISSING]
    frame.to_parquet(folder / "synthetic.parquet", index=False)
    return ResultRow(
        dataset=site.dataset,
        method="real",
        analysis="none",
        epsilon=None,
        delta=None,
        seed=seed,
        source=IN_PROCESS,
        rows=rows,
        columns=len(site.columns_to_read),
        **scored(folder, test),
    )


def run_job(job: Job) -> ResultRow:
    """Measure one method on one split."""
    document, real = job.document(), job.method == "real"
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        site_path = folder / "site.yaml"
        document = with_method(document, job.method) if job.analysis == "proven" else document
        document, test, rows = divided(document, job.seed, folder)
        site = write_site(document, site_path)
        if real:
            return measure_real(site, test, rows=rows, seed=job.seed, folder=folder)
        return measure_command(
            site_path,
            test,
            method=job.method,
            analysis=job.analysis,
            rows=rows,
            seed=job.seed,
            folder=folder,
        )


def standing_jobs() -> list[Job]:
    """Return all runs, those that are quick first."""
    jobs = []
    for site in (*TABLES, *OTHER_EPSILONS):
        own = site_document(site)["method"]["kind"]
        forms = [("naive_bayes", "proven"), (own, "proven")]
        forms += [("real", "none")] if site in TABLES else []
        forms += [(own, "published")] if site == "adult" else []
        jobs += [Job(site, *form, seed) for form in forms for seed in SEEDS]
    for site in (*OTHER_KINDS, *EVERY_METHOD):
        own, seed = site_document(site)["method"]["kind"], 0 if has_split(site) else None
        forms = [("real", "none"), (own, "proven")]
        if site in EVERY_METHOD:
            forms += [(entry.kind, "proven") for entry in METHODS]
            forms += [form for kind in RIVALS for form in rival_forms(kind)]
        jobs += [Job(site, *form, seed) for form in forms]
    site, kinds = TABLE_3
    jobs += [Job(site, *form, None) for kind in kinds for form in rival_forms(kind)]
    jobs.append(Job(site, "dp_cda", "proven", None))
    return [job for job in dict.fromkeys(jobs) if job[:3] != NOTHING_MADE]


def rival_forms(kind: str) -> list[tuple[str, str]]:
    """Return name and analysis of each form of a rival."""
    return [(kind, analysis) for analysis, form in FORMS.items() if form in RIVALS[kind].forms]


def missing_jobs() -> list[Job]:
    """Return the standing runs that the file of results lacks."""
    rows = read_rows(RESULT_FILE)
    known = {row.key for row in rows if row.source != IN_PROCESS or row.method == "real"}
    return [job for job in standing_jobs() if key_of(job) not in known]


def named_jobs(options: argparse.Namespace) -> list[Job]:
    """Return the runs that are named; a named dataset and method need not be a standing pair."""
    jobs = standing_jobs()
    for site in options.dataset or () if options.method else ():
        seeds = (options.seed or SEEDS) if has_split(site) else (None,)
        forms = [(kind, options.analysis or "proven") for kind in options.method if kind != "real"]
        jobs += [Job(site, *form, seed) for form in forms for seed in seeds]
    wanted = (options.dataset, options.method, options.analysis and (options.analysis,))
    return [
        job
        for job in dict.fromkeys(jobs)
        if all(not names or part in names for part, names in zip(job[:3], wanted, strict=True))
        and (not options.seed or job.seed in (None, *options.seed))
    ]


def key_of(job: Job) -> tuple[Any, ...]:
    """Return the key of the row that a job makes."""
    document = job.document()
    privacy = document["privacy"] if job.method != "real" else {"epsilon": None, "delta": None}
    run = (document["dataset"], job.method, job.analysis, privacy["epsilon"], privacy["delta"])
    return (*run, job.seed, "{}")


def requirements(rows: Sequence[ResultRow]) -> list[Requirement]:
    """Compare utility and cost of bundles of the proven ClustMix with what was asked."""
    found = []
    own = [row for row in rows if (row.source, row.method) == (BUNDLE, "clustmix")]
    for dataset, asked in ASKED_AUC.items():
        aucs = [r.auc for r in own if (r.dataset, r.epsilon) == (dataset, 1.0) and r.auc]
        if aucs:
            found.append(
                Requirement(
                    text=f"{dataset}: AUC of the bundle, epsilon 1, mean of {len(aucs)} splits",
                    asked=f">= {asked:.3f}",
                    measured=f"{mean(aucs):.4f}",
                    met=mean(aucs) >= asked,
                )
            )
    adult = [row for row in own if (row.dataset, row.epsilon) == ("adult", 1.0)]
    for text, name, asked, summary in (
        ("site file to bundle, wall seconds, mean", "wall_seconds", ASKED_SECONDS, mean),
        ("the method's own stages, seconds, mean", "method_seconds", ASKED_METHOD_SECONDS, mean),
        ("memory of all processes together, MiB, largest", "peak_rss_mib", ASKED_PEAK_MIB, max),
    ):
        if adult:
            measured = float(summary([getattr(row, name) for row in adult]))
            found.append(
                Requirement(
                    text=f"adult: {text}",
                    asked=f"< {asked:.0f}",
                    measured=f"{measured:.1f}",
                    met=measured < asked,
                )
            )
    return found


def run(
    jobs: Sequence[Job],
    *,
    show: Callable[[str], None],
    path: Path | None = None,
    settings: dict[str, Any] | None = None,
) -> list[Job]:
    """Run the jobs one after the other, keep each row at once, and return those that failed.

    Rows go to `RESULT_FILE`, or to the file ``path``; ``settings`` are noted in them.
    """
    failed = []
    for job in jobs:
        name = " ".join(str(part) for part in job if part is not None)
        try:
            row = run_job(job)
        # Whatever stops one method is a result of it, and no reason to skip the others.
        except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
            failed.append(job)
            show(f"{name}: {error}")
            continue
        keep_rows(path or RESULT_FILE, [replace(row, settings=settings or {})])
        times = "" if row.wall_seconds is None else f", {row.wall_seconds:.1f} s"
        show(f"{name}: AUC {row.auc:.4f}, worst label share off by "
             f"{row.figures['largest_label_share_error']:.3f}{times}")  # fmt: skip
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.releases", description=__doc__)
    parser.add_argument("--dataset", action="append", choices=site_names(), help="repeatable")
    kinds = sorted({"real", *(entry.kind for entry in METHODS), *RIVALS})
    parser.add_argument("--method", action="append", choices=kinds, help="repeatable")
    parser.add_argument("--analysis", choices=("proven", *FORMS, "none"))
    parser.add_argument(
        "--seed", action="append", type=int, choices=SEEDS + MORE_SEEDS, help="repeatable"
    )
    options = parser.parse_args(arguments)
    named = any(vars(options).values())
    jobs = named_jobs(options) if named else missing_jobs()
    failed = run(jobs, show=lambda text: print(text, file=sys.stderr, flush=True))
    rows = read_rows(RESULT_FILE)
    print(run_table(rows))
    print()
    print(requirement_table(requirements(rows)))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
