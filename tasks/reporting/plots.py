"""One small plot per released column, as inline SVG, drawn from synthetic rows alone.

Muted bars are the shares of all synthetic rows; the narrow coloured bars are the shares of the
rows with one label level. Both are counted in the release itself, so a reader can draw the same
plot from the published table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.parameters import Adjacency
from storage.schema.table import CategoricalColumn, Label, NumericColumn, TableSchema, raw_text
from tasks.reporting.guarantee import FALSE_ALARM_RATE, Claim
from tasks.reporting.markup import Markup, element, join

MAX_BARS = 24
"""Bars of a histogram; more bins are merged into neighbours."""
MAX_LEVELS = 10
"""Levels drawn of a categorical column; the rest are named by their number."""

MISSING = "missing"
"""Name of the bar of the rows without a value."""

WIDTH, HEIGHT = 280, 128
_PLOT_HEIGHT = 98
_ROW_HEIGHT = 17
_NAME_WIDTH = 112
_NAME_SIGNS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: what it counts, and its share of each group of rows, between 0 and 1."""

    name: str
    share: float
    highlighted_share: float | None


def highlighted_level(label: Label) -> str:
    """Return the label level that is drawn in colour: the positive one, else the last."""
    return label.positive if label.positive is not None else label.level_names[-1]


def column_plots(frame: pd.DataFrame, schema: TableSchema) -> dict[str, Markup]:
    """Draw every released column, or the label alone where the others are pixels.

    Parameters
    ----------
    frame
        Synthetic rows.
    schema
        The public schema.

    Returns
    -------
    dict
        SVG by column name, in the order of the release.
    """
    labels = _texts(frame[schema.label.name])
    highlighted = labels == highlighted_level(schema.label)
    plots = {}
    for column in schema.columns if schema.image is None else ():
        if isinstance(column, NumericColumn):
            bars, missing = _numeric_bars(frame[column.name], column, highlighted)
            plots[column.name] = _histogram(column, bars, missing)
        else:
            levels = [*column.levels, *([MISSING] if column.has_missing else [])]
            codes = _level_codes(_texts(frame[column.name]), column)
            plots[column.name] = _level_plot(column.name, _bars(levels, codes, highlighted))
    names = schema.label.level_names
    codes = _positions(labels, names)
    level_bars = _bars(names, codes, None)
    plots[schema.label.name] = _level_plot(schema.label.name, level_bars)
    return plots


def best_test_figure(claim: Claim) -> Markup:
    """Draw what the best test for one patient can do: 100 absent and 100 present patients."""
    if claim.adjacency is Adjacency.ADD_REMOVE:
        names = ("100 absent patients", "100 present patients")
    else:
        names = ("100 patients with the first records", "100 patients with the second records")
    hits = (round(100 * FALSE_ALARM_RATE), claim.present_per_hundred)
    parts = []
    for block in range(2):
        top = block * 82
        parts.append(element("text", names[block], x=0, y=top + 9))
        for i in range(100):
            row, column = divmod(i, 20)
            parts.append(
                element(
                    "circle",
                    class_="dot hit" if i < hits[block] else "dot",
                    cx=5 + column * 12.5,
                    cy=top + 20 + row * 12,
                    r=4,
                )
            )
    described = (
        f"Of {names[0]} {hits[0]} are singled out by mistake; of {names[1]} at most {hits[1]} are."
    )
    return element(
        "figure",
        element("svg", parts, viewBox="0 0 250 156", role="img", aria_label=described),
        element("figcaption", f"The best possible test. {described}"),
        class_="odds",
    )


def _texts(series: pd.Series) -> NDArray[np.object_]:
    index, uniques = pd.factorize(series, use_na_sentinel=True)
    texts = np.array([*(raw_text(value) for value in uniques.tolist()), ""], dtype=object)
    return texts[index]


def _positions(texts: NDArray[np.object_], names: Sequence[str]) -> NDArray[np.intp]:
    known = pd.Index(np.array(names, dtype=object))
    return known.get_indexer(pd.Index(texts))


def _level_codes(texts: NDArray[np.object_], column: CategoricalColumn) -> NDArray[np.intp]:
    codes = _positions(texts, column.levels)
    return np.where(codes < 0, len(column.levels), codes)


def _bars(
    names: Sequence[str], codes: NDArray[np.intp], highlighted: NDArray[np.bool_] | None
) -> list[Bar]:
    shares = _shares(codes, len(names))
    inside = None if highlighted is None else _shares(codes[highlighted], len(names))
    return [
        Bar(
            name=name,
            share=float(shares[i]),
            highlighted_share=None if inside is None else float(inside[i]),
        )
        for i, name in enumerate(names)
    ]


def _shares(codes: NDArray[np.intp], n_codes: int) -> NDArray[np.float64]:
    inside = codes[(codes >= 0) & (codes < n_codes)]
    return np.bincount(inside, minlength=n_codes) / max(len(codes), 1)


