"""Run all benchmarks and print one table: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import cost, million_rows, noise, utility
from benchmarks.results import requirement_table, write_rows
from benchmarks.tables import SITES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    known = sorted(path.stem for path in SITES.glob("*.yaml"))
    parser.add_argument("--dataset", choices=known, help="utility on this dataset, and no more")
    options = parser.parse_args(arguments)
    if options.dataset is not None:
        return utility.main(["--dataset", options.dataset])

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    # Cost first: it wants a quiet machine.
    released = cost.run(show=show)
    write_rows(cost.RESULT_FILE, released)
    grown = million_rows.run(kind=million_rows.FORMATS[0], show=show)
    write_rows(million_rows.RESULT_FILE, grown)
    scored = utility.run(utility.DATASETS, show=show)
    write_rows(utility.RESULT_FILE, utility.keep_others(scored, utility.DATASETS))

    found = [
        *utility.requirements(scored),
        *cost.requirements(released),
        *million_rows.requirements(grown),
        *noise.run(),
    ]
    print(utility.utility_table(scored))
    print()
    print(cost.cost_table([*released, *grown]))
    print()
    print(requirement_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
