"""Public facts of a release for the templates of card and page."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from privacy.events import Event, Gaussian, Repeated, event_from_dict
from storage.releases.manifest import GateRecord, Manifest
from storage.schema.columns import CategoricalColumn, Column, NumericColumn, in_short
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.ingest.constraint_rules import words as rule_of
from tasks.reporting.claim import Claim, rounded_up
from tasks.reporting.rendering import words

_DICTIONARY = ("Column", "Kind", "Domain", "No value is written as")

MAX_LISTED_LEVELS = 12
"""Most levels in a line of the data dictionary; the schema file holds them all."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table for both formats; its last ``n_numbers`` columns hold numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_numbers: int = 0


def public_facts(manifest: Manifest, schema: TableSchema, title: str | None) -> dict[str, object]:
    """Return facts of a release by their template names; the manifest's ``files`` may be partial.

    Privacy
    -------
    Computed from the manifest and the public schema alone.
    """
    claim, said = Claim(manifest), words()
    return {
        **said,
        "manifest": manifest,
        "n_labels": len(schema.label_names),
        "claim": claim,
        "title": manifest.dataset if title is None else title,
        "origin": " ".join(origin(manifest)),
        "budget": budget_sentence(manifest),
        "steps": steps(manifest, images=schema.image is not None),
        "noise": noise_table(manifest),
        "settings": _settings(manifest),
        "verdict": _verdict(manifest.gate),
        "passed": bool(manifest.gate) and all(record.passed for record in manifest.gate),
        "checks": _checks(manifest.gate, schema),
        "trust": [*said["trust"], *(said["trust_in_proof"] if claim.proven else ())],
        "declaration": _declaration(manifest),
        "dictionary": _Table(_DICTIONARY, tuple(_dictionary(schema))),
    }


def dictionary_of(columns: Iterable[Column], derived: Mapping[str, str]) -> _Table:
    """Return the dictionary of columns, with the words of those that are derived."""
    rows = []
    for column in columns:
        missing = column.missing[0] or "empty text" if column.missing else "never"
        written = "empty cell" if column.nullable else missing
        kind, domain = _described(column)
        rows.append((column.name, kind, derived.get(column.name, domain), written))
    return _Table(_DICTIONARY, tuple(rows))


def steps(manifest: Manifest, *, images: bool = False) -> dict[str, str]:
    """Return the description of each step that made the release, by title and in order."""
    said, methods = words()["steps"], words()["methods"]
    own = methods.get(manifest.method.name, said["other"])
    if images:
        own = methods.get(f"{manifest.method.name}_images", own)
    follows = any(str(event.get("statistic")).endswith(".transitions") for event in manifest.events)
    own = {**own, **said["events"]} if follows else own
    return {**said["encode"], **own, **said["decode"]}


def budget_sentence(manifest: Manifest) -> str:
    """Return the cost of this release; costs of other runs are not published."""
    if manifest.pooled:
        parts = ", ".join(f"{part['dataset']}/{part['release_id']}" for part in manifest.pooled)
        return _sentence("pooled", parts=parts)
    rho, mu = rounded_up(manifest.rho), rounded_up(manifest.mu)
    return _sentence("charged", entry=manifest.ledger_entry, rho=rho, mu=mu)


def noise_table(manifest: Manifest) -> _Table:
    """Return one row per noisy statistic, in its grid units and in the order of the manifest."""
    header = ("Statistic", "Noise", "Values", "L2 sensitivity", "Noise stddev", "Noise in patients")
    leaves = [leaf for values in manifest.events for leaf in _leaves(event_from_dict(values), "")]
    return _Table(header, tuple(_noise_row(*leaf) for leaf in leaves), n_numbers=4)


def described_column(column: Column) -> str:
    """Return kind and domain of a column in one line."""
    return "; ".join(_described(column))


def listed(levels: Sequence[str]) -> str:
    """Return levels with commas between them, or bars if they contain commas; shortened if many."""
    between = " | " if any("," in level for level in levels) else ", "
    return in_short(levels, MAX_LISTED_LEVELS, between)


def origin(manifest: Manifest) -> Iterator[str]:
    """Yield sentences on a resample or on conditions."""
    if manifest.resampled_from is not None:
        yield _sentence("resampled", release=manifest.resampled_from)
    if manifest.conditions:
        asked = ", ".join(f"{name} = {level}" for name, level in manifest.conditions.items())
        yield _sentence("conditions", asked=asked)


def _declaration(manifest: Manifest) -> str:
    """Return when the columns were declared, and the number of corrections after a check."""
    n = manifest.corrected_after_checks
    return _sentence("corrected" if n else "declared", n=n, s="s" * (n > 1))


def _sentence(name: str, **facts: object) -> str:
    text: str = words()["sentences"][name]
    return text.format(**facts)


def _settings(manifest: Manifest) -> _Table:
    rows = [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in sorted(manifest.method.settings.items())
        if name != "kind"
    ]
    return _Table(("Setting", "Value"), tuple(rows))


SUITE = "expect_"
"""Beginning of the checks of a publisher's own suite."""


def _verdict(gate: Sequence[GateRecord]) -> str:
    """Return the outcome of the checks and their kinds."""
    failed = sum(not record.passed for record in gate)
    if not gate:
        return "No check was recorded."
    sealed = sum("noisy counts" in record.check for record in gate)
    fresh = sum(record.distance is not None for record in gate) - sealed
    own = sum(record.check.startswith(SUITE) for record in gate)
    parts = [f"{len(gate) - sealed - fresh - own} hold the files against the declared schema"]
    parts += [f"{own} are expectations of the publisher"] if own else []
    parts += [f"{fresh} compare the rows with a fresh sample of the measurement"] if fresh else []
    parts += [f"{sealed} with its sealed counts, which have noise"] if sealed else []
    ended = f"{failed} of {len(gate)} checks failed" if failed else f"All {len(gate)} checks passed"
    return f"{ended}: {', '.join(parts)}. None compares anything with the records."


