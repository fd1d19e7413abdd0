"""AIM and MST as the package ``dpmm`` has them: ``python -m benchmarks.peer_dpmm FOLDER KIND``.

Runs with the packages of ``peers-dpmm.txt`` and imports nothing of the pipeline. The model is given
codes of the declared schema and their numbers, so it reads no bound and no level from the rows.

McKenna, Mullins, Sheldon and Miklau, "AIM: an adaptive and iterative mechanism for differentially
private synthetic data", 2022; McKenna, Miklau and Sheldon, "Winning the NIST contest", 2021. One
worker process instead of one less than there are processors is the only setting that is not a
default of AIM and MST; it decides what runs where and nothing else. Reduced AIM has the settings
with which it ends in minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.peer_exchange import read_request, write_made

REDUCED = {"rounds": 25, "n_iters": 200, "max_model_size": 5}


def main(folder: Path, kind: str) -> None:
    """Fit a model to the rows of a request and make new ones."""
    import pandas as pd
    from dpmm.models.aim import AIMGM
    from dpmm.models.mst import MSTGM

    request, codes = read_request(folder)
    names = [f"c{place}" for place in range(len(request.n_codes))]
    frame = pd.DataFrame(codes.astype(np.int64), columns=names)
    model = (MSTGM if kind == "mst" else AIMGM)(
        epsilon=request.epsilon,
        delta=request.delta,
        domain=dict(zip(names, request.n_codes, strict=True)),
        n_jobs=1,
        **(REDUCED if kind == "aim_reduced" else {}),
    )
    model.check_fit(frame)
    model.fit(frame)
    made = model.generate(n_records=request.rows_out)
    write_made(folder, made[names].to_numpy(), request)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
