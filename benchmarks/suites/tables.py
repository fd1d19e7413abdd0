"""Tables of patients: releases of ClustMix, naive Bayes and a peer, and the real rows, by splits.

``python -m benchmarks.suites.tables --dataset D --method M [--epsilon E] --split N`` runs one job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.jobs import Job
from benchmarks.releases import Run, main_of
from benchmarks.rivals.registry import RIVALS
from tasks.methods.registry import METHODS

EPSILONS, SPLITS = (1.0, 0.2, 10.0), range(5)
METHOD, YARDSTICK = "clustmix", "naive_bayes"

CHOSEN_ON = ("adult", "diabetes130-readmission", "physionet2012-mortality")
"""Tables that constants of ClustMix were chosen on from the start."""

TABLES = (
    "heart-disease-uci", "chronic-kidney-disease", "cervical-cancer-risk", "cardiotocography",
    "rotterdam", "flchain", "thyroid0387", "nafld", "arrhythmia", "bank-marketing",
    "nhanes-2009-2012", "brfss2015-diabetes", "census-income", "isolet-vowels",
)  # fmt: skip
"""Tables at every epsilon, those that are quick first."""

AT_ONE = ("breast-cancer", "diabetes130-length-of-stay", "physionet2012-length-of-stay",
          "physionet2012-last-values")  # fmt: skip
"""Tables at an epsilon of one alone."""

FEW = {
    "census-income": 2,
    "isolet-vowels": 2,
    "breast-cancer": 3,
    "physionet2012-length-of-stay": 3,
}
"""Splits of tables that are slow, or small; those of all others are five."""

AIM_SECONDS = 6_000


def jobs() -> list[Job]:
    """Return the jobs, split by split over all tables, an epsilon of one first."""
    names = (*CHOSEN_ON, *TABLES)
    runs = [
        Run(dataset=name, method=method, epsilon=epsilon, seed=split)
        for epsilon in EPSILONS
        for split in SPLITS
        for name in (*names, *(AT_ONE if epsilon == EPSILONS[0] else ()))
        for method in (YARDSTICK, METHOD)
        if split < FEW.get(name, len(SPLITS)) and (epsilon == EPSILONS[0] or name not in FEW)
    ]
    real = dict.fromkeys((run.dataset, run.seed) for run in runs)
    found = [_job(Run(dataset=name, method="real", seed=split)) for name, split in real]
    found += [_job(run) for run in runs]
    adult = [(entry.kind, "proven") for entry in METHODS]
    adult += [(kind, form) for kind, entry in RIVALS.items() for form in entry.forms]
    found += [_job(Run(dataset="adult", method=m, form=f, epsilon=1.0)) for m, f in adult]
    peers = [Run(dataset="adult", method="aim", epsilon=epsilon) for epsilon in EPSILONS]
    found += [_job(run, AIM_SECONDS) for run in peers]
    return list(dict.fromkeys(found))


def _job(run: Run, limit_seconds: int = 1800) -> Job:
    return run.job("tables", limit_seconds=limit_seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    return main_of("tables", arguments)


if __name__ == "__main__":
    sys.exit(main())
