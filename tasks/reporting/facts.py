"""Public facts of a release as rows and sentences, shared by the data card and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from privacy.calibration import gdp_rho
from privacy.event_records import event_from_dict
from privacy.events import (
    DiscreteGaussianEvent,
    Draw,
    Event,
    ExponentialMechanismEvent,
    GaussianEvent,
    PoissonSampledGaussianEvent,
    RepeatedEvent,
)
from privacy.parameters import Analysis
from storage.releases.manifest import GateRecord, Manifest
from storage.schema.table import CategoricalColumn, ImageColumns, Label, NumericColumn, TableSchema
from tasks.reporting.guarantee import Claim, rounded_up

_CHECKS = MappingProxyType(
    {
        "columns": "The declared columns, in the declared order, and no other.",
        "row_count": "The number of rows that was asked for.",
        "number": "Numbers and declared missing codes only.",
        "grid": "Whole numbers, or the declared number of decimals.",
        "bounds": "Inside the declared bounds, and finite.",
        "not_null": "A value in every cell.",
        "level": "Declared levels and missing codes only.",
        "label": "Declared label levels only.",
        "pixels": "Every pixel of every image is a declared gray level.",
        "items": "Every item of every row is 0 or 1.",
        "files": "The schema file states this schema; the CSV file has the cells of the Parquet "
        "file.",
        "label shares": "Rows of each label level, as a fresh sample of the measurement has them.",
        "marginal": "Each column's codes, as a fresh sample has them.",
        "marginal by label": "Each column's codes by label, as a fresh sample has them.",
        "columns by label, together (standard errors)": "What all columns say about the label.",
        "label shares, noisy counts": "Label shares, as the sealed counts have them.",
        "marginal, noisy counts": "Each column's codes, as the sealed counts have them.",
        "columns by label, together, noisy counts (part that is missing)": "At least half of what "
        "the sealed counts say about the label.",
    }
)

MAX_LISTED_LEVELS = 12
"""Levels written out in the data dictionary; the schema file holds them all."""

NOT_TO_CONCLUDE = (
    (
        "No causes.",
        "Associations in the table are those of the measured statistics. Effects of treatments "
        "cannot be read from them.",
    ),
    (
        "No rare groups.",
        "Noise is as large for ten patients as for ten thousand. Small subgroups, rare codes and "
        "interactions of many columns may be invented or absent.",
    ),
    (
        "No exact counts.",
        "The number of rows was chosen. It is not the number of patients, and no count, rate or "
        "confidence interval of the source follows from it.",
    ),
    (
        "No patients.",
        "No row is to be read as a person, and rows that look like one patient's history are "
        "not one.",
    ),
    (
        "No clinical decisions.",
        "Use the table to explore, to teach, to build and test software, and to plan a study. "
        "Confirm every finding on data of record.",
    ),
    (
        "No certificate.",
        "Differential privacy bounds what can be learned about one patient. Whether the table is "
        "anonymous in law is a decision of the institution.",
    ),
)

_TRUST = (
    "The institution that made the release read the records; it is trusted to have run this "
    "version of the program on the declared source.",
    "The patient key is assumed to be right: a person with two keys counts as two.",
    "Where the source is a database, a view that is declared as patient-local is assumed "
    "to be so: what it holds about a patient depends on that patient's records alone.",
    "Running time, memory use and failures of the run are not covered. They stay inside.",
)
_TRUST_IN_PROOF = (
    "Noise comes from the entropy of the operating system, by an exact sampler on integers. "
    "Nothing that was published contains a seed.",
    "Sums are exact integers; no result depends on the order of records or on rounding.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """One noisy statistic, in its grid units.

    Parameters
    ----------
    statistic
        Public name.
    n_values
        Number of coordinates.
    l2_sensitivity, noise_stddev
        As in the event, written for a person.
    ratio
        Noise per sensitivity, without unit; rounded down, so that noise is never overstated.
    noise
        Name of the distribution.
    part
        How often, where it is repeated, else empty.
    """

    statistic: str
    n_values: str
    l2_sensitivity: str
    noise_stddev: str
    ratio: str
    noise: str
    part: str

    @property
    def how(self) -> str:
        """The distribution, and how it is composed where it is not drawn once."""
        return f"{self.noise}, {self.part}" if self.part else self.noise


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryRow:
    """One released column: name, role, kind, domain, what stands for a missing value."""

    name: str
    kind: str
    domain: str
    missing: str


def origin(manifest: Manifest) -> str | None:
    """Return what is special about the rows of this bundle, or None: a resample, conditions."""
    sentences = []
    if manifest.resampled_from is not None:
        sentences.append(
            f"The rows were sampled again from the measurement of release "
            f"{manifest.resampled_from}, which paid for it; nothing was charged."
        )
    if manifest.conditions:
        asked = ", ".join(f"{name} = {level}" for name, level in manifest.conditions.items())
        sentences.append(
            f"All rows were chosen to have {asked}: shares of other columns are shares among "
            "such rows."
        )
    return " ".join(sentences) or None


def trust(manifest: Manifest) -> tuple[str, ...]:
    """Return what a reader takes on trust; what the proof relies on where there is one."""
    return (*_TRUST, *(_TRUST_IN_PROOF if Claim.of(manifest).proven else ()))


def noise_caption(manifest: Manifest) -> str:
    """Return what the table of noisy statistics covers."""
    if manifest.analysis == Analysis.PAPER:
        return (
            "The noise that the published analysis counts, in grid units. Other steps of the "
            "algorithm read records without noise."
        )
    return (
        "Every look at the records, in the units of its integer grid. Everything else is computed "
        "from these and from public settings."
    )


def settings(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Return the public settings of the method, by name."""
    return tuple(
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in sorted(manifest.method.settings.items())
        if name != "kind"
    )


