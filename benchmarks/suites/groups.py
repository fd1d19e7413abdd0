"""AUC by sex and age, importances and calibration of a release, on one split each.

The command is that of `benchmarks.suites.tables`; its earlier rows have no such figures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.jobs import Job
from benchmarks.releases import Run, main_of

TABLES = ("adult", "heart-disease-uci", "flchain", "nafld", "nhanes-2009-2012", "thyroid0387",
          "diabetes130-readmission", "brfss2015-diabetes", "physionet2012-mortality")  # fmt: skip


def jobs() -> list[Job]:
    """Return the jobs."""
    methods = (("clustmix", 1.0), ("real", None), ("naive_bayes", 1.0))
    runs = [Run(dataset=name, method=m, epsilon=e) for name in TABLES for m, e in methods]
    return [run.job("groups") for run in runs]


def main(arguments: Sequence[str] | None = None) -> int:
    return main_of("groups", arguments)


if __name__ == "__main__":
    sys.exit(main())
