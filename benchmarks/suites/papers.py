"""The three papers' own figures: ``python -m benchmarks.suites.papers PART`` prints one row."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import yaml

from benchmarks.jobs import Job
from benchmarks.results import ResultRow


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.suites.papers", description=__doc__)
    parser.add_argument("part", choices=("table", "means", "noise"))
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--search", type=int, default=0)
    parser.add_argument("--size", type=int, default=118)
    parser.add_argument("--noise", default="eq8")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="given")
    options = parser.parse_args(arguments)
    print(json.dumps(asdict(row_of(options))))
    return 0


def row_of(options: Any) -> ResultRow:
    from benchmarks.rivals.clustmix.algorithm import ClustMixSettings
    from benchmarks.suites import papers_clustmix as clustmix

    given = {k: yaml.safe_load(v) for k, _, v in (g.partition("=") for g in options.given)}
    if options.part == "table":
        return clustmix.table_row(
            options.dataset, options.epsilon, seed=options.seed,
            settings=ClustMixSettings(**given), rows=options.rows, search=options.search,
        )
    if options.part == "means":
        return clustmix.means_row(options.epsilon, options.size, options.noise, options.seed)
    return clustmix.noise_row(options.dataset, options.size, 10, 784)


if __name__ == "__main__":
    raise SystemExit(main())
