"""Shards of encoded private rows in the files of a workspace, as workers see them.

Apart from their making, so that a worker that adds them up loads no pandas, readers or gates.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from storage.files.workspace import load_arrays, store_arrays
from tasks.measurement.encoded import EncodedRows


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard of the private workspace, read by the worker that adds it up."""

    path: Path

    def load(self) -> EncodedRows:
        """Read the rows."""
        return EncodedRows(**load_arrays(self.path))

    def beside(self, name: str) -> "ShardFile":
        """Return the shard of a table of events beside this one of the patients."""
        return ShardFile(self.path.with_name(f"{name}-{self.path.name}"))

    def recoded(self, rows: EncodedRows) -> "ShardFile":
        """Write these rows beside the shard."""
        path = self.path.with_name(f"recoded-{self.path.name}")
        store_rows(path, rows)
        return ShardFile(path)


def store_rows(path: Path, rows: Any) -> None:
    """Write the arrays of a shard, or of a piece of one, by the names of its fields."""
    store_arrays(path, **{field.name: getattr(rows, field.name) for field in fields(rows)})
