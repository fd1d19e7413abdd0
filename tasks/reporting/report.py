"""The report page of a release: one HTML file that a privacy officer reads and signs.

The page makes no request, runs no script and opens from a disk. It is written from the manifest,
the public schema and the synthetic rows; of the manifest's ``request`` and ``files`` it shows
nothing, so that neither a path nor a host can reach it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib import resources

import pandas as pd

from privacy.parameters import Adjacency
from storage.releases.manifest import Manifest
from storage.schema.table import TableSchema
from tasks.reporting import facts, method_steps
from tasks.reporting.contact_sheet import contact_sheet
from tasks.reporting.guarantee import (
    DOES_NOT_PROTECT,
    PROTECTS,
    Claim,
    as_a_test,
    definition,
    headline,
    replace_one_sentence,
    rounded_up,
    unit_sentence,
)
from tasks.reporting.markup import Child, Markup, element, items, join, table
from tasks.reporting.plots import MAX_LEVELS, best_test_figure, column_plots, highlighted_level

REPORT_FILE = "report.html"
PLOTS_PER_GROUP = 24
"""Columns in one folding group of plots."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_IMAGE_POLICY = f"{_POLICY}; img-src data:"
"""The policy of a page that has a picture in it."""

_SECTIONS = (
    ("guarantee", "The guarantee"),
    ("method", "How it was made"),
    ("gate", "Gate"),
    ("columns", "Columns"),
    ("limits", "What not to conclude"),
    ("dictionary", "Data dictionary"),
    ("verify", "Verify"),
)


def render_report(
    manifest: Manifest,
    frame: pd.DataFrame,
    schema: TableSchema,
    *,
    title: str | None = None,
) -> str:
    """Return the report page of a release.

    Parameters
    ----------
    manifest
        Manifest of the release; its ``files`` need not be complete yet.
    frame
        Synthetic rows.
    schema
        The public schema.
    title
        Title of the dataset; its name if None.

    Returns
    -------
    str
        A complete HTML document.

    Privacy
    -------
    Post-processing of synthetic rows and public settings.
    """
    claim = Claim.of(manifest)
    heading = manifest.dataset if title is None else title
    body = join(
        _masthead(manifest, heading, claim),
        element(
            "main",
            _guarantee(manifest, claim),
            _method(manifest),
            _gate(manifest),
            _columns(frame, schema, markers=claim.markers),
            _limits(),
            _dictionary(schema),
            _verify(manifest),
            _signatures(),
        ),
        element(
            "footer",
            f"{manifest.dataset} {manifest.release_id}, written by ClustMix "
            f"{manifest.code_version}. This page was made from the synthetic rows, the public "
            "schema and the manifest; it makes no request and runs no script.",
        ),
    )
    policy = _POLICY if schema.image is None else _IMAGE_POLICY
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="referrer", content="no-referrer"),
        element("title", f"{heading}: synthetic data release {manifest.release_id}"),
        element("style", Markup(_style())),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _style() -> str:
    return resources.files("tasks.reporting").joinpath("page.css").read_text(encoding="utf-8")


def _section(name: str, title: str, *children: Child) -> Markup:
    return element("section", element("h2", title), *children, id=name)


def _masthead(manifest: Manifest, heading: str, claim: Claim) -> Markup:
    facts_shown = (
        ("Release", manifest.release_id),
        ("Dataset", manifest.dataset),
        ("Made on", manifest.created_on.isoformat()),
        ("Synthetic rows", f"{manifest.rows:,}"),
        ("Method", manifest.method.name),
    )
    origin = facts.origin(manifest)
    links = [element("li", element("a", title, href=f"#{name}")) for name, title in _SECTIONS]
    alarms = [
        element(
            "div",
            element("b", "Not for release"),
            element("p", marker),
            class_="alarm",
            role="note",
        )
        for marker in claim.markers
    ]
    return element(
        "header",
        element("p", "Synthetic data release", class_="eyebrow"),
        element("h1", heading),
        element(
            "ul",
            [element("li", f"{name} ", element("b", value)) for name, value in facts_shown],
            class_="facts",
        ),
        None if origin is None else element("p", origin, class_="origin"),
        alarms,
        element("nav", element("ul", links), aria_label="Contents"),
        class_="masthead",
    )


