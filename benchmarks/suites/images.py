"""Images: releases of MNIST and Fashion-MNIST, judged by networks on the real test images.

Nothing of a method was chosen on the test images. Table 3 of the DP-CDA paper compares rivals on
MNIST at an epsilon of ten.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.jobs import Job
from benchmarks.releases import Run, asked, measured
from benchmarks.results import print_row
from benchmarks.rivals.registry import RIVALS
from benchmarks.tables import site_document
from tasks.methods.registry import METHODS

DATASETS, EPSILONS, DRAWS = ("mnist", "fashion-mnist"), (1.0, 0.2, 10.0), range(3)
DELTA, OTHER_DELTA = 1e-5, 1e-6
TABLE_3 = ("dp_cda", "dp_mix", "local_perturbation", "random_projection")


def jobs() -> list[Job]:
    """Return the jobs: ClustMix at each epsilon, then every other method and rival on MNIST."""
    runs = [Run(dataset=name, method="real") for name in DATASETS]
    runs += [
        Run(dataset=name, method="clustmix", epsilon=epsilon, seed=draw)
        for draw in DRAWS
        for epsilon in EPSILONS
        for name in DATASETS
    ]
    runs += [
        Run(dataset="mnist", method=entry.kind, epsilon=1.0, delta=OTHER_DELTA) for entry in METHODS
    ]
    runs += [
        Run(dataset="mnist", method=kind, form=form, epsilon=10.0)
        for kind in TABLE_3
        for form in RIVALS[kind].forms
    ]
    return list(dict.fromkeys(run.job("images", counted="--draw") for run in runs))


def main(arguments: Sequence[str] | None = None) -> int:
    run = asked("images", arguments, counted="--draw")
    run = replace(run, delta=run.delta or DELTA)
    return print_row(measured(run, site_document(run.dataset)))


if __name__ == "__main__":
    sys.exit(main())
