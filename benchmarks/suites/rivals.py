"""Private networks that make tables, on Adult at epsilon 1: which of them can be had, and run.

PATE-GAN, DP-GAN and ADS-GAN are in ``synthcity`` 0.2.12, DP-CTGAN and PATE-CTGAN in
``smartnoise-synth`` 1.0.8. Both need PyTorch, whose only build on the package index for this kind
of machine brings the libraries of a GPU, two gigabytes and more; `make peers` installs none of
them, and each job prints that as its row. On a machine with the package in the environment
``.venv-peers/NAME`` the job says that the adapter is to be written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.jobs import Job
from benchmarks.peers import ENVIRONMENTS
from benchmarks.results import PEER, ResultRow

PACKAGES = {
    "pate-gan": "synthcity",
    "dp-gan": "synthcity",
    "ads-gan": "synthcity",
    "dp-ctgan": "smartnoise",
    "pate-ctgan": "smartnoise",
}
LIMIT_SECONDS = 720


def jobs() -> list[Job]:
    """Return a run of each network."""
    command = ("benchmarks.suites.rivals", "--dataset", "adult", "--method")
    return [
        Job(
            suite="rivals",
            command=(*command, method, "--epsilon", "1"),
            limit_seconds=LIMIT_SECONDS,
        )
        for method in PACKAGES
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the row of one network."""
    parser = argparse.ArgumentParser(prog="benchmarks.suites.rivals", description=__doc__)
    parser.add_argument("--dataset", choices=("adult",), required=True)
    parser.add_argument("--method", choices=PACKAGES, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    asked = parser.parse_args(arguments)
    name = PACKAGES[asked.method]
    if (ENVIRONMENTS / name).exists():
        raise RuntimeError(f"expected an adapter for {name}, which is installed; write one")
    row = ResultRow(
        dataset=asked.dataset,
        method=asked.method,
        analysis="stated",
        epsilon=asked.epsilon,
        delta=1e-5,
        seed=None,
        source=PEER,
        settings={"outcome": "could not be installed: PyTorch without a GPU is not on the index"},
    )
    print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