def _guarantee(manifest: Manifest, claim: Claim) -> Markup:
    qualifier = "" if claim.proven else ", claimed"
    neighbours = (
        "add or remove one patient"
        if claim.adjacency is Adjacency.ADD_REMOVE
        else "replace one patient"
    )
    records = claim.max_rows_per_patient
    influence = f"at most {records} records each" if records > 1 else "one record each"
    boxes: tuple[tuple[str, str, str | None], ...] = (
        (f"epsilon ε{qualifier}", rounded_up(claim.epsilon), None),
        (f"delta δ{qualifier}", rounded_up(claim.delta), None),
        (f"ε, replace-one{qualifier}", rounded_up(claim.replace_one_epsilon), None),
        ("neighbours", neighbours, "words"),
        ("unit", f"{claim.privacy_unit}, {influence}", "words"),
    )
    numbers = element(
        "dl",
        [
            element("div", element("dt", name), element("dd", value, class_=class_))
            for name, value, class_ in boxes
        ],
        class_="numbers" if claim.proven else "numbers claimed",
    )
    test = as_a_test(claim)
    words = element(
        "div",
        element("p", definition(claim)),
        None if test is None else element("p", test),
        element("p", unit_sentence(claim), " ", replace_one_sentence(claim)),
    )
    figure = best_test_figure(claim) if test is not None else None
    protection = None
    if claim.proven:
        protection = element(
            "div",
            element(
                "div", element("h3", "What it protects against"), items(PROTECTS, class_="does")
            ),
            element(
                "div",
                element("h3", "What it does not protect against"),
                items(DOES_NOT_PROTECT, class_="doesnot"),
            ),
            class_="pair",
        )
    return element(
        "section",
        element("h2", "The guarantee"),
        element("p", headline(claim), class_="lead"),
        numbers,
        element("div", words, figure, class_="meaning"),
        protection,
        element(
            "div",
            element("h3", "Budget"),
            element("p", facts.budget_sentence(manifest)),
            class_="budget",
        ),
        id="guarantee",
    )


def _method(manifest: Manifest) -> Markup:
    steps = [
        element("li", element("b", title), text) for title, text in method_steps.steps(manifest)
    ]
    rows = [
        (
            row.statistic,
            row.how,
            row.n_values,
            row.l2_sensitivity,
            row.noise_stddev,
            row.ratio,
        )
        for row in facts.noise_rows(manifest)
    ]
    noise = table(
        ("Statistic", "Noise", "Values", "L2 sensitivity", "Noise stddev", "Noise / sensitivity"),
        rows,
        caption=facts.noise_caption(manifest),
        numeric=4,
    )
    settings = facts.settings(manifest)
    shown = None
    if settings:
        shown = element(
            "details",
            element("summary", "Settings of the method", element("small", "public")),
            table(("Setting", "Value"), settings, caption="All of them may be read by anybody."),
        )
    return _section(
        "method", "How it was made", element("ol", steps, class_="stages"), noise, shown
    )


def _gate(manifest: Manifest) -> Markup:
    passed = bool(manifest.gate) and all(record.passed for record in manifest.gate)
    rows = [
        (
            row.name,
            row.asks,
            row.outcome,
            f"{row.n_checks:,}",
        )
        for row in facts.check_rows(manifest)
    ]
    return _section(
        "gate",
        "Gate",
        element("p", facts.gate_verdict(manifest), class_="verdict ok" if passed else "verdict no"),
        table(
            ("Check", "What it asks", "Outcome", "Checks"),
            rows,
            caption="Checks of the files against the declared schema and the sealed measurement. "
            "They read no record, and no score against the source was computed: a score is a "
            "release of its own.",
            numeric=1,
        ),
    )