def _checks(gate: Sequence[GateRecord], schema: TableSchema) -> _Table:
    """Return the checks by name: requirement, outcome and number."""
    rules = {rule_of(one): "mend" if one.mend else "refuse" for one in schema.constraints}
    rules |= {one.title: one.when_broken for one in schema.derived.values()}
    found: dict[str, list[GateRecord]] = {}
    for record in gate:
        found.setdefault(record.check.partition(": ")[0], []).append(record)
    asks = {name: "suite" if name.startswith(SUITE) else rules.get(name, name) for name in found}
    rows = [
        (name, words()["checks"].get(asks[name], ""), _outcome(records), f"{len(records):,}")
        for name, records in found.items()
    ]
    return _Table(("Check", "What it asks", "Outcome", "Checks"), tuple(rows), n_numbers=1)


def _outcome(records: Sequence[GateRecord]) -> str:
    """Return the outcome of checks: failures, the nearest bound, and faults below all bounds."""
    failed = [record.check for record in records if not record.passed]
    words = [f"failed: {listed(failed)}" if failed else "passed"]
    compared = [(r.distance, r.bound, r) for r in records if r.distance is not None and r.bound]
    if compared:
        distance, bound, record = max(compared, key=lambda one: one[0] / one[1])
        words.append(f"nearest {distance:.3f} of {bound:.3f} allowed ({_column_of(record)})")
    unseen = [f"{fault} in {_column_of(record)}" for record in records for fault in record.unseen]
    words += [f"too small to be seen: {listed(unseen)}"] if unseen else []
    return "; ".join(words)


def _column_of(record: GateRecord) -> str:
    return record.check.partition(": ")[2]


def _leaves(event: Event, how: str) -> Iterator[tuple[Gaussian, str]]:
    """Yield the draws of an event, each with its composition in words."""
    if isinstance(event, Gaussian):
        yield event, how
    elif isinstance(event, Repeated):
        yield from _leaves(event.event, f", {event.count:,} times")
    else:
        for member in event.events:
            yield from _leaves(member, how)


def _noise_row(event: Gaussian, how: str) -> tuple[str, ...]:
    ratio = event.noise_stddev / event.l2_sensitivity
    return (
        event.statistic,
        f"discrete Gaussian{how}",
        f"{event.n_values:,}",
        _quantity(event.l2_sensitivity),
        _quantity(event.noise_stddev),
        # Rounded down, so that noise is never overstated.
        f"{math.floor(ratio * 100) / 100:.2f}" if 0.01 <= ratio < 1e6 else f"{ratio:.3g}",
    )


def _quantity(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e12 else f"{value:.4g}"


def _dictionary(schema: TableSchema) -> Iterator[tuple[str, ...]]:
    """Describe every released column, the label last; pixels in one row."""
    image = schema.image
    if image is not None:
        colours = ", then red, green and blue" if image.channels == 3 else ""
        threshold = "" if image.threshold is None else f"; white from {image.threshold} on"
        yield (
            f"{image.columns[0].name} to {image.columns[-1].name}",
            f"pixels of images, {image.height} x {image.width}: row, then column{colours}",
            f"0 to 255 in {image.gray_levels} gray levels{threshold}",
            "never",
        )
    columns = (*schema.columns, *schema.derived_columns) if image is None else ()
    yield from dictionary_of(columns, {n: one.about for n, one in schema.derived.items()}).rows
    for label in schema.all_labels:
        domain = _levels(label) if label.number is None else _described(label.number)[1]
        yield label.name, label.about, domain, "never"


def _described(column: Column) -> tuple[str, str]:
    if not isinstance(column, NumericColumn):
        return f"categorical, {len(column.levels)} levels", _levels(column)
    kind = "integer" if column.is_whole else f"real, {column.grid_decimals} decimals"
    bounds = f"{column.lower:.10g} to {column.upper:.10g}"
    widths = {int: "of equal width", tuple: "with declared edges"}
    width = widths.get(type(column.bins), f"by {column.bins}")
    if column.is_date:
        kind, bounds = "date", " to ".join(map(column.text, (column.lower, column.upper)))
        bounds += f" days after {column.base}" if column.base else ""
    return kind, f"{bounds}; measured in {column.n_bins} bins {width}"


def _levels(column: CategoricalColumn | Label) -> str:
    """Return the levels, each followed by the other values of the source that it stands for."""
    ranges: Mapping[str, Sequence[tuple[float, float]]] = {}
    if not isinstance(column, Label):
        names, values, ranges = column.levels, column.groups, column.numeric_ranges
    else:
        names, values = column.level_names, column.levels or {}
        if column.buckets is not None:
            ends = pairwise((-math.inf, *column.buckets.edges, math.inf))
            ranges = {level: (pair,) for level, pair in zip(names, ends, strict=True)}
    found = []
    for level in names:
        raw = [value for value in values.get(level, ()) if value != level]
        raw += [f"{start}..." for start in column.prefixes.get(level, ())]
        raw += [_range(low, high) for low, high in ranges.get(level, ())]
        found.append(f"{level} ({listed(raw)})" if raw else level)
    other = f"; {column.other} also stands for every other value" if column.other else ""
    return listed(found) + other


def _range(low: float, high: float) -> str:
    if low == -math.inf:
        return f"below {high:.10g}"
    return f"from {low:.10g} on" if high == math.inf else f"{low:.10g} to below {high:.10g}"
