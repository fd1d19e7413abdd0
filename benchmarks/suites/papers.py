"""The figures of the three papers: ``python -m benchmarks.suites.papers PART`` prints one row.

`benchmarks/papers.toml` has what the papers print. Where the paper has more rows than a run can
take here, ``--rows`` says how many are read; CIFAR-10, call records and transit are not at hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.jobs import Job
from benchmarks.results import ResultRow, print_row

SHAPES = {"mnist": (10, 784), "adult": (2, 14)}
"""Classes and features of the noise of Eq. 8."""


def jobs() -> list[Job]:
    """All jobs of the suite, in the order in which they matter."""
    found = []
    for line in Path(__file__).with_name("papers_jobs.txt").read_text("utf-8").splitlines():
        parts = re.split(r"\{(.*?)\}", line)
        for chosen in product(*(part.split(",") for part in parts[1::2])):
            parts[1::2] = chosen
            command = (__spec__.name, *"".join(parts).split())
            found += [] if line.startswith("#") else [Job(suite="papers", command=command)]
    return found


def row_of(options: Any) -> ResultRow:
    """Measure what the arguments name."""
    name, epsilon, seed, size = options.dataset, options.epsilon, options.seed, options.size
    if options.part == "mixtures":
        from benchmarks.suites.papers_mixtures import mixtures_row

        how = {"seed": seed, "n_images": options.images, "epochs": options.epochs}
        return mixtures_row(name, options.form or "dp_cda", options.order, epsilon, **how)
    if options.part in ("clusters", "queries"):
        from benchmarks.suites import papers_dpgm as dpgm

        if options.part == "clusters":
            return dpgm.clusters_row(options.features, epsilon, seed=seed, rounds=20)
        return dpgm.queries_row(name, options.variant, epsilon, seed=seed, design=options.design)
    if options.part in ("toy", "digits"):
        from benchmarks.suites import papers_pictures as pictures

        if options.part == "toy":
            return pictures.toy_row(name, options.form, epsilon)
        return pictures.digits_row(options.form, epsilon, size, options.noise)
    from benchmarks.suites import papers_clustmix as clustmix

    if options.part == "means":
        return clustmix.means_row(epsilon, size, options.noise, seed)
    if options.part == "noise":
        return clustmix.noise_row(name, size, *SHAPES[name])
    given = {key: yaml.safe_load(value) for key, value in (pair.split("=") for pair in options.set)}
    how = {"given": given, "rows": options.rows, "search": options.search}
    return clustmix.table_row(name, epsilon, seed=seed, **how)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the row of one job."""
    parser = argparse.ArgumentParser(prog=__spec__.name, description=__doc__)
    parts = ("table", "means", "noise", "toy", "digits", "mixtures", "clusters", "queries")
    parser.add_argument("part", choices=parts)
    for name, default in (("dataset", "mnist"), ("noise", "eq8"), ("design", "short")):
        parser.add_argument(f"--{name}", default=default)
    for name, number in (("seed", 0), ("search", 0), ("size", 118), ("order", 4)):
        parser.add_argument(f"--{name}", type=int, default=number)
    for name in ("rows", "images", "epochs"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("form", "features", "variant"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return print_row(row_of(parser.parse_args(arguments)))


if __name__ == "__main__":
    raise SystemExit(main())
