"""One small plot per released column: shares of levels, or densities along an axis.

Muted bars are shares of all rows; narrow coloured bars are shares of rows with one label level. In
a bundle with tables of shares, both are read from these with their 95 % intervals; otherwise the
codes of the synthetic rows are counted here, without intervals. The area of a bar along an axis is
its share. The template ``plots.html`` draws them.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats
from storage.schema.columns import Column, NumericColumn
from storage.schema.date_columns import iso, period_starts
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.ingest.encoding import encode_chunk, label_codes
from tasks.reporting.associations import highlighted_level
from tasks.reporting.facts import listed
from tasks.reporting.released_tables import DEVIATIONS

MAX_LEVELS = 10
"""Most levels of a categorical column; the others are one bar with their number."""
MAX_TICKS = 5
"""Most steps between the numbers below an axis."""
CROWDED = 0.9
"""Share of the rows in one bin from which a column is named."""
TAIL = 0.005
"""Share of rows at either end of a numeric axis that may be left out."""
WIDE_END = 0.1
"""Largest share of an end bin that stands apart since it is wider than the rest of the axis."""
SPIKE = 4.0
"""Times the density of all others from which a narrow bin, such as 0, stands apart."""

_MISSING = "missing"
_NUMBERS = ["share", "low", "high", "noise_patients"]

_Share = tuple[float | None, tuple[float, float] | None]
"""A share and its interval, or None."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar: text, share, share of highlighted rows (0 to 1), 95 % intervals (None if unknown)."""

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
    def shown(self) -> float:
        """The larger share."""
        return max(self.share, self.highlighted_share or 0.0)

    @property
    def reach(self) -> float:
        """The largest number that is drawn."""
        pairs = (self.interval, self.highlighted_interval)
        return max(self.shown, *(pair[1] for pair in pairs if pair), 0.0)

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
    """Bars of a column: levels, or densities over their `spans` of an axis.

    Bars apart, each with a short text, are shares that no axis holds: frequent single numbers, all
    beyond an end, and missing values. Notes state the noise in patients and the parts that are not
    drawn; `lost_share` is the sum of the shares that are lost in noise.
    """

    name: str
    bars: list[_Bar]
    spans: tuple[tuple[float, float], ...] = ()
    whole: bool = False
    days: bool = False
    before: tuple[tuple[str, _Bar], ...] = ()
    after: tuple[tuple[str, _Bar], ...] = ()
    notes: tuple[str, ...] = ()
    lost_share: float = 0.0

    @property
    def drawn(self) -> list[_Bar]:
        """All bars."""
        return [*(bar for _, bar in self.before), *self.bars, *(bar for _, bar in self.after)]

    @property
    def widths(self) -> list[float]:
        """Widths of the bars along the axis, in units of the column; 1 for levels."""
        return [end - start for start, end in self.spans] or [1.0] * len(self.bars)

    @property
    def top(self) -> float:
        """End of the scale: a round number above the bars, of levels at least 1 %.

        Intervals along an axis that reach beyond twice the highest bar are cut.
        """
        bars = list(zip(self.bars, self.widths, strict=True))
        highest = max(bar.shown / width for bar, width in bars)
        reach = max(bar.reach / width for bar, width in bars)
        reach = max(min(reach, 2.0 * highest), 1e-12) if self.spans else max(reach, 0.01)
        step = 10.0 ** math.floor(math.log10(reach)) / 2.0
        return math.ceil(reach / step - 1e-9) * step

    @property
    def scale(self) -> str:
        """Text of the end of the scale of an axis."""
        if self.whole:
            return f"{100 * self.top:.3g} %"
        least = math.floor(math.log10(min(self.widths)))
        per = 10.0 ** max(-2 - math.floor(math.log10(self.top) + 1e-9), least)
        return f"{100 * self.top * per:.3g} % per {per:,.10g}{' days' * self.days}"

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round numbers along the axis, those of whole numbers below the middle of their bars."""
        start, end = self.spans[0][0], self.spans[-1][1] - self.whole
        if self.days:
            return _dates_along(start, end)
        least = max((end - start) / MAX_TICKS, float(self.whole), 1e-12)
        unit = 10.0 ** math.floor(math.log10(least))
        step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= least * (1 - 1e-9))
        places = range(math.ceil(start / step - 1e-9), math.floor(end / step + 1e-9) + 1)
        return [(i * step + self.whole / 2.0, f"{i * step:.10g}") for i in places]


def column_plots(frame: pd.DataFrame, schema: TableSchema) -> list[_Plot]:
    """Count the codes of every released column in order; of images the labels alone."""
    columns = schema.columns if schema.image is None else ()
    codes = encode_chunk(frame, schema, mend=False).codes if columns else np.empty((0, 0))
    own = frame[schema.first_label.name]
    highlighted = (own == highlighted_level(schema.first_label)).to_numpy()
    plots = []
    for column, own in zip(columns, codes.T, strict=True):
        shares, parts = (_shares(of, column.n_codes) for of in (own, own[highlighted]))
        values = zip(_levels_of(column), shares, parts, strict=True)
        plots.append(_plot(column, [_Bar(*each) for each in values]))
    for label in schema.all_labels:
        names = label.level_names
        shares = _shares(label_codes(frame[label.name], label, []), len(names))
        bars = [_Bar(name, share, None) for name, share in zip(names, shares, strict=True)]
        plots.append(_plot(label, bars))
    return plots


def shares_plot(name: str, names: Sequence[str], shares: Sequence[float], *, of: str) -> _Plot:
    """Return a plot of shares by names, of what is counted."""
    bars = [_Bar(text, share, None, of=of) for text, share in zip(names, shares, strict=True)]
    return _Plot(name=name, bars=bars)


def crowded_columns(frame: pd.DataFrame, schema: TableSchema) -> str:
    """Return the columns with nine tenths of the synthetic rows in one bin or level, with it."""
    if schema.image is not None or schema.items is not None:
        return ""
    plots = column_plots(frame, schema)[: len(schema.columns)]
    bars = [(one.name, bar) for one in plots for bar in one.drawn]
    return listed([f"{name} ({bar.name})" for name, bar in bars if bar.share >= CROWDED])


def released_plots(tables: bytes, schema: TableSchema) -> list[_Plot]:
    """Return a plot of the released shares of every column in order, then of the labels."""
    level, names = highlighted_level(schema.first_label), schema.labels.level_names
    of_first = schema.labels.parts[schema.first_label.name]
    coloured = [name for name, of in zip(names, of_first, strict=True) if of == level]
    shown = pd.read_parquet(io.BytesIO(tables), filters=[("by", "in", ["", schema.labels.name])])
    shown = shown[(shown["by"] == "") | shown["by_level"].isin(coloured)]
    by_column = dict(list(shown.groupby("column", sort=False)))
    together = by_column[schema.labels.name]
    of_label = by_column[schema.first_label.name]
    (highlighted,) = of_label[of_label["level"] == level][_NUMBERS].to_numpy()
    plots: list[_Plot] = []
    for column in (*schema.columns, *schema.all_labels):
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
            notes.append(f"{schema.first_label.name} = {level} is lost in noise")
        lost_share = sum(bar.share for bar in bars if bar.lost)
        plots.append(replace(_plot(column, bars, notes), lost_share=lost_share))
    return plots


def _shares(codes: NDArray[Any], n_codes: int) -> list[float]:
    shares: list[float] = (np.bincount(codes, minlength=n_codes) / max(len(codes), 1)).tolist()
    return shares


def _levels_of(column: Column | Label) -> list[str]:
    """Return the names of the codes of a column, or of the levels of a label."""
    if isinstance(column, Label):
        return [*column.level_names]
    missing = [_MISSING] if column.has_missing else []
    if not isinstance(column, NumericColumn):
        return [*column.levels, *missing]
    edges = [*column.bin_starts, column.upper + column.is_whole]
    return [_range_name(column, *ends) for ends in pairwise(edges)] + missing


def _at(number: float, days: bool, digits: int = 6) -> str:
    """Return a number of an axis, or the date or the year of a day."""
    return iso(number)[: None if digits > 4 else 4] if days else f"{number:.{digits}g}"


def _dates_along(start: float, end: float) -> list[tuple[float, str]]:
    """Return the first days of round years along an axis, or its start if there are none."""
    n_years = (end - start) / 365.25
    step = next(n for n in (1, 2, 5, 10, 20, 50, 100, 10_000) if n * MAX_TICKS >= n_years)
    years = [(day, iso(day)[:4]) for day in period_starts(start - 1, end, "year")[1:]]
    return [one for one in years if int(one[1]) % step == 0] or [(start, iso(start))]


def _range_name(column: NumericColumn, lower: float, upper: float) -> str:
    if column.is_whole:
        first, final = column.text(lower), column.text(upper - 1)
        return first if first == final else f"{first} to {final}"
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
    """Return a plot of levels, or of bins along an axis; see `_along`."""
    time, apart_of = column.number if isinstance(column, Label) else None, _MISSING
    if time is not None:
        column, apart_of = time, f"\u2265{time.upper:.6g}"
    if not isinstance(column, NumericColumn):
        return _Plot(name=column.name, bars=_most_frequent(bars), notes=tuple(notes))
    n, missing = column.n_bins, [(apart_of, bar) for bar in bars[column.n_bins :]]
    edges = np.array([*column.bin_starts, column.upper + column.is_whole])
    days = column.is_date and column.base is None
    shares = np.array([bar.share for bar in bars[:n]])
    inside, spikes = _along(shares, np.diff(edges))
    spans = list(pairwise(edges.tolist()))
    low, high, beyond = spans[inside[0]][0], spans[inside[-1]][1], inside[-1] + 1
    others = "others " if spikes else ""
    sides = (
        (f"<{_at(low, days, 4)}", f"{others}below {_at(low, days)}", range(inside[0])),
        (f"\u2265{_at(high, days, 4)}", f"{others}from {_at(high, days)} on", range(beyond, n)),
    )
    notes = list(notes)
    apart: list[list[tuple[str, _Bar]]] = [[], []]
    for i in spikes:
        apart[spans[i][0] > (low + high) / 2.0].append((_at(spans[i][0], days), bars[i]))
    for own, (text, name, places) in zip(apart, sides, strict=True):
        rest = [bars[i] for i in places if i not in spikes]
        share = sum(bar.share for bar in rest)
        if share > TAIL:
            own.append((text, _together(rest, name)))
        elif rest:
            notes.append(f"{name}: {100 * share:.1f} %")
    spans = [spans[i] for i in inside]
    return _Plot(
        name=column.name,
        bars=[bars[i] for i in inside],
        spans=tuple(spans),
        whole=column.is_whole and all(b - a == 1.0 for a, b in spans),
        days=days,
        before=tuple(apart[0]),
        after=(*apart[1], *missing),
        notes=tuple(notes),
    )


def _along(shares: Floats, widths: Floats) -> tuple[list[int], list[int]]:
    """Return the bins along the axis, and those of single numbers that would dwarf them.

    Neither has tails of up to `TAIL`, or an end bin of small share wider than the rest together.
    """
    density = shares / widths
    narrow = widths < np.median(widths) / 2.0
    spikes = narrow & (density > SPIKE * density[~narrow].max())
    total, rest = max(float(shares.sum()), 1e-9), np.where(spikes, 0.0, shares)
    low, high = rest.cumsum() <= TAIL * total, rest[::-1].cumsum()[::-1] <= TAIL * total
    inside = np.flatnonzero(~low & ~high & ~spikes).tolist() or [int(np.argmax(rest))]

    def vast(end: int, beyond: Floats) -> bool:
        most = widths[inside].sum() / 2.0
        return len(inside) > 1 and widths[end] > most and beyond.sum() <= WIDE_END * total

    while vast(inside[-1], rest[inside[-1] :]):
        del inside[-1]
    while vast(inside[0], rest[: inside[0] + 1]):
        del inside[0]
    return inside, np.flatnonzero(spikes).tolist()


def _percent(share: float, interval: tuple[float, float] | None) -> str:
    between = f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""
    return f"{100 * share:.1f} %{between}"


def _most_frequent(bars: list[_Bar]) -> list[_Bar]:
    """Keep the most frequent levels in the declared order, and sum the others."""
    if len(bars) <= MAX_LEVELS:
        return bars
    # The choice depends on released shares alone.
    ranked = sorted(range(len(bars)), key=lambda i: -bars[i].share)[: MAX_LEVELS - 1]
    rest = [bar for i, bar in enumerate(bars) if i not in ranked]
    return [*(bars[i] for i in sorted(ranked)), _together(rest, f"{len(rest)} others")]


def _together(bars: Sequence[_Bar], name: str) -> _Bar:
    """Return the sum of bars, of which no interval is known."""
    inside = [bar.highlighted_share for bar in bars if bar.highlighted_share is not None]
    return replace(
        bars[0],
        name=name,
        share=sum(bar.share for bar in bars),
        highlighted_share=sum(inside) if inside else None,
        interval=None,
        highlighted_interval=None,
    )
