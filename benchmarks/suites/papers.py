"""The figures of the three papers: ``python -m benchmarks.suites.papers PART`` prints one row.

`benchmarks/papers.toml` has what the papers print. Where the paper has more rows than a run can
take here, ``--rows`` says how many are read; CIFAR-10, call records and transit are not at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks.jobs import run
from benchmarks.results import ResultRow
from benchmarks.suites import papers_clustmix, papers_others


def function_of(part: str) -> Callable[..., ResultRow]:
    """Return the function of a part, such as ``table_row``."""
    functions = {**vars(papers_others), **vars(papers_clustmix)}
    found: Callable[..., ResultRow] = functions[f"{part}_row"]
    return found


def main(words: Sequence[str]) -> int:
    return run(function_of(words[0]), words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
