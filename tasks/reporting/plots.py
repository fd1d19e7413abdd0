"""What one small plot per released column shows, counted from synthetic rows alone.

Muted bars are the shares of all synthetic rows; the narrow coloured bars are the shares of the
rows with one label level. Both are counted in the release itself, so a reader can draw the same
plot from the published table. The template ``plots.html`` draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats, Indices
from storage.schema.columns import NumericColumn, raw_text
from storage.schema.table import Label, TableSchema

MAX_BARS = 24
"""Bars of a histogram; more bins are merged into neighbours."""
MAX_LEVELS = 10
"""Levels drawn of a categorical column; the rest are named by their number."""

MISSING = "missing"
"""Name of the bar of the rows without a value."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what it counts, and its share of each group of rows, between 0 and 1."""

    name: str
    share: float
    highlighted_share: float | None

    @property
    def reach(self) -> float:
        """The larger share."""
        return max(self.share, self.highlighted_share or 0.0)

    @property
    def title(self) -> str:
        """What it counts, with its shares in percent."""
        text = f"{self.name}: {100 * self.share:.1f} % of all rows"
        if self.highlighted_share is None:
            return text
        return f"{text}, {100 * self.highlighted_share:.1f} % of the highlighted ones"


@dataclass(frozen=True, slots=True)
class Plot:
    """Bars of a column: levels, or values between public bounds with a bar of the missing ones."""

    name: str
    bars: list[Bar]
    bounds: tuple[float, float] | None = None
    missing: Bar | None = None

    @property
    def drawn(self) -> list[Bar]:
        """All bars."""
        return self.bars if self.missing is None else [*self.bars, self.missing]

    @property
    def top(self) -> float:
        """The largest share that is drawn, or a little where there is none."""
        return max(*(bar.reach for bar in self.drawn), 1e-9)


def highlighted_level(label: Label) -> str:
    """Return the label level that is drawn in colour: the positive one, else the last."""
    return label.positive if label.positive is not None else label.level_names[-1]


def column_plots(frame: pd.DataFrame, schema: TableSchema) -> list[Plot]:
    """Count every released column in its order, or the label alone where the others are pixels."""
    labels = _texts(frame[schema.label.name])
    highlighted = labels == highlighted_level(schema.label)
    plots = []
    for column in schema.columns if schema.image is None else ():
        if isinstance(column, NumericColumn):
            plots.append(_histogram(frame[column.name], column, highlighted))
        else:
            levels = [*column.levels, *([MISSING] if column.has_missing else [])]
            codes = _positions(_texts(frame[column.name]), column.levels)
            codes[codes < 0] = len(column.levels)
            plots.append(Plot(column.name, _most_frequent(_bars(levels, codes, highlighted))))
    names = schema.label.level_names
    bars = _bars(names, _positions(labels, names), None)
    return [*plots, Plot(schema.label.name, _most_frequent(bars))]


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


def _most_frequent(bars: list[Bar]) -> list[Bar]:
    """Keep the most frequent levels, in the declared order, and sum up the others."""
    if len(bars) <= MAX_LEVELS:
        return bars
    # Chosen by the synthetic rows, which are public.
    ranked = sorted(range(len(bars)), key=lambda i: -bars[i].share)[: MAX_LEVELS - 1]
    rest = [bar for i, bar in enumerate(bars) if i not in ranked]
    inside = [bar.highlighted_share for bar in rest if bar.highlighted_share is not None]
    others = Bar(
        f"{len(rest)} others", sum(bar.share for bar in rest), sum(inside) if inside else None
    )
    return [*(bars[i] for i in sorted(ranked)), others]


def _histogram(series: pd.Series, column: NumericColumn, highlighted: NDArray[np.bool_]) -> Plot:
    values = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    missing = np.isnan(values) | np.isin(values, column.missing_numbers)
    edges = _edges(column)
    n_bars = len(edges) - 1
    codes = np.searchsorted(edges[1:-1], values, side="right")
    codes[missing] = n_bars
    names = [
        _range_name(edges[i], edges[i + 1], column, last=i == n_bars - 1) for i in range(n_bars)
    ]
    *bars, none = _bars([*names, MISSING], codes, highlighted)
    bounds = (column.lower, column.upper)
    return Plot(column.name, bars, bounds, none if column.has_missing else None)


def _edges(column: NumericColumn) -> Floats:
    """Edges of equal width between the public bounds, on whole numbers for integers."""
    if column.kind == "real":
        return np.linspace(column.lower, column.upper, MAX_BARS + 1)
    n_values = int(column.upper) - int(np.ceil(column.lower)) + 1
    step = -(-n_values // MAX_BARS)
    n_bars = -(-n_values // step)
    return np.ceil(column.lower) + step * np.arange(n_bars + 1.0)


def _range_name(lower: float, upper: float, column: NumericColumn, *, last: bool) -> str:
    if column.kind == "integer":
        first, final = int(lower), min(int(upper) - 1, int(column.upper))
        return str(first) if first == final else f"{first} to {final}"
    return f"{lower:.4g} to {'' if last else 'below '}{upper:.4g}"
