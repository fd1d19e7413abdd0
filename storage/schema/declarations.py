"""Declarations that rows must keep, and their changes since a check."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from storage.files.documents import canonical_json
from storage.files.private import ensure_private_directory, read_bounded, replace_durably

_DECLARED = ("schema", "privacy_unit")
_PLACES = ("path", "data", "folder", "table")
_MAX_BYTES = 20_000_000

MAX_LINES = 200
"""Most lines of a difference."""


def without_places(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source section of a site file without its places."""
    return {key: value for key, value in source.items() if key not in _PLACES}


@dataclass(frozen=True, slots=True)
class Declarations:
    """Schema, privacy unit, source and suite of a site file, in canonical JSON; all is public."""

    content: bytes

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the declarations in the JSON values of a site file."""
        declared = {name: values[name] for name in _DECLARED}
        declared |= {"suite": gate["expectations"]} if (gate := values.get("gate")) else {}
        return cls(canonical_json({**declared, "source": without_places(values["source"])}))

    @property
    def sha256(self) -> str:
        """Digest of the declarations, which the journal row of a check holds."""
        return hashlib.sha256(self.content).hexdigest()

    def keep(self, folder: Path) -> None:
        """Write them as ``<digest>.json`` in a private folder."""
        replace_durably(ensure_private_directory(folder) / f"{self.sha256}.json", self.content)

    def changed_since(self, folder: Path, sha256: str) -> tuple[str, ...]:
        """Return removed (``-``) and added (``+``) lines since the declarations of a digest.

        There are none if those declarations are not in the folder, as of another installation.
        """
        path = folder / f"{sha256}.json"
        if not path.exists():
            return ()
        old, new = (
            json.dumps(json.loads(content), indent=1).splitlines()
            for content in (read_bounded(path, _MAX_BYTES), self.content)
        )
        lines = difflib.unified_diff(old, new, n=0, lineterm="")
        changed = (line for line in lines if not line.startswith(("---", "+++", "@@")))
        return tuple(islice(changed, MAX_LINES))
