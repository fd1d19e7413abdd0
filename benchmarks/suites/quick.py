"""Every method of the product on 5,000 rows of three tables, one draw each: minutes in all.

The two methods that train for minutes, DP-CDA and DPGM, run on the first table alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.jobs import Job
from benchmarks.releases import Run, main_of
from tasks.methods.registry import METHODS

TABLES, ROWS = ("adult", "flchain", "bank-marketing"), 5_000
SLOW = ("dp_cda", "dpgm")


def jobs() -> list[Job]:
    """Return the jobs."""
    runs = [Run(dataset=name, method="real", rows=ROWS) for name in TABLES]
    runs += [
        Run(dataset=name, method=entry.kind, epsilon=1.0, rows=ROWS)
        for entry in METHODS
        for name in (TABLES[:1] if entry.kind in SLOW else TABLES)
    ]
    return [run.job("quick", limit_seconds=600) for run in runs]


def main(arguments: Sequence[str] | None = None) -> int:
    return main_of("quick", arguments)


if __name__ == "__main__":
    sys.exit(main())