def noise_rows(manifest: Manifest) -> tuple[NoiseRow, ...]:
    """Return one row per noisy statistic, in the order of the manifest."""
    return tuple(
        _noise_row(leaf, how)
        for values in manifest.events
        for leaf, how in _leaves(event_from_dict(values), "")
    )


def budget_sentence(manifest: Manifest) -> str:
    """Return what the release cost. What other runs have cost is not for readers to know."""
    return (
        f"Charged to ledger entry {manifest.ledger_entry}: rho = {rounded_up(_charge(manifest))} "
        f"(mu = {rounded_up(manifest.mu)})."
    )


def _charge(manifest: Manifest) -> float:
    """Return what the ledger was charged: the budget that was asked for.

    Draws on samples are calibrated to a little less than that, as sampled noise is found by search.
    """
    asked = manifest.request.get("epsilon")
    if manifest.accountant == "gaussian" or not isinstance(asked, float):
        return manifest.rho
    return float(gdp_rho(epsilon=asked, delta=manifest.delta))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """All gate checks of one name: what they ask, of how many columns, which of them failed."""

    name: str
    asks: str
    n_checks: int
    failed: tuple[str, ...]
    nearest: str = ""
    unseen: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """Passed or not, how near it was, and which faults would not have been found."""
        words = [f"failed: {listed(self.failed)}" if self.failed else "passed"]
        words += [self.nearest] if self.nearest else []
        words += [f"too small to be seen: {listed(self.unseen)}"] if self.unseen else []
        return "; ".join(words)


def check_rows(manifest: Manifest) -> tuple[CheckRow, ...]:
    """Return the gate checks by name, in the order of the manifest."""
    found: dict[str, list[GateRecord]] = {}
    for record in manifest.gate:
        found.setdefault(record.check.split(": ", 1)[0], []).append(record)
    return tuple(
        CheckRow(
            name=name,
            asks=_CHECKS.get(name, ""),
            n_checks=len(records),
            failed=tuple(record.check for record in records if not record.passed),
            nearest=_nearest(records),
            unseen=tuple(
                f"{fault} in {record.check.partition(': ')[2]}"
                for record in records
                for fault in record.unseen
            ),
        )
        for name, records in found.items()
    )


def _nearest(records: Sequence[GateRecord]) -> str:
    """Say how near to its bound the nearest comparison of a name came."""
    compared = [(r.distance, r.bound, r) for r in records if r.distance is not None and r.bound]
    if not compared:
        return ""
    distance, bound, record = max(compared, key=lambda one: one[0] / one[1])
    return f"nearest {distance:.3f} of {bound:.3f} allowed ({record.check.partition(': ')[2]})"


def gate_verdict(manifest: Manifest) -> str:
    """Return the outcome of the gate in one sentence."""
    failed = sum(not record.passed for record in manifest.gate)
    if not manifest.gate:
        return "No check was recorded."
    if failed:
        return f"{failed} of {len(manifest.gate)} checks failed."
    return f"All {len(manifest.gate)} checks passed."


