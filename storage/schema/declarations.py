"""Declarations that rows must keep, with their changes since a check, and facts for catalogues."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from storage.files.documents import canonical_json
from storage.files.private import (
    ensure_private_directory,
    folder_locked,
    read_bounded,
    replace_durably,
)
from storage.schema.columns import Declaration, PrintableText

_DECLARED = ("schema", "privacy_unit")
_PLACES = ("path", "data", "folder", "table")
_MAX_BYTES = 20_000_000

MAX_LINES = 200
"""Most lines of a difference."""

_Line = Annotated[PrintableText, Field(min_length=1, max_length=500)]
_Address = Annotated[str, Field(pattern=r"^https?://[^\s<>\"{}|\\^`]+$", max_length=500)]
_Mail = Annotated[str, Field(pattern=r"^[^\s@<>\"{}|\\^`]+@[^\s@<>\"{}|\\^`]+$", max_length=200)]


def without_places(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source section of a site file without its places."""
    return {key: value for key, value in source.items() if key not in _PLACES}


def sources_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return source and tables of events in the JSON values of a site file, without places."""
    events = [{**one, "source": without_places(one["source"])} for one in values.get("events", ())]
    return {"source": without_places(values["source"]), **({"events": events} if events else {})}


@dataclass(frozen=True, slots=True)
class Declarations:
    """Schema, privacy unit, source and suite of a site file, in canonical JSON; all is public."""

    content: bytes

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the declarations in the JSON values of a site file."""
        declared = {name: values[name] for name in _DECLARED}
        declared |= {"suite": gate["expectations"]} if (gate := values.get("gate")) else {}
        return cls(canonical_json({**declared, **sources_of(values)}))

    @property
    def sha256(self) -> str:
        """Digest of the declarations, which the journal row of a check holds."""
        return hashlib.sha256(self.content).hexdigest()

    def keep(self, folder: Path) -> None:
        """Write them as ``<digest>.json`` in a private folder."""
        with folder_locked(ensure_private_directory(folder)):
            replace_durably(folder / f"{self.sha256}.json", self.content)

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


class CatalogueEntry(Declaration):
    """Facts about the table and its publisher for catalogue entries, public and optional."""

    publisher: _Line | None = None
    """The institution that publishes."""
    publisher_kind: Literal["Government", "Industry", "Nonprofit"] | None = None
    """Its kind, in terms of the registry of deployments."""
    contact: _Mail | None = None
    """Mail address for questions."""
    landing_page: _Address | None = None
    """Page about the table or access."""
    license: _Address | None = None
    """Address of the license of the rows."""
    access_body: _Line | None = None
    """Health data access body in charge (EHDS, Article 55)."""
    access_contact: _Mail | None = None
    """Its mail address."""
    health_category: Annotated[str, Field(pattern="^[A-Z]{4}$")] = "EHRS"
    """Category of the records by Article 51 of the EHDS in HealthDCAT-AP: ``EHRS`` health records,
    ``RQSH`` research cohorts, ``HRAD`` administrative data, and so on."""
    keywords: tuple[_Line, ...] = ()
    """Search terms."""
    region: _Line | None = None
    """Region of the patients."""
    purpose: _Line | None = None
    """Intended use of the release."""
    review_on: date | None = None
    """Date of the next review."""
