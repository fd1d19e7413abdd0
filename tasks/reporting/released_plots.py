"""Plots of released shares, each with its 95 % interval, for a bundle with tables."""

import io

import numpy as np
import pandas as pd

from privacy.arrays import Floats
from storage.schema.columns import NumericColumn
from storage.schema.table import TableSchema
from tasks.reporting.plots import (
    MISSING,
    TAIL,
    Bar,
    Plot,
    highlighted_level,
    most_frequent,
    range_name,
    ticks,
)
from tasks.reporting.released_tables import DEVIATIONS

_NUMBERS = ["share", "low", "high", "noise_patients"]

_Share = tuple[float | None, tuple[float, float] | None]
"""A share and its interval, or None."""


def released_plots(tables: bytes, schema: TableSchema) -> list[Plot]:
    """Return a plot of the released shares of every column in order, then of the labels."""
    own = schema.labels.parts
    level, of_first = highlighted_level(schema.label), own[schema.label.name]
    names = schema.labels.level_names
    coloured = [name for name, of in zip(names, of_first, strict=True) if of == level]
    shown = pd.read_parquet(io.BytesIO(tables), filters=[("by", "in", ["", schema.labels.name])])
    shown = shown[(shown["by"] == "") | shown["by_level"].isin(coloured)]
    by_column = dict(list(shown.groupby("column", sort=False)))
    together = by_column[schema.labels.name]
    of_label = by_column[schema.label.name]
    (highlighted,) = of_label[of_label["level"] == level][_NUMBERS].to_numpy()
    plots: list[Plot] = []
    for column in (*schema.columns, *([None] * len(own))):
        name = [*own][len(plots) - len(schema.columns)] if column is None else column.name
        cells = by_column[name]
        alone, inside = cells[cells["by"] == ""], cells[cells["by"] != ""]
        inside = _summed(inside, together)
        whole = alone[_NUMBERS].to_numpy()
        parts: list[_Share] = [(None, None)] * len(alone)
        if column is not None:
            parts = _within(inside[_NUMBERS].to_numpy(), highlighted)
        levels = alone["level"].tolist()
        if isinstance(column, NumericColumn):
            levels[: column.n_bins] = [_bin_name(column, i) for i in range(column.n_bins)]
        if column is not None and column.has_missing:
            levels[-1] = MISSING
        bars = [
            Bar(text, share, part, (low, high), between, of="all patients")
            for text, (share, low, high, _), (part, between) in zip(
                levels, whole.tolist(), parts, strict=True
            )
        ]
        notes = [f"noise ± {DEVIATIONS * whole[:, -1].max():,.0f} patients"]
        if lost := sum(bar.lost for bar in bars):
            notes.append(f"{lost} of {len(bars)} lost in noise")
        if column is not None and bars[0].highlighted_share is None:
            notes.append(f"{schema.label.name} = {level} is lost in noise")
        if isinstance(column, NumericColumn):
            plots.append(_along_axis(column, bars, notes))
        else:
            plots.append(Plot(name=name, bars=most_frequent(bars), notes=tuple(notes)))
    return plots


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


def _along_axis(column: NumericColumn, bars: list[Bar], notes: list[str]) -> Plot:
    """Return a plot of the bins without tails of at most `TAIL` at either end."""
    n = len(column.bin_starts)
    shares = np.array([bar.share for bar in bars[:n]])
    total = max(float(shares.sum()), 1e-9)
    first = int(np.searchsorted(shares.cumsum(), TAIL * total, side="right"))
    last = n - 1 - int(np.searchsorted(shares[::-1].cumsum(), TAIL * total, side="right"))
    first, last = min(first, n - 1), max(last, min(first, n - 1))
    outside = float(shares[:first].sum() + shares[last + 1 :].sum())
    edges = [*column.bin_starts, column.upper][first : last + 2]
    ends = [*edges[:-1], edges[-1] + (last == n - 1)]
    single = column.kind == "integer" and bool(np.all(np.diff(ends) == 1.0))
    return Plot(
        name=column.name,
        bars=bars[first : last + 1],
        ticks=ticks([f"{edge:.6g}" for edge in edges], single=single),
        missing=bars[n] if column.has_missing else None,
        notes=(*notes, *_outside(outside, n_bins=n - (last + 1 - first))),
    )


def _outside(share: float, *, n_bins: int) -> tuple[str, ...]:
    if not n_bins:
        return ()
    bins = "1 bin" if n_bins == 1 else f"{n_bins} bins"
    return (f"{bins} beyond the axis: {100 * share:.1f} %",)


def _bin_name(column: NumericColumn, i: int) -> str:
    edges = [*column.bin_starts, column.upper]
    last = i == column.n_bins - 1
    above = edges[i + 1] + 1 if last and column.kind == "integer" else edges[i + 1]
    return range_name(edges[i], above, column, last=last)
