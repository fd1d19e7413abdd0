"""The `catalogue` section of a site file: facts about a release for data catalogues."""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from storage.schema.columns import Declaration, PrintableText

_Line = Annotated[PrintableText, Field(min_length=1, max_length=500)]
_Address = Annotated[str, Field(pattern=r"^https?://[^\s<>\"{}|\\^`]+$", max_length=500)]
_Mail = Annotated[str, Field(pattern=r"^[^\s@<>\"{}|\\^`]+@[^\s@<>\"{}|\\^`]+$", max_length=200)]


class CatalogueEntry(Declaration):
    """Facts about the table and its publisher for the catalogue entries of a bundle.

    All keys are public and optional; an entry says "not declared" for a fact that it needs.
    """

    publisher: _Line | None = None
    """Name of the institution that publishes the release."""
    publisher_kind: Literal["Government", "Industry", "Nonprofit"] | None = None
    """Kind of the institution, in the terms of the registry of deployments."""
    contact: _Mail | None = None
    """Mail address for questions about the table and the release."""
    landing_page: _Address | None = None
    """Page about the table, or about access to its records."""
    license: _Address | None = None
    """Address of the license under which the synthetic rows are given."""
    access_body: _Line | None = None
    """Name of the health data access body in charge of the records (EHDS, Article 55)."""
    access_contact: _Mail | None = None
    """Its mail address."""
    health_category: Annotated[str, Field(pattern="^[A-Z]{4}$")] = "EHRS"
    """Category of the records by Article 51 of the EHDS, as the code of HealthDCAT-AP: ``EHRS`` for
    health records, ``RQSH`` for research cohorts, ``HRAD`` for administrative data, and so on."""
    keywords: tuple[_Line, ...] = ()
    """Search terms."""
    region: _Line | None = None
    """Region whose patients the table describes."""
    purpose: _Line | None = None
    """Intended use of the release."""
    review_on: date | None = None
    """Future date on which the institution reviews the risk."""
