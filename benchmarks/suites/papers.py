"""The figures of the three papers: ``python -m benchmarks.suites.papers PART`` prints one row.

`benchmarks/papers.toml` has what the papers print. Where the paper has more rows than a run can
take here, ``--rows`` says how many are read; CIFAR-10, call records and transit are not at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from benchmarks.jobs import asked
from benchmarks.results import ResultRow, print_row

PARTS = {
    "table": "papers_clustmix", "means": "papers_clustmix", "noise": "papers_clustmix",
    "toy": "papers_clustmix", "digits": "papers_clustmix", "mixtures": "papers_mixtures",
    "clusters": "papers_dpgm", "queries": "papers_dpgm",
}  # fmt: skip
"""Modules with the function of each part, such as ``table_row``."""


def function_of(part: str) -> Callable[..., ResultRow]:
    found: Callable[..., ResultRow] = getattr(
        import_module(f"benchmarks.suites.{PARTS[part]}"), f"{part}_row"
    )
    return found


def main(words: Sequence[str]) -> int:
    function = function_of(words[0])
    return print_row(function(**asked(function, words[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])
