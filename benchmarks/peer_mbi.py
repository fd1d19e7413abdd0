"""A mixture of products that ``mbi`` fits to tables that ClustMix measured.

``python -m benchmarks.peer_mbi FOLDER KIND`` reads `TABLES` beside a request without rows: of every
measured table the estimated counts, their noise, and which codes are in which of its groups. It
answers whether the fit of ClustMix is what is better, or its draws. The number of components is
that of the package's default, steps and rate are those of its documentation. Runs with the packages
of ``peers-mbi.txt`` and imports nothing of the pipeline.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_exchange import read_request, write_made

TABLES = "tables.npz"
"""Arrays ``columns_I``, ``counts_I``, ``noise_I`` and, by column, ``joins_I_J`` (groups, codes)."""

STEPS, RATE = 1_000, 0.1


@dataclass(frozen=True, eq=False)
class Joined:
    """The table of groups of codes, as a linear query on a table of codes."""

    joins: tuple[np.ndarray, ...]

    def __call__(self, table: Any) -> Any:
        """Return the counts of groups, flat."""
        found = self.joins[0] @ table.datavector(flatten=False).reshape(self.joins[0].shape[1], -1)
        if len(self.joins) == 2:
            found = found @ self.joins[1].T
        return found.reshape(-1)

    def __hash__(self) -> int:
        return id(self)


def main(folder: Path) -> None:
    """Fit a mixture to the tables of a request and make rows."""
    import mbi
    import optax
    from mbi.extensions import MixtureOfProductsEstimator

    request, _ = read_request(folder)
    names = [f"c{place}" for place in range(len(request.n_codes))]
    measured = []
    with np.load(folder / TABLES) as arrays:  # noqa: TID251, arrays of our own, no pickles
        for place in range(sum(name.startswith("columns_") for name in arrays)):
            columns = [int(column) for column in arrays[f"columns_{place}"]]
            joins = tuple(arrays[f"joins_{place}_{side}"] for side in range(len(columns)))
            measured.append(
                mbi.LinearMeasurement(
                    arrays[f"counts_{place}"].reshape(-1),
                    tuple(names[column] for column in columns),
                    stddev=float(arrays[f"noise_{place}"]),
                    query=Joined(joins),
                )
            )
    total = float(np.mean([np.sum(one.noisy_measurement) for one in measured]))
    estimator = MixtureOfProductsEstimator(optimizer=optax.adam(RATE))
    model = estimator.estimate(
        mbi.Domain(names, request.n_codes), measured, known_total=total, iters=STEPS
    )
    made = model.synthetic_data(rows=request.rows_out)
    write_made(folder, np.column_stack([made.data[name] for name in names]), request)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
