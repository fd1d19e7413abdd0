"""One small plot per released column: shares of levels, or of the bins along an axis.

Muted bars are shares of all rows; narrow coloured bars are shares of rows with one label level. In
a bundle with tables of shares, both are read from these with their 95 % intervals; otherwise the
codes of the synthetic rows are counted here, without intervals. The template ``plots.html`` draws
them.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from privacy.arrays import Codes, Floats, Indices
from storage.schema.columns import Column, NumericColumn
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.ingest.encoding import encode_chunk
from tasks.reporting.facts import listed
from tasks.reporting.released_tables import DEVIATIONS

MAX_LEVELS = 10
"""Most levels of a categorical column; the others are one bar with their number."""
MAX_TICKS = 5
"""Most bounds of bins below a plot."""
CROWDED = 0.9
"""Share of the rows in one bin from which a column is named."""
TAIL = 0.005
"""Share of rows at either end of a numeric axis that may be left out."""

_MISSING = "missing"
_NUMBERS = ["share", "low", "high", "noise_patients"]

_Share = tuple[float | None, tuple[float, float] | None]
"""A share and its interval, or None."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar: its text, its share, and the share of highlighted rows, between 0 and 1.

    Intervals hold with 95 % and are None if unknown.
    """

    name: str
    share: float
    highlighted_share: float | None
    interval: tuple[float, float] | None = None
    highlighted_interval: tuple[float, float] | None = None
    of: str = "all rows"

    @property
    def lost(self) -> bool:
        """True for a bar that noise alone could have made: its interval begins at 0."""
        return self.interval is not None and self.interval[0] <= 0.0

    @property
    def reach(self) -> float:
        """The largest number that is drawn."""
        ends = [self.share, self.highlighted_share or 0.0]
        ends += [pair[1] for pair in (self.interval, self.highlighted_interval) if pair]
        return max(ends)

    @property
    def title(self) -> str:
        """Text of the bar, with its shares in percent."""
        text = f"{self.name}: {_percent(self.share, self.interval)} of {self.of}"
        if self.highlighted_share is not None:
            share = _percent(self.highlighted_share, self.highlighted_interval)
            text += f", {share} of the highlighted ones"
        return text + ("; lost in noise" if self.lost else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """Bars of a column: levels, or values along an axis, with a bar of the missing ones.

    Ticks of an axis are pairs of the number of bars before them and their text. Notes state the
    noise in patients and the parts that are not drawn.
    """

    name: str
    bars: list[_Bar]
    ticks: list[tuple[float, str]] | None = None
    missing: _Bar | None = None
    notes: tuple[str, ...] = ()

    @property
    def drawn(self) -> list[_Bar]:
        """All bars."""
        return self.bars if self.missing is None else [*self.bars, self.missing]

    @property
    def top(self) -> float:
        """End of the scale: a round number above all bars, at least 1 %."""
        reach = max(0.01, *(bar.reach for bar in self.drawn))
        step = 10.0 ** math.floor(math.log10(reach)) / 2.0
        return math.ceil(reach / step - 1e-9) * step


def highlighted_level(label: Label) -> str:
    """Return the label level in colour: the positive one, else the last."""
    return label.positive if label.positive is not None else label.level_names[-1]


def column_plots(frame: pd.DataFrame, schema: TableSchema) -> list[_Plot]:
    """Count the codes of every released column in order; of images the labels alone."""
    columns = schema.columns if schema.image is None else ()
    codes = encode_chunk(frame, schema, mend=False).codes if columns else np.empty((0, 0))
    highlighted = (frame[schema.label.name] == highlighted_level(schema.label)).to_numpy()
    plots = []
    for column, own in zip(columns, codes.T, strict=True):
        shares, parts = (_shares(of, column.n_codes) for of in (own, own[highlighted]))
        values = zip(_levels_of(column), shares, parts, strict=True)
        plots.append(_plot(column, [_Bar(*each) for each in values]))
    for label in (schema.label, *schema.more_labels):
        names = label.level_names
        shares = _shares(pd.Index(names).get_indexer(pd.Index(frame[label.name])), len(names))
        bars = [_Bar(name, share, None) for name, share in zip(names, shares, strict=True)]
        plots.append(_plot(label, bars))
    return plots


def crowded_columns(frame: pd.DataFrame, schema: TableSchema) -> str:
    """Return the columns with nine tenths of the synthetic rows in one bin or level, with it."""
    if schema.image is not None or schema.items is not None:
        return ""
    plots = column_plots(frame, schema)[: len(schema.columns)]
    bars = [(one.name, bar) for one in plots for bar in one.drawn]
    return listed([f"{name} ({bar.name})" for name, bar in bars if bar.share >= CROWDED])


def released_plots(tables: bytes, schema: TableSchema) -> list[_Plot]:
    """Return a plot of the released shares of every column in order, then of the labels."""
    level, names = highlighted_level(schema.label), schema.labels.level_names
    of_first = schema.labels.parts[schema.label.name]
    coloured = [name for name, of in zip(names, of_first, strict=True) if of == level]
    shown = pd.read_parquet(io.BytesIO(tables), filters=[("by", "in", ["", schema.labels.name])])
    shown = shown[(shown["by"] == "") | shown["by_level"].isin(coloured)]
    by_column = dict(list(shown.groupby("column", sort=False)))
    together = by_column[schema.labels.name]
    of_label = by_column[schema.label.name]
    (highlighted,) = of_label[of_label["level"] == level][_NUMBERS].to_numpy()
    plots: list[_Plot] = []
    for column in (*schema.columns, schema.label, *schema.more_labels):
        cells = by_column[column.name]
        inside = _summed(cells[cells["by"] != ""], together)
        whole = cells[cells["by"] == ""][_NUMBERS].to_numpy()
        parts: list[_Share] = [(None, None)] * len(whole)
        notes = [f"noise ± {DEVIATIONS * whole[:, -1].max():,.0f} patients"]
        if not isinstance(column, Label):
            parts = _within(inside[_NUMBERS].to_numpy(), highlighted)
        bars = [
            _Bar(text, share, part, (low, high), between, of="all patients")
            for text, (share, low, high, _), (part, between) in zip(
                _levels_of(column), whole.tolist(), parts, strict=True
            )
        ]
        if lost := sum(bar.lost for bar in bars):
            notes.append(f"{lost} of {len(bars)} lost in noise")
        if not isinstance(column, Label) and parts[0][0] is None:
            notes.append(f"{schema.label.name} = {level} is lost in noise")
        plots.append(_plot(column, bars, notes))
    return plots


def _shares(codes: Codes | Indices, n_codes: int) -> list[float]:
    shares: list[float] = (np.bincount(codes, minlength=n_codes) / max(len(codes), 1)).tolist()
    return shares


def _levels_of(column: Column | Label) -> list[str]:
    """Return the names of the codes of a column, or of the levels of a label."""
    if isinstance(column, Label):
        return [*column.level_names]
    missing = [_MISSING] if column.has_missing else []
    if not isinstance(column, NumericColumn):
        return [*column.levels, *missing]
    edges = [*column.bin_starts, column.upper + (column.kind == "integer")]
    return [_range_name(column, *ends) for ends in pairwise(edges)] + missing


def _range_name(column: NumericColumn, lower: float, upper: float) -> str:
    if column.kind == "integer":
        first, final = int(lower), int(upper) - 1
        return str(first) if first == final else f"{first} to {final}"
    return f"{lower:.4g} to {'' if upper == column.upper else 'below '}{upper:.4g}"


def _summed(cells: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    """Sum the cells of each level over levels of the labels, whose noise is independent.

    Intervals of cells are cut at 0 and 1. An interval of a label that is not cut gives the scale:
    its half is the noise in patients divided by their number.
    """
    if len(cells) == cells["level"].nunique():
        return cells
    whole = labels[(labels["low"] > 0.0) & (labels["high"] < 1.0)]
    half, middle = np.ones(len(cells)), cells["share"].to_numpy()
    if len(whole):  # otherwise the number of patients is unknown
        unit = (whole["high"] - whole["low"]).iloc[0] / 2.0 / whole["noise_patients"].iloc[0]
        half = cells["noise_patients"].to_numpy() * unit
        middle = np.where(cells["low"] > 0.0, cells["low"] + half, cells["high"] - half)
    squares = cells.assign(low=middle, high=half**2, noise_patients=cells["noise_patients"] ** 2)
    found = squares.groupby("level", sort=False, as_index=False)[_NUMBERS].sum()
    half = np.sqrt(found["high"])
    return found.assign(
        by=cells["by"].iloc[0],
        high=np.clip(found["low"] + half, 0.0, 1.0),
        low=np.clip(found["low"] - half, 0.0, 1.0),
        noise_patients=np.sqrt(found["noise_patients"]),
    )


def _within(cells: Floats, label: Floats) -> list[_Share]:
    """Return share and interval of cells (n, 4) among the patients with a label level (4,).

    The error of a ratio ``a / b`` is ``(error of a - a / b * error of b) / b``. Errors of a part
    and its whole are positively correlated, so ignoring this only widens the interval.
    """
    (shares, low, high, noise), (share, least, most, noise_of_label) = cells.T, label
    if least <= 0.0 or most >= 1.0:  # their number is unknown
        return [(None, None)] * len(cells)
    parts = (shares / max(share, 1e-9)).tolist()
    base, half_base = (least + most) / 2.0, (most - least) / 2.0
    half = noise * (half_base / noise_of_label)
    ratio = np.where(low > 0.0, low + half, high - half) / base
    spread = np.hypot(half, ratio * half_base) / base
    lows, highs = np.clip(ratio - spread, 0.0, 1.0), np.clip(ratio + spread, 0.0, 1.0)
    return list(zip(parts, zip(lows.tolist(), highs.tolist(), strict=True), strict=True))


def _plot(column: Column | Label, bars: list[_Bar], notes: Sequence[str] = ()) -> _Plot:
    """Return a plot of levels, or of bins without tails of at most `TAIL` at either end."""
    if not isinstance(column, NumericColumn):
        return _Plot(name=column.name, bars=_most_frequent(bars), notes=tuple(notes))
    n = column.n_bins
    shares = np.array([bar.share for bar in bars[:n]])
    total = max(float(shares.sum()), 1e-9)
    first = int(np.searchsorted(shares.cumsum(), TAIL * total, side="right"))
    last = n - 1 - int(np.searchsorted(shares[::-1].cumsum(), TAIL * total, side="right"))
    first, last = min(first, n - 1), max(last, min(first, n - 1))
    if outside := n - (last + 1 - first):
        share = float(shares[:first].sum() + shares[last + 1 :].sum())
        text = "1 bin" if outside == 1 else f"{outside} bins"
        notes = [*notes, f"{text} beyond the axis: {100 * share:.1f} %"]
    edges = [*column.bin_starts, column.upper][first : last + 2]
    ends = [*edges[:-1], edges[-1] + (last == n - 1)]
    single = column.kind == "integer" and bool(np.all(np.diff(ends) == 1.0))
    return _Plot(
        name=column.name,
        bars=bars[first : last + 1],
        ticks=_ticks([f"{edge:.6g}" for edge in edges], single=single),
        missing=bars[n] if column.has_missing else None,
        notes=tuple(notes),
    )


def _percent(share: float, interval: tuple[float, float] | None) -> str:
    between = f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""
    return f"{100 * share:.1f} %{between}"


def _ticks(texts: list[str], *, single: bool = False) -> list[tuple[float, str]]:
    """Return some edges of bars by the number of bars before them, including the last.

    Bars of a single whole number each have it below their middle.
    """
    n = len(texts) - 1
    step = max(-(-n // (MAX_TICKS - 1)), 1)
    if single:
        return [(place + 0.5, texts[place]) for place in range(0, n, step)]
    places = [place for place in range(0, n, step) if n - place >= step / 2]
    return [(place, texts[place]) for place in [*places, n]]


def _most_frequent(bars: list[_Bar]) -> list[_Bar]:
    """Keep the most frequent levels in the declared order, and sum the others."""
    if len(bars) <= MAX_LEVELS:
        return bars
    # The choice depends on released shares alone.
    ranked = sorted(range(len(bars)), key=lambda i: -bars[i].share)[: MAX_LEVELS - 1]
    rest = [bar for i, bar in enumerate(bars) if i not in ranked]
    inside = [bar.highlighted_share for bar in rest if bar.highlighted_share is not None]
    others = replace(
        rest[0],
        name=f"{len(rest)} others",
        share=sum(bar.share for bar in rest),
        highlighted_share=sum(inside) if inside else None,
        interval=None,
        highlighted_interval=None,
    )
    return [*(bars[i] for i in sorted(ranked)), others]
