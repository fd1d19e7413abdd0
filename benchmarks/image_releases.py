"""Releases of images by the program that users run, judged by three networks: what papers compare.

ClustMix on MNIST and Fashion-MNIST, three releases at each epsilon, scored as those of
`benchmarks.releases`: nothing of a method was chosen on the test images. The form as printed in the
3A paper stands beside it, with the tangent kernels of neural-tangents: of a fully connected network
on all images of MNIST, and of a convolutional one on the first `CONVOLVED` of them.

``python -m benchmarks.image_releases [--dataset SITE] [--epsilon E] [--printed]`` runs what
`RESULT_FILE` lacks of what is named, or of all but ``pneumoniamnist``, whose file no program
fetches; ``--show`` runs nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq

from benchmarks.releases import measure_command
from benchmarks.results import (
    RESULTS,
    Requirement,
    ResultRow,
    keep_rows,
    read_rows,
    requirement_table,
    run_table,
)
from benchmarks.tables import divided, site_document, write_site
from storage.public_data.datasets import find

RESULT_FILE = RESULTS / "image_releases.json"
DATASETS, MEDICAL = ("mnist", "fashion-mnist"), "pneumoniamnist"
EPSILONS, DELTA, RUNS = (1.0, 0.2, 10.0), 1e-5, (0, 1, 2)
PRINTED, PRINTED_EPSILON, PRINTED_SIGMA_MAX = "mnist", 10.0, 0.5
"""The printed form makes nothing at epsilon 1: its smallest cluster is more than a slice has."""

CONVOLVED = 1_000
"""Images of the convolutional kernel, which costs as many times more as an image has pixels."""

ASKED = {
    ("mnist", 0.2): (0.94, 0.97), ("mnist", 1.0): (0.97, 0.985), ("mnist", 10.0): (0.972, 0.99),
    ("fashion-mnist", 0.2): (0.78, 0.85), ("fashion-mnist", 1.0): (0.82, 0.88),
    ("fashion-mnist", 10.0): (0.838, 0.89),
}  # fmt: skip
"""Accuracy of the small network trained on the release, and of the released teacher."""

ASKED_SECONDS, ASKED_MIB = 150.0, 2048.0


def document_of(dataset: str, epsilon: float) -> dict[str, Any]:
    """Return a site file at another epsilon, with a budget that it fits into."""
    document = site_document(dataset)
    cap = max(document["budget"]["lifetime_epsilon"], epsilon)
    return {
        **document,
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "budget": {"lifetime_epsilon": cap},
    }


def released(dataset: str, epsilon: float, run: int) -> ResultRow:
    """Publish one release and score it."""
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        document, test, rows = divided(document_of(dataset, epsilon), None, folder)
        write_site(document, folder / "site.yaml")
        return measure_command(
            folder / "site.yaml", test, analysis="proven", rows=rows, seed=run, folder=folder
        )


def printed(kernel: str) -> ResultRow:
    """Run the form as printed with a kernel of neural-tangents, and score what it makes."""
    published = {"sigma_max": PRINTED_SIGMA_MAX, "kernel": kernel}
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        document, test, rows = divided(document_of(PRINTED, PRINTED_EPSILON), None, folder)
        document = {**document, "method": {"kind": "clustmix", "published": published}}
        if kernel == "convolutional":
            rows = CONVOLVED
            document = {**document, "source": first_images(document["source"]["data"], folder)}
        write_site(document, folder / "site.yaml")
        row = measure_command(
            folder / "site.yaml", test, analysis="published", rows=rows, seed=None, folder=folder
        )
        return replace(row, settings={"kernel": kernel})


def first_images(data: str, folder: Path) -> dict[str, Any]:
    """Write the first images of a public dataset, and return them as a source."""
    target = folder / "first.parquet"
    pq.write_table(pq.read_table(find(data)).slice(0, CONVOLVED), target)
    return {"kind": "parquet", "path": str(target)}


def requirements(rows: Sequence[ResultRow]) -> list[Requirement]:
    """Hold the means of the proven form against what was asked."""
    found = []
    for (dataset, epsilon), asked in ASKED.items():
        own = [
            row
            for row in rows
            if (row.dataset, row.analysis, row.epsilon) == (dataset, "proven", epsilon)
        ]
        if not own:
            continue
        for name, least in zip(("cnn_accuracy", "teacher_accuracy"), asked, strict=True):
            value = mean(getattr(row, name) or 0.0 for row in own)
            text = f"{dataset}, epsilon {epsilon:g}: {name}, mean of {len(own)}"
            found.append(_least(text, least, value))
        seconds = max(row.wall_seconds or 0.0 for row in own)
        peak = max(row.peak_rss_mib or 0.0 for row in own)
        for text, most, value in (("s", ASKED_SECONDS, seconds), ("MiB", ASKED_MIB, peak)):
            name = f"{dataset}, epsilon {epsilon:g}: largest, {text}"
            asked_text = f"< {most:.0f}"
            found.append(Requirement(
                text=name, asked=asked_text, measured=f"{value:.0f}", met=value < most
            ))  # fmt: skip
    return found


def _least(text: str, least: float, value: float) -> Requirement:
    return Requirement(
        text=text, asked=f">= {least:.3f}", measured=f"{value:.4f}", met=value >= least
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.image_releases", description=__doc__)
    choices = (*DATASETS, MEDICAL)
    parser.add_argument("--dataset", action="append", choices=choices, help="repeatable")
    parser.add_argument("--epsilon", action="append", type=float, help="repeatable")
    parser.add_argument("--run", action="append", type=int, choices=RUNS, help="repeatable")
    parser.add_argument("--printed", action="store_true", help="the form as printed alone")
    parser.add_argument("--show", action="store_true", help="print what is stored, run nothing")
    options = parser.parse_args(arguments)
    known = {(row.dataset, row.epsilon, row.seed, str(row.settings)) for row in rows_kept()}
    named = options.dataset or options.epsilon or options.run
    for run in () if options.show or options.printed else options.run or RUNS:
        for epsilon in options.epsilon or EPSILONS:
            for dataset in options.dataset or DATASETS:
                if (dataset, epsilon, run, "{}") not in known:
                    _kept(released(dataset, epsilon, run))
    for kernel in ("fully_connected", "convolutional"):
        settings = str({"kernel": kernel})
        wanted = options.printed or not (named or options.show)
        if wanted and (PRINTED, PRINTED_EPSILON, None, settings) not in known:
            _kept(printed(kernel))
    rows = rows_kept()
    print(run_table(rows))
    print()
    print(requirement_table(requirements(rows)))
    return 0


def rows_kept() -> list[ResultRow]:
    """Return the rows of earlier runs."""
    return read_rows(RESULT_FILE)


def _kept(row: ResultRow) -> None:
    keep_rows(RESULT_FILE, [row])
    print(
        f"{row.dataset} {row.analysis} {row.epsilon} {row.seed}: network {row.cnn_accuracy}, "
        f"teacher {row.teacher_accuracy}, {row.wall_seconds} s",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
