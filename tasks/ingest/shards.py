"""Shards of encoded private rows in the files of a workspace, as workers see them.

Separate from the code that makes shards, so that a worker that only adds them up loads neither
pandas nor readers nor gates.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from storage.files.workspace import load_arrays, store_arrays
from tasks.measurement.encoded import EncodedRows


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard of the private workspace, read by the worker that adds it up."""

    path: Path

    def load(self) -> EncodedRows:
        """Read the rows."""
        return load_shard(self.path)

    def recoded(self, rows: EncodedRows) -> "ShardFile":
        """Write these rows beside the shard."""
        path = self.path.with_name(f"recoded-{self.path.name}")
        store_shard(path, rows)
        return ShardFile(path)


def store_shard(path: Path, rows: EncodedRows) -> None:
    """Write a shard to the private workspace."""
    store_arrays(path, **{field.name: getattr(rows, field.name) for field in fields(rows)})


def load_shard(path: Path) -> EncodedRows:
    """Read a shard of the private workspace."""
    return EncodedRows(**load_arrays(path))
