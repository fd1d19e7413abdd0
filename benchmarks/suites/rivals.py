"""Generative networks of others, each with a limit of processor seconds.

They do not depend on what else runs. Past them the row says `did not end`.
"""

import resource
import signal
from dataclasses import replace

from benchmarks.releases import REAL, Run, main, table_row
from benchmarks.results import PEER, ResultRow

LIMIT_SECONDS = 900


def row_of(run: Run) -> ResultRow:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS + 60))
    try:
        return table_row(run)
    except RuntimeError as error:
        if f"found -{signal.SIGXCPU:d}:" not in str(error):
            raise
    row = ResultRow(
        dataset=run.dataset, method=run.method, seed=run.seed, **{**REAL, "source": PEER},
        settings={"outcome": "did not end", "limit_seconds": LIMIT_SECONDS},
    )  # fmt: skip
    return replace(row, epsilon=run.epsilon)


if __name__ == "__main__":
    main(row_of)
