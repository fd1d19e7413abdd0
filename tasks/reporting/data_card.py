"""The data card of a release, in Markdown.

Sections follow the pyramid of NIST SP 800-226 from its top: parameters and unit of the guarantee;
then algorithms, utility and bias, security and side channels, trust model; at the base, what the
collection of the data exposes. Use, dictionary and verification come after it.
"""

from __future__ import annotations

from storage.releases.manifest import Manifest
from storage.schema.table import TableSchema
from tasks.reporting.facts import public_facts
from tasks.reporting.rendering import render

DATA_CARD_FILE = "data_card.md"


def render_data_card(manifest: Manifest, schema: TableSchema, *, title: str | None = None) -> str:
    """Return the data card of a release; parameters and privacy as of `public_facts`."""
    return render(DATA_CARD_FILE, **public_facts(manifest, schema, title))
