"""A job of the runner: ``python -m one_row --draw N``, a row, a failure or no end."""

import sys
import time

from benchmarks.results import IN_PROCESS, ResultRow, print_row

REAL = {"method": "real", "analysis": "none", "source": IN_PROCESS, "epsilon": None, "delta": None}

if __name__ == "__main__":
    number = int(sys.argv[-1])
    time.sleep(60 if number == 1 else 0.3)
    assert number != 2, "this one fails"
    assert number != 3, "it has no environment; make it with: make peers"
    sys.stdout.write("what a library prints\n")
    print_row(ResultRow(dataset="tiny", seed=number, auc=number / 100, **REAL))
