"""One small plot per released column: shares of levels, or along an axis.

Muted bars are shares of all rows; narrow coloured bars are shares of rows with one label level. In
a bundle with tables of shares, both come from these with their intervals
(`tasks.reporting.released_plots`); otherwise the synthetic rows are counted here, without
intervals. The template ``plots.html`` draws them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats, Indices
from storage.schema.columns import NumericColumn, raw_text
from storage.schema.labels import Label
from storage.schema.table import TableSchema

MAX_BARS = 24
"""Most bars of a histogram of rows."""
MAX_LEVELS = 10
"""Most levels of a categorical column; the others are one bar with their number."""
MAX_TICKS = 5
"""Most bounds of bins below a plot."""
TAIL = 0.005
"""Share of rows at either end of a numeric axis that may be left out."""

MISSING = "missing"
"""Name of the bar of the rows without a value."""


@dataclass(frozen=True, slots=True)
class Bar:
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
class Plot:
    """Bars of a column: levels, or values along an axis, with a bar of the missing ones.

    Ticks of an axis are pairs of the number of bars before them and their text. Notes state the
    noise in patients and the parts that are not drawn.
    """

    name: str
    bars: list[Bar]
    ticks: list[tuple[float, str]] | None = None
    missing: Bar | None = None
    notes: tuple[str, ...] = ()

    @property
    def drawn(self) -> list[Bar]:
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


def column_plots(frame: pd.DataFrame, schema: TableSchema) -> list[Plot]:
    """Count every released column in order; of images the labels alone."""
    highlighted = _texts(frame[schema.label.name]) == highlighted_level(schema.label)
    plots = []
    for column in schema.columns if schema.image is None else ():
        if isinstance(column, NumericColumn):
            plots.append(_histogram(frame[column.name], column, highlighted))
        else:
            levels = [*column.levels, *([MISSING] if column.has_missing else [])]
            codes = _positions(_texts(frame[column.name]), column.levels)
            codes[codes < 0] = len(column.levels)
            bars = most_frequent(_bars(levels, codes, highlighted))
            plots.append(Plot(name=column.name, bars=bars))
    for label in (schema.label, *schema.more_labels):
        names = label.level_names
        bars = _bars(names, _positions(_texts(frame[label.name]), names), None)
        plots.append(Plot(name=label.name, bars=most_frequent(bars)))
    return plots


def _percent(share: float, interval: tuple[float, float] | None) -> str:
    between = f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""
    return f"{100 * share:.1f} %{between}"


def ticks(texts: list[str], *, single: bool = False) -> list[tuple[float, str]]:
    """Return some edges of bars by the number of bars before them, including the last.

    Bars of a single whole number each have it below their middle.
    """
    n = len(texts) - 1
    step = max(-(-n // (MAX_TICKS - 1)), 1)
    if single:
        return [(place + 0.5, texts[place]) for place in range(0, n, step)]
    places = [place for place in range(0, n, step) if n - place >= step / 2]
    return [(place, texts[place]) for place in [*places, n]]


def _texts(series: pd.Series) -> NDArray[np.object_]:
    index, uniques = pd.factorize(series, use_na_sentinel=True)
    texts = np.array([*(raw_text(value) for value in uniques.tolist()), ""], dtype=object)
    return texts[index]


def _positions(texts: NDArray[np.object_], names: Sequence[str]) -> Indices:
    known = pd.Index(np.array(names, dtype=object))
    return known.get_indexer(pd.Index(texts))


def _bars(names: Sequence[str], codes: Indices, highlighted: NDArray[np.bool_] | None) -> list[Bar]:
    shares = _shares(codes, len(names))
    if highlighted is None:
        return [Bar(name, share, None) for name, share in zip(names, shares, strict=True)]
    inside = _shares(codes[highlighted], len(names))
    return [Bar(*values) for values in zip(names, shares, inside, strict=True)]


def _shares(codes: Indices, n_codes: int) -> list[float]:
    inside = codes[(codes >= 0) & (codes < n_codes)]
    shares: list[float] = (np.bincount(inside, minlength=n_codes) / max(len(codes), 1)).tolist()
    return shares


def most_frequent(bars: list[Bar]) -> list[Bar]:
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


def _histogram(series: pd.Series, column: NumericColumn, highlighted: NDArray[np.bool_]) -> Plot:
    values = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    missing = np.isnan(values) | np.isin(values, column.missing_numbers)
    there = values[~missing]
    ends = (column.lower, column.upper)
    if len(there):
        low, high = np.quantile(there, [TAIL, 1.0 - TAIL], method="nearest")
        ends = (float(low), float(high)) if low < high else ends
    edges = _edges(column, *ends)
    n_bars = len(edges) - 1
    codes = np.searchsorted(edges[1:-1], values, side="right")
    codes[missing] = n_bars
    beyond = ~missing & ((values < edges[0]) | (values > ends[1]))
    codes[beyond] = n_bars + 1
    names = [
        range_name(edges[i], edges[i + 1], column, last=i == n_bars - 1) for i in range(n_bars)
    ]
    *bars, none = _bars([*names, MISSING], codes, highlighted)
    share = float(beyond.mean()) if len(beyond) else 0.0
    return Plot(
        name=column.name,
        bars=bars,
        ticks=ticks([f"{edge:.4g}" for edge in edges]),
        missing=none if column.has_missing else None,
        notes=(f"beyond the axis: {100 * share:.1f} %",) if share else (),
    )


def _edges(column: NumericColumn, lower: float, upper: float) -> Floats:
    """Return edges of equal width between two values, whole for integers."""
    if column.kind == "real":
        return np.linspace(lower, upper, MAX_BARS + 1)
    n_values = int(upper) - int(np.ceil(lower)) + 1
    step = -(-n_values // MAX_BARS)
    n_bars = -(-n_values // step)
    return np.ceil(lower) + step * np.arange(n_bars + 1.0)


def range_name(lower: float, upper: float, column: NumericColumn, *, last: bool) -> str:
    """Return the values between two edges, in words."""
    if column.kind == "integer":
        first, final = int(lower), min(int(upper) - 1, int(column.upper))
        return str(first) if first == final else f"{first} to {final}"
    return f"{lower:.4g} to {'' if last else 'below '}{upper:.4g}"