def _numeric_bars(
    series: pd.Series, column: NumericColumn, highlighted: NDArray[np.bool_]
) -> tuple[list[Bar], Bar | None]:
    values = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    missing = np.isnan(values) | np.isin(values, column.missing_numbers)
    edges = _edges(column)
    codes = np.searchsorted(edges[1:-1], values, side="right")
    codes[missing] = len(edges) - 1
    names = [
        _range_name(edges[i], edges[i + 1], column, last=i == len(edges) - 2)
        for i in range(len(edges) - 1)
    ]
    bars = _bars([*names, MISSING], codes, highlighted)
    return bars[:-1], bars[-1] if column.has_missing else None


def _edges(column: NumericColumn) -> NDArray[np.float64]:
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


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _title(bar: Bar) -> Markup:
    text = f"{bar.name}: {_percent(bar.share)} of all rows"
    if bar.highlighted_share is not None:
        text += f", {_percent(bar.highlighted_share)} of the highlighted ones"
    return element("title", text)


def _box(class_: str, x: float, y: float, width: float, height: float) -> Markup:
    return element(
        "rect",
        class_=class_,
        x=round(x, 1),
        y=round(y, 1),
        width=round(max(width, 0.0), 1),
        height=round(max(height, 0.0), 1),
    )


def _histogram(column: NumericColumn, bars: Sequence[Bar], missing: Bar | None) -> Markup:
    drawn = [*bars, *([missing] if missing is not None else [])]
    top = max([*(b.share for b in drawn), *(b.highlighted_share or 0.0 for b in drawn), 1e-9])
    # The missing bar stands apart at the right, behind a gap.
    area = WIDTH - (34 if missing is not None else 0)
    step = area / len(bars)
    groups = []
    for i, bar in enumerate(drawn):
        alone = missing is not None and i == len(bars)
        x = WIDTH - 22.0 if alone else i * step
        width = 20.0 if alone else step - min(1.5, step / 4)
        groups.append(_column_bar(bar, x, width, top, "gone" if alone else "all"))
    baseline = _box("axis", 0, _PLOT_HEIGHT, area, 1)
    texts = [
        _label(f"{column.lower:g}", 0, "start"),
        _label(f"{column.upper:g}", area, "end"),
        None if missing is None else _label("none", WIDTH, "end"),
    ]
    described = f"Histogram of {column.name} from {column.lower:g} to {column.upper:g}"
    return _svg(HEIGHT - 10, described, join(groups, baseline, texts))


def _column_bar(bar: Bar, x: float, width: float, top: float, class_: str) -> Markup:
    height = _PLOT_HEIGHT * bar.share / top
    boxes = [_box(class_, x, _PLOT_HEIGHT - height, width, height)]
    if bar.highlighted_share is not None:
        inner = _PLOT_HEIGHT * bar.highlighted_share / top
        boxes.append(_box("part", x + width * 0.3, _PLOT_HEIGHT - inner, width * 0.4, inner))
    return element("g", _title(bar), boxes)


def _label(text: str, x: float, anchor: str) -> Markup:
    return element("text", text, x=round(x, 1), y=_PLOT_HEIGHT + 14, text_anchor=anchor)


def _level_plot(name: str, bars: Sequence[Bar]) -> Markup:
    shown = list(bars)
    if len(bars) > MAX_LEVELS:
        # Chosen by the synthetic rows, which are public; in the declared order.
        ranked = sorted(range(len(bars)), key=lambda i: -bars[i].share)[: MAX_LEVELS - 1]
        rest = [bars[i] for i in range(len(bars)) if i not in ranked]
        shown = [bars[i] for i in sorted(ranked)]
        inside = [bar.highlighted_share for bar in rest]
        shown.append(
            Bar(
                name=f"{len(rest)} others",
                share=sum(bar.share for bar in rest),
                highlighted_share=None
                if any(share is None for share in inside)
                else sum(share or 0.0 for share in inside),
            )
        )
    top = max([*(b.share for b in shown), *(b.highlighted_share or 0.0 for b in shown), 1e-9])
    length = WIDTH - _NAME_WIDTH - 42
    groups = []
    for i, bar in enumerate(shown):
        y = i * _ROW_HEIGHT
        boxes = [_box("all", _NAME_WIDTH, y + 2, max(length * bar.share / top, 0.5), 13)]
        if bar.highlighted_share is not None:
            inner = length * bar.highlighted_share / top
            boxes.append(_box("part", _NAME_WIDTH, y + 6, inner, 5))
        reach = max(bar.share, bar.highlighted_share or 0.0)
        groups.append(
            element(
                "g",
                _title(bar),
                element(
                    "text", _shortened(bar.name), x=_NAME_WIDTH - 6, y=y + 12.5, text_anchor="end"
                ),
                boxes,
                element(
                    "text",
                    _percent(bar.share),
                    class_="value",
                    x=round(_NAME_WIDTH + length * reach / top + 4, 1),
                    y=y + 12.5,
                ),
            )
        )
    return _svg(len(shown) * _ROW_HEIGHT + 2, f"Shares of the levels of {name}", join(groups))


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_SIGNS else name[: _NAME_SIGNS - 1] + "…"


def _svg(height: int, described: str, content: Markup) -> Markup:
    return element(
        "svg",
        content,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=described,
    )
