"""Speed of the exact noise sampler, by one thread and by several."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from benchmarks.results import Requirement, requirement_table
from privacy import randomness
from privacy.calibration import discrete_noise_stddev, gdp_mu

VALUES = 1_000_000
ASKED_SECONDS = 20.0
ASKED_CORES = 2


def measure(n_values: int) -> float:
    """Draw values as a release at epsilon 1 does; return the wall time in seconds."""
    noise_stddev = discrete_noise_stddev(l2_sensitivity=2.0**24, mu=gdp_mu(epsilon=1.0, delta=1e-6))
    started = time.perf_counter()
    randomness.OperatingSystemNoise().discrete_gaussian((n_values,), noise_stddev=noise_stddev)
    return time.perf_counter() - started


def requirements(wall_seconds: float, *, load_before: float) -> list[Requirement]:
    """Compare the time of a million values with what was asked."""
    cores = len(os.sched_getaffinity(0))
    return [
        Requirement(
            text=f"noise: {VALUES:,} exact values, wall seconds, {cores} cores, "
            f"{load_before:.1f} busy before",
            asked=f"< {ASKED_SECONDS:.0f} on {ASKED_CORES}",
            measured=f"{wall_seconds:.1f}",
            met=wall_seconds < ASKED_SECONDS,
        )
    ]


def run() -> list[Requirement]:
    """Measure and compare."""
    load_before = os.getloadavg()[0]
    return requirements(measure(VALUES), load_before=load_before)


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="benchmarks.noise", description=__doc__).parse_args(arguments)
    print(f"one thread: {16_384 / measure(16_384):,.0f} values per second")
    print(requirement_table(run()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