def _columns(frame: pd.DataFrame, schema: TableSchema, *, markers: Sequence[str]) -> Markup:
    plots = column_plots(frame, schema)
    if schema.image is not None:
        label = schema.label.name
        picture = _contact_sheet(frame, schema, note="; ".join(markers))
        share = element("figure", element("figcaption", label), plots[label], class_="plot")
        return _section("columns", "Columns", picture, element("div", share, class_="plots"))
    names = [schema.label.name, *schema.column_names]
    groups = [names[i : i + PLOTS_PER_GROUP] for i in range(0, len(names), PLOTS_PER_GROUP)]
    shown = [
        element(
            "div",
            [
                element("figure", element("figcaption", name), plots[name], class_="plot")
                for name in group
            ],
            class_="plots",
        )
        for group in groups
    ]
    if len(groups) > 1:
        shown = [
            element(
                "details",
                element(
                    "summary",
                    f"{group[0]} … {group[-1]}",
                    element("small", _span(i, len(group))),
                ),
                grid,
                open=i == 0,
            )
            for i, (group, grid) in enumerate(zip(groups, shown, strict=True))
        ]
    level = highlighted_level(schema.label)
    key = element(
        "ul",
        element("li", element("i"), "all synthetic rows"),
        element("li", element("i", class_="part"), f"rows with {schema.label.name} = {level}"),
        element("li", element("i", class_="gone"), "no value"),
        class_="key",
    )
    return _section(
        "columns",
        "Columns",
        element(
            "p",
            "Shares in the released table itself, each series as a share of its own rows. "
            f"Categorical plots name the {MAX_LEVELS} most frequent levels at most.",
        ),
        key,
        shown,
    )


def _contact_sheet(frame: pd.DataFrame, schema: TableSchema, *, note: str) -> Markup:
    content = base64.b64encode(contact_sheet(frame, schema, note=note)).decode("ascii")
    return element(
        "figure",
        element(
            "img",
            src=f"data:image/png;base64,{content}",
            alt="Mean image and first synthetic images of each class",
        ),
        element(
            "figcaption",
            "From the released table itself: the mean of all images of a class, and the first "
            f"ones. A row of the table is one image, and its {schema.label.name} the class.",
        ),
        class_="sheet",
    )


def _span(group: int, n_columns: int) -> str:
    first = group * PLOTS_PER_GROUP + 1
    last = first + n_columns - 1
    return f"column {first}" if n_columns == 1 else f"columns {first} to {last}"


def _limits() -> Markup:
    pairs = [
        element("div", element("dt", title), element("dd", text))
        for title, text in facts.NOT_TO_CONCLUDE
    ]
    return _section("limits", "What must not be concluded", element("dl", pairs, class_="limits"))


def _dictionary(schema: TableSchema) -> Markup:
    rows = [(row.name, row.kind, row.domain, row.missing) for row in facts.dictionary(schema)]
    columns = table(
        ("Column", "Kind", "Domain", "No value is written as"),
        rows,
        caption="Declared before a record was read; nothing here was learned from the source.",
    )
    if len(rows) <= PLOTS_PER_GROUP:
        return _section("dictionary", "Data dictionary", columns)
    summary = element("summary", "All columns", element("small", f"{len(rows)} columns"))
    return _section("dictionary", "Data dictionary", element("details", summary, columns))


def _verify(manifest: Manifest) -> Markup:
    return _section(
        "verify",
        "Verify",
        element(
            "p",
            "Anybody can check, without the source, that no file of this bundle was changed and "
            "that epsilon follows from the noise listed above:",
        ),
        element("pre", "clustmix verify BUNDLE"),
        element(
            "p",
            "BUNDLE is the folder of release ",
            element("code", manifest.release_id),
            ". With the public keys of the publisher (--key FILE), the command checks the "
            "signature of the manifest, compares the digest of each file with it, and computes "
            "epsilon again from the list of events.",
        ),
        element("h3", "What is taken on trust"),
        items(facts.trust(manifest), class_="plain"),
    )


def _signatures() -> Markup:
    lines = ("Reviewed by", "Role", "Date", "Signature")
    return element("div", [element("div", line) for line in lines], class_="sign")
