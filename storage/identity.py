"""Identity of an installation in a ledger that several share, and the ledger that it opens."""

import os
import re
from pathlib import Path

from privacy.errors import IntegrityError
from storage.files.private import ensure_private_directory, folder_locked, replace_durably
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import Settings

_FILE = "installation"


def installation_id(home: Path) -> str:
    """Return the random id of the installation with this home, made at the first use.

    Whether a run is alive can be seen only by the installation that started it, by the locks in
    its home; so an installation closes its own entries and never those of another. It is an
    IntegrityError if the file holds anything but an id such as ``i-0f3a9c21d4e5b6a7``.
    """
    path = ensure_private_directory(home) / _FILE
    if not path.exists():
        with folder_locked(home):
            if not path.exists():
                replace_durably(path, f"i-{os.urandom(8).hex()}\n".encode("ascii"))
    text = path.read_text("ascii", errors="replace").strip()
    if re.fullmatch(r"i-[0-9a-f]{16}", text) is None:
        raise IntegrityError(
            "INSTALLATION_INVALID",
            f"expected the id of this installation in {path}, found something else; restore the "
            "file, or delete it once no entry of this installation is open",
        )
    return text


def open_ledger(settings: Settings) -> LedgerDatabase:
    """Open the budget ledger; the first use makes it, with the private folders around it."""
    ensure_private_directory(settings.home)
    ensure_private_directory(settings.ledger_head_path.parent)
    return LedgerDatabase(settings.ledger_location, head_file=settings.ledger_head_path)
