"""Run all benchmarks of whole releases and print their rows: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import million_rows, noise, releases
from benchmarks.results import keep_rows, read_rows, requirement_table, run_table
from benchmarks.tables import site_names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--dataset", choices=site_names(), help="measure this one alone, again")
    options = parser.parse_args(arguments)
    if options.dataset is not None:
        return releases.main(["--dataset", options.dataset])

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as folder:
        grown = million_rows.run_growing(Path(folder), show)
    keep_rows(million_rows.RESULT_FILE, grown)
    failed = releases.run(releases.missing_jobs(), show=show)
    scored = read_rows(releases.RESULT_FILE)
    print(run_table([*scored, *grown]))
    print()
    found = [*releases.requirements(scored), million_rows.growth(grown), *noise.run()]
    print(requirement_table(found))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
