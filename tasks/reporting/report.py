"""The report page that an officer signs, the data card, and the appendix on risk.

The report page is one HTML file without requests and scripts, written from the manifest, the public
schema and the synthetic rows. It leaves out the manifest's request and files: no path, no host.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any

import pandas as pd

from storage.releases.manifest import Manifest
from storage.schema.table import TableSchema
from tasks.reporting.associations import associations_of, highlighted_level
from tasks.reporting.claim import FALSE_ALARMS, Claim
from tasks.reporting.facts import public_facts
from tasks.reporting.plots import MAX_LEVELS, column_plots, released_plots
from tasks.reporting.released_tables import expected_errors
from tasks.reporting.rendering import render
from tasks.reporting.survival_curves import survival_curve
from tasks.reporting.tables import PARQUET_FILE

REPORT_FILE = "report.html"


def render_report(
    manifest: Manifest,
    frame: pd.DataFrame,
    schema: TableSchema,
    *,
    title: str | None = None,
    crowded: str = "",
    tables: bytes | None = None,
    sheet: bytes | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the report page of a release, a complete HTML document; see `public_facts`.

    It plots the released shares if the bundle has them, else it counts the rows. The contact sheet
    of images, if any, is part of the page, and so is a text of crowded columns.

    Privacy
    -------
    Post-processing of synthetic rows, released shares and public settings.
    """
    plots = column_plots(frame, schema) if tables is None else released_plots(tables, schema)
    n_labels = len(schema.label_names)
    return render(
        REPORT_FILE,
        **public_facts(manifest, schema, title),
        crowded=crowded,
        false_alarms=FALSE_ALARMS,
        sheet=None if sheet is None else base64.b64encode(sheet).decode("ascii"),
        measured=tables is not None,
        curve=survival_curve(frame, schema, tables),
        plots=[*plots[-n_labels:], *plots[:-n_labels]],
        drowned={plot.name for plot in plots if plot.lost_share > 0.5},
        errors=None if tables is None else expected_errors(tables),
        associations=None if schema.image is not None else associations_of(frame, schema),
        events=events,
        snippet=snippet(schema, events),
        max_levels=MAX_LEVELS,
        label=schema.first_label.name,
        highlighted=highlighted_level(schema.first_label),
        labels=schema.label_names,
    )


def snippet(schema: TableSchema, events: Sequence[Mapping[str, Any]] = ()) -> tuple[str, ...]:
    """Return lines of Python that load the rows as features and labels, in the bundle's folder."""
    names, image = list(schema.label_names), schema.image
    label = names[0] if len(names) == 1 else names
    shape = "" if image is None else f".to_numpy().reshape{(-1, *image.shape)}"
    return (
        "import pandas as pd",
        f"rows = pd.read_parquet({PARQUET_FILE!r})",
        *(f"{one['name']} = pd.read_parquet('{one['name']}.parquet')" for one in events),
        f"X, y = rows.drop(columns={names!r}){shape}, rows[{label!r}]",
    )


DATA_CARD_FILE = "data_card.md"


def render_data_card(
    manifest: Manifest,
    schema: TableSchema,
    *,
    title: str | None = None,
    crowded: str = "",
    lost: Mapping[str, str] = MappingProxyType({}),
    events: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the data card of a release, in Markdown; see `public_facts`.

    Texts name crowded columns and, in `lost`, the `levels` of the label that noise hides and the
    `pairs` of columns not measured. Sections follow the pyramid of NIST SP 800-226 from parameters
    down to what data collection exposes; then use, dictionary and verification.
    """
    facts = public_facts(manifest, schema, title)
    return render(DATA_CARD_FILE, **facts, crowded=crowded, lost=lost, events=events)


RISK_APPENDIX_FILE = "risk_appendix.md"
_FALSE_ALARMS, _GROUPS = (0.1, 1, 5, 10), (1, 2, 4)
_PRIORS, _ONE_OF = (0.0001, 0.01, 0.1, 0.5), (100, 10_000, 1_000_000)


def render_risk_appendix(
    manifest: Manifest,
    schema: TableSchema,
    *,
    title: str | None = None,
    review_on: date | None = None,
) -> str:
    """Return facts for an expert determination or an impact assessment, in Markdown.

    It claims nothing legal. Privacy: post-processing; see `public_facts`.
    """
    claim = Claim(manifest)
    return render(
        RISK_APPENDIX_FILE,
        **public_facts(manifest, schema, title),
        review_on=review_on,
        tests=[(n, [claim.recognised(n, patients=k) for k in _GROUPS]) for n in _FALSE_ALARMS],
        groups=_GROUPS,
        beliefs={
            presence: [(prior, _beliefs(claim, prior, presence=presence)) for prior in _PRIORS]
            for presence in ((True, False) if claim.adds_or_removes else (False,))
        },
        one_of=_ONE_OF,
    )


def _beliefs(claim: Claim, prior: float, *, presence: bool) -> list[float]:
    """Return the beliefs that at most one release in each of `_ONE_OF` exceeds, rounded up."""
    found = (claim.belief(prior, chance=1 / many, presence=presence) for many in _ONE_OF)
    return [math.ceil(10_000 * belief) / 10_000 for belief in found]
