"""Diagnostics for the repair of a cohort, in a file that only its owner can read."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from storage.files.private import ensure_private_directory, open_private, replace_durably
from storage.files.refs import check_file_name

MAX_ROWS_PER_RULE = 20
"""Most rows of a rule of a column, over all parts of a table."""

MAX_BYTES = 2**25
"""Size in bytes from which a file takes no more rows."""

KEPT_DAYS = 30


class DiagnosticsFile:
    """A restricted file of violated rules with row numbers and values, one JSON object per line.

    The values stay in this file, of mode 0600 in a private folder. Error messages, logs and the
    orchestrator get the rule, the column and the `pointer`.
    """

    def __init__(self, path: Path) -> None:
        check_file_name(path.name)
        ensure_private_directory(path.parent)
        self._path = path
        self._kept = Counter[tuple[str, str]]()

    @property
    def pointer(self) -> str:
        """The public pointer: the file name without its folder."""
        return self._path.name

    def add(
        self, column: str, rule: str, row_numbers: Iterable[int], values: Iterable[object]
    ) -> None:
        """Append the rows that violate one rule, counted from 0, with a value each (ValueError).

        Privacy
        -------
        Row numbers and values are raw data; at most `MAX_ROWS_PER_RULE` are kept, here alone. The
        column and the rule depend on no row.
        """
        left = MAX_ROWS_PER_RULE - self._kept[column, rule]
        rows = [
            {"row": int(row), "value": str(value)}
            for row, value in islice(zip(row_numbers, values, strict=True), left)
        ]
        line = json.dumps({"column": column, "rule": rule, "rows": rows}) + "\n"
        with open_private(self._path, "a") as handle:
            os.fchmod(handle.fileno(), 0o600)
            if handle.tell() < MAX_BYTES and left:
                handle.write(line.encode("utf-8"))
        self._kept[column, rule] += len(rows)

    def take(self, path: Path) -> None:
        """Append the file of a worker and delete it, if it exists; no link (OSError)."""
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as source:
                for line in source:
                    record = json.loads(line)
                    numbers = [one["row"] for one in record["rows"]]
                    values = [one["value"] for one in record["rows"]]
                    self.add(record["column"], record["rule"], numbers, values)
            path.unlink()

    def remove(self) -> None:
        """Delete the file, if it was begun."""
        self._path.unlink(missing_ok=True)

    def begin_with(self, summary: Iterable[Mapping[str, Any]]) -> None:
        """Insert records at the beginning of the file, where a reader looks first."""
        added = self._path.read_bytes() if self._path.exists() else b""
        lines = "".join(json.dumps(record) + "\n" for record in summary)
        replace_durably(self._path, lines.encode("utf-8") + added)

    def records(self) -> list[dict[str, Any]]:
        """Return all records, for the owner."""
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]


def remove_old_diagnostics(folder: Path) -> None:
    """Delete files that nobody has added to for `KEPT_DAYS` days; the folder may be missing."""
    oldest = time.time() - KEPT_DAYS * 86_400
    for path in folder.glob("*.jsonl"):
        with suppress(FileNotFoundError):
            if path.lstat().st_mtime < oldest:
                path.unlink()
