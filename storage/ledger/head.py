"""The exported head of the ledger: a file in another folder that reveals a restored old copy.

A ledger that was restored from a backup has an intact hash chain but lacks what was spent since.
The head file holds the sequence number and the hash of the last row. It lies in another folder, so
that a restore of the ledger does not restore it as well. Only the operator's user can read it, as
it counts every step of the ledger, those of burned and withheld runs included.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import PositiveInt

from privacy.errors import IntegrityError, LedgerError
from privacy.ledger import GENESIS_HASH, LedgerEntry
from storage.files import private
from storage.files.documents import Record, Sha256

_MAX_BYTES = 1_000


class _Head(Record):
    sequence: PositiveInt
    hash: Sha256


class HeadFile:
    """The head of a journal as one line of JSON. It never goes back.

    The first head creates the file and its folder, with modes 0600 and 0700.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)

    def read(self) -> tuple[int, str] | None:
        """Return sequence and hash, or None before the first head.

        A damaged file is an IntegrityError, a file that cannot be read a LedgerError.
        """
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

    def write(self, sequence: int, row_hash: str) -> None:
        """Replace the head by a later one; keep the file if it holds a later one already.

        The head is on disk when the call returns. It is a LedgerError if it cannot be written, and
        a ConfigurationError if the folder is open to others.
        """
        try:
            private.ensure_private_directory(self._path.parent)
            with private.file_locked(self._path.with_name(f"{self._path.name}.lock")):
                current = self.read()
                if current is None or current[0] < sequence:
                    line = json.dumps({"sequence": sequence, "hash": row_hash}) + "\n"
                    private.replace_durably(self._path, line.encode("ascii"))
        except OSError as error:
            raise _unusable(error, "written") from None


def check_head(rows: Sequence[LedgerEntry], head: tuple[int, str] | None) -> None:
    """Refuse a journal that lacks an exported head (IntegrityError).

    The rows are the whole journal, and were read after the head.
    """
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
