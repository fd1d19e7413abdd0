"""Shards of encoded private rows, as workers see them.

Kept apart from the steps that make shards, so that a worker that only adds them up does not load
pandas, the readers and the gates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.files.workspace import load_arrays
from tasks.measurement.curator import Contribution
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.sampling import arguments_of_shard


def load_shard(path: Path) -> EncodedRows:
    """Read a shard of the private workspace."""
    arrays = load_arrays(path)
    return EncodedRows(
        codes=arrays["codes"],
        label=arrays["label"],
        weight=arrays["weight"],
        fold=arrays["fold"],
        patient=arrays["patient"],
    )


def contribution_of_shard(
    path: Path, *, contribution: Contribution, public: dict[str, Any]
) -> NDArray[np.int64]:
    """Exact contribution of one shard, read where it is added up."""
    return contribution(load_shard(path), **arguments_of_shard(public, path.name))