def dictionary(schema: TableSchema) -> tuple[DictionaryRow, ...]:
    """Return the data dictionary: every released column, the label last; pixels as one row."""
    if schema.image is not None:
        return (_image_row(schema.image), _label_row(schema.label))
    columns = [
        _numeric_row(column) if isinstance(column, NumericColumn) else _categorical_row(column)
        for column in schema.columns
    ]
    return (*columns, _label_row(schema.label))


def listed(levels: Sequence[str]) -> str:
    """Return levels separated by commas, shortened where there are many."""
    if len(levels) <= MAX_LISTED_LEVELS:
        return ", ".join(levels)
    return f"{', '.join(levels[:MAX_LISTED_LEVELS])} and {len(levels) - MAX_LISTED_LEVELS} more"


def _leaves(event: Event, how: str) -> Iterator[tuple[Draw, str]]:
    """Return the draws of an event, each with the words for how it is composed."""
    if isinstance(event, RepeatedEvent):
        how = f"{event.count:,} times"
    if isinstance(event, Draw):
        yield event, how
        return
    members = (event.event,) if isinstance(event, RepeatedEvent) else event.events
    for member in members:
        yield from _leaves(member, how)


def _noise_row(event: Draw, how: str) -> NoiseRow:
    if isinstance(event, ExponentialMechanismEvent):
        return NoiseRow(
            statistic=event.statistic,
            n_values=f"1 of {event.n_candidates:,}",
            l2_sensitivity="-",
            noise_stddev="-",
            ratio="-",
            noise=f"exponential mechanism, epsilon {rounded_up(event.epsilon)}",
            part=how,
        )
    if isinstance(event, GaussianEvent):
        sensitivity, noise = event.l2_sensitivity, event.noise_stddev
        name = "discrete Gaussian" if isinstance(event, DiscreteGaussianEvent) else "Gaussian"
    else:
        # In units of the clipping norm.
        sensitivity, noise = 1.0, event.noise_multiplier
        name = "Gaussian on a random sample"
        if isinstance(event, PoissonSampledGaussianEvent):
            name += f" of {100 * event.sampling_probability:.3g} %"
    ratio = noise / sensitivity
    return NoiseRow(
        statistic=event.statistic,
        n_values=f"{event.n_values:,}",
        l2_sensitivity=_quantity(sensitivity),
        noise_stddev=_quantity(noise),
        ratio=f"{math.floor(ratio * 100) / 100:.2f}" if 0.01 <= ratio < 1e6 else f"{ratio:.3g}",
        noise=name,
        part=how,
    )


def _quantity(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e12 else f"{value:.4g}"


def _missing(column: NumericColumn | CategoricalColumn) -> str:
    if column.nullable:
        return "empty cell"
    return column.missing[0] or "empty text" if column.missing else "never"


def _image_row(image: ImageColumns) -> DictionaryRow:
    threshold = "" if image.threshold is None else f"; white from {image.threshold} on"
    return DictionaryRow(
        name=f"{image.columns[0].name} to {image.columns[-1].name}",
        kind=f"pixels of images, {image.height} x {image.width}: row, then column",
        domain=f"0 to 255 in {image.gray_levels} gray levels{threshold}",
        missing="never",
    )


def _numeric_row(column: NumericColumn) -> DictionaryRow:
    decimals = column.grid_decimals
    kind = "integer" if column.kind == "integer" else f"real, {decimals} decimals"
    width = "of equal width" if isinstance(column.bins, int) else "with declared edges"
    return DictionaryRow(
        name=column.name,
        kind=kind,
        domain=f"{column.lower:.10g} to {column.upper:.10g}; measured in {column.n_bins} bins "
        f"{width}",
        missing=_missing(column),
    )


def _categorical_row(column: CategoricalColumn) -> DictionaryRow:
    other = f"; {column.other} also stands for every other value" if column.other else ""
    return DictionaryRow(
        name=column.name,
        kind=f"categorical, {len(column.levels)} levels",
        domain=listed(column.levels) + other,
        missing=_missing(column),
    )


def _label_row(label: Label) -> DictionaryRow:
    return DictionaryRow(
        name=label.name,
        kind=f"label, {len(label.level_names)} levels",
        domain=listed(label.level_names),
        missing="never",
    )
