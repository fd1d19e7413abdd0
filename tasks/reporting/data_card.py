"""The data card of a release, in Markdown.

Sections follow the pyramid of NIST SP 800-226 from its top: parameters and unit of the guarantee;
then algorithms, utility and bias, security and side channels, trust model; at the base, what the
collection of the data exposes. Use, dictionary and verification come after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.releases.manifest import Manifest
from storage.schema.table import TableSchema
from tasks.reporting import facts, method_steps
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
from tasks.reporting.markup import markdown

DATA_CARD_FILE = "data_card.md"


def render_data_card(manifest: Manifest, schema: TableSchema, *, title: str | None = None) -> str:
    """Return the data card of a release.

    Parameters
    ----------
    manifest
        Manifest of the release; its ``files`` need not be complete yet.
    schema
        The public schema.
    title
        Title of the dataset; its name if None.

    Returns
    -------
    str
        Markdown, with a line break at its end.

    Privacy
    -------
    Written from the manifest and the public schema alone.
    """
    claim = Claim.of(manifest)
    heading = manifest.dataset if title is None else title
    origin = facts.origin(manifest)
    blocks = [
        f"# {markdown(heading)}",
        f"Synthetic data release {markdown(manifest.release_id)} of "
        f"{markdown(manifest.dataset)}, {manifest.rows:,} synthetic rows, made on "
        f"{manifest.created_on.isoformat()}.",
        *([] if origin is None else [markdown(origin)]),
        *(f"> **NOT FOR RELEASE: {markdown(marker)}**" for marker in claim.markers),
        *_guarantee(manifest, claim),
        *_algorithms(manifest),
        "## 3. Utility and bias",
        "No score against the source is given: a score is a release of its own. "
        "What the noise and the model imply:",
        _bullets(
            [f"**{markdown(title_)}** {markdown(text)}" for title_, text in facts.NOT_TO_CONCLUDE]
        ),
        "## 4. Security, side channels and trust",
        _bullets([markdown(text) for text in facts.trust(manifest)]),
        "## 5. Data collection",
        "The records were collected and are kept by the institution that made the release. "
        "Reading this table exposes nothing more of them than the bound above; their security, "
        "access rights and retention are those of the institution and are not improved by it.",
        *_gate(manifest),
        "## 7. Data dictionary",
        "Declared before a record was read; nothing here was learned from the source.",
        _table(
            ("Column", "Kind", "Domain", "No value is written as"),
            [(row.name, row.kind, row.domain, row.missing) for row in facts.dictionary(schema)],
        ),
        "## 8. Verification",
        "```sh\nclustmix verify BUNDLE\n```",
        "With the public keys of the publisher (--key FILE), the command checks the signature of "
        "the manifest, compares the digest of every file with it, and computes epsilon again from "
        "the list of events. It needs no access to the source or to a network.",
        f"Written by ClustMix {markdown(manifest.code_version)}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _guarantee(manifest: Manifest, claim: Claim) -> list[str]:
    claimed = "" if claim.proven else " (claimed)"
    parameters = [
        (f"epsilon{claimed}", rounded_up(claim.epsilon)),
        (f"delta{claimed}", rounded_up(claim.delta)),
        (f"epsilon, replace-one{claimed}", rounded_up(claim.replace_one_epsilon)),
        ("adjacency", claim.adjacency.value),
        ("privacy unit", claim.privacy_unit),
        ("records of a patient with influence", f"at most {claim.max_rows_per_patient}"),
        ("accountant", f"{manifest.accountant}, mu = {rounded_up(manifest.mu)}"),
    ]
    test = as_a_test(claim)
    words = [definition(claim), test, unit_sentence(claim), replace_one_sentence(claim)]
    blocks = [
        "## 1. Guarantee",
        f"**{markdown(headline(claim))}**",
        _table(("Parameter", "Value"), parameters),
        " ".join(markdown(text) for text in words if text is not None),
        markdown(facts.budget_sentence(manifest)),
    ]
    if claim.proven:
        blocks += [
            "It protects against:",
            _bullets([markdown(text) for text in PROTECTS]),
            "It does not protect against:",
            _bullets([markdown(text) for text in DOES_NOT_PROTECT]),
        ]
    return blocks


def _algorithms(manifest: Manifest) -> list[str]:
    steps = [
        f"{i}. **{markdown(title)}.** {markdown(text)}"
        for i, (title, text) in enumerate(method_steps.steps(manifest), start=1)
    ]
    noise = [
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
    blocks = [
        "## 2. Algorithms",
        f"Method: {markdown(manifest.method.name)}.",
        "\n".join(steps),
        markdown(facts.noise_caption(manifest)),
        _table(
            (
                "Statistic",
                "Noise",
                "Values",
                "L2 sensitivity",
                "Noise stddev",
                "Noise / sensitivity",
            ),
            noise,
        ),
    ]
    settings = facts.settings(manifest)
    if settings:
        blocks += [
            "Settings, which may be read by anybody:",
            _table(("Setting", "Value"), settings),
        ]
    return blocks


def _gate(manifest: Manifest) -> list[str]:
    rows = [
        (
            row.name,
            row.asks,
            row.outcome,
            f"{row.n_checks:,}",
        )
        for row in facts.check_rows(manifest)
    ]
    return [
        "## 6. Release gate",
        f"{facts.gate_verdict(manifest)} They compare the files with the declared schema and the "
        "sealed measurement, and read no record.",
        _table(("Check", "What it asks", "Outcome", "Checks"), rows),
    ]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([markdown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
