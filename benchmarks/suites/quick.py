"""Every method of the product on 5,000 rows of three tables, one draw each: minutes in all.

The two methods that train for minutes, DP-CDA and DPGM, run on the first table alone.
"""

from __future__ import annotations

from benchmarks.jobs import Job, listed
from benchmarks.releases import Run, main
from tasks.methods.registry import METHODS

TABLES, ROWS = ("adult", "flchain", "bank-marketing"), 5_000
SLOW = ("dp_cda", "dpgm")


def jobs() -> list[Job]:
    runs = [Run(dataset=name, method="real", rows=ROWS) for name in TABLES]
    runs += [
        Run(dataset=name, method=entry.kind, epsilon=1.0, rows=ROWS)
        for entry in METHODS
        for name in (TABLES[:1] if entry.kind in SLOW else TABLES)
    ]
    return listed("quick", (run.options() for run in runs), limit_seconds=600)


if __name__ == "__main__":
    main()
