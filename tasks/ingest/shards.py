"""Shards of encoded private rows in the files of a workspace, as workers see them.

Kept apart from what makes shards, so that a worker that only adds them up does not load pandas, the
readers and the gates.
"""

from dataclasses import dataclass
from pathlib import Path

from storage.files.workspace import load_arrays, store_arrays
from tasks.measurement.encoded import EncodedRows


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard of the private workspace, read where it is added up."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the shard, on which the coins of its patients depend."""
        return self.path.name

    def load(self) -> EncodedRows:
        """Read the rows."""
        return load_shard(self.path)

    def recoded(self, rows: EncodedRows) -> "ShardFile":
        """Write these rows beside the shard."""
        path = self.path.with_name(f"recoded-{self.path.name}")
        names = ("codes", "label", "weight", "fold", "patient")
        store_arrays(path, **{name: getattr(rows, name) for name in names})
        return ShardFile(path)


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
