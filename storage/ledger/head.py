"""The exported head of the ledger: one line in another folder that detects an old copy.

A ledger that is restored from a backup has a good hash chain and has forgotten what was spent
since. The head file says how far it had come: sequence number and hash of its last row. Whoever
puts the one back does not put back the other. Only the operator's user can read it: it counts every
step of the ledger, those of burned and withheld runs as well.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import PositiveInt

from privacy.errors import IntegrityError, LedgerError
from privacy.ledger import GENESIS_HASH, LedgerEntry
from storage.files import private
from storage.files.digests import Sha256
from storage.files.documents import Record

_MAX_BYTES = 1_000


class _Head(Record):
    sequence: PositiveInt
    hash: Sha256


class HeadFile:
    """A file with the head of a journal as one line of JSON. It never goes back.

    `path` and its folder are created with the first head, of mode 0600 and 0700. `former` is the
    file in which an earlier version kept the head. It counts as long as it is there, and is removed
    once a head that contains it is on disk.
    """

    def __init__(self, path: Path, *, former: Path | None = None) -> None:
        self._path = Path(path)
        self._former = None if former is None else HeadFile(former)

    def read(self) -> tuple[int, str] | None:
        """Return sequence and hash, None before the first; an IntegrityError if it is damaged."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(error, "read") from None
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        try:
            if len(text) > _MAX_BYTES:
                raise ValueError
            head = _Head.model_validate_json(text, strict=True)
        except ValueError:
            raise IntegrityError(
                "LEDGER_HEAD_DAMAGED",
                f"expected the sequence and the hash of the ledger's last row in "
                f"{self._path.name}; find out who wrote to it, and compare the ledger with a head "
                "that was exported elsewhere",
            ) from None
        return head.sequence, head.hash

    def exported(self) -> tuple[tuple[int, str] | None, tuple[int, str] | None]:
        """Return the head, and the one that an earlier version has left; errors as of `read`."""
        # The former one first: what is moved meanwhile is then found in its new place.
        former = None if self._former is None else self._former.read()
        return self.read(), former

    def write(self, sequence: int, row_hash: str) -> None:
        """Replace the head by a later one; an earlier one is left alone.

        On disk when the call returns (LedgerError, or ConfigurationError if its folder is open to
        others). The journal up to `sequence` contains the former head.
        """
        try:
            private.ensure_private_directory(self._path.parent)
            # Of two heads the later one stays.
            with private.file_locked(self._beside("lock")):
                current = self.read()
                if current is None or current[0] < sequence:
                    line = json.dumps({"sequence": sequence, "hash": row_hash}) + "\n"
                    private.replace_durably(self._path, line.encode("ascii"))
                if self._former is not None:
                    self._former.remove()
        except OSError as error:
            raise _unusable(error, "written") from None

    def remove(self) -> None:
        """Remove the file and what was beside it, if they are there."""
        for path in (self._path, self._beside("new"), self._beside("lock")):
            if os.path.lexists(path):
                path.unlink(missing_ok=True)
                private.fsync_directory(path.parent)

    def _beside(self, what: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{what}")


def check_head(rows: Sequence[LedgerEntry], head: tuple[int, str] | None) -> None:
    """Refuse a whole journal, read after the exported head, that lacks it (IntegrityError)."""
    if head is None or head == (0, GENESIS_HASH):
        return
    sequence, row_hash = head
    if not 1 <= sequence <= len(rows) or rows[sequence - 1].hash != row_hash:
        raise IntegrityError(
            "LEDGER_ROLLED_BACK",
            f"sequence {sequence}: expected the row of the exported head; the journal was restored "
            "from an older copy or rewritten; publish nothing and restore the latest copy with its "
            "operator",
        )


def _unusable(error: OSError, what: str) -> LedgerError:
    return LedgerError(
        "LEDGER_HEAD_UNAVAILABLE",
        f"expected a head file of the ledger that can be {what}, found: {error.strerror}; check "
        "its folder and the free space. A step that was under way may be recorded: read the "
        "ledger again",
    )
