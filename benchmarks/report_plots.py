"""Plots of the report as SVG, by Matplotlib: one file serves light and dark pages.

The same numbers give the same bytes: no date, no random names, text as text. No panel is no
picture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

COLOURS = ("#0969da", "#bc4c00", "#8250df", "#1a7f37", "#9a6700", "#bf3989")
DARK = ("#58a6ff", "#f0883e", "#bc8cff", "#3fb950", "#d29922", "#f778ba")
MARKS = ("o", "s", "D", "^", "v", "P")
INK, QUIET, LINES = "#1f2328", "#59636e", "#d8dee4"
_INK_OF = {INK: "#e6edf3", QUIET: "#a5afb9", LINES: "#30363d"}
_INK_OF |= dict(zip(COLOURS, DARK, strict=True))

_SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "clustmix", "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "axes.edgecolor": LINES,
    "text.color": INK, "axes.labelcolor": QUIET, "xtick.color": QUIET, "ytick.color": QUIET,
    "xtick.labelcolor": QUIET, "axes.titlecolor": INK, "grid.color": LINES,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip

Points = Sequence[tuple[float, float, float]]
"""Place, mean, and half of the error bar."""


class Panel(NamedTuple):
    """One plot: named curves, and a level that does not depend on what is drawn along."""

    title: str
    curves: Mapping[str, Points]
    level: float | None = None


def _drawn(
    size: tuple[float, float], columns: int, draw: Callable[[list[Axes], Figure], None], n: int
) -> str:
    """Draw `n` panels, and return them as SVG with the colours of both kinds of pages."""
    if not n:
        return ""
    with mpl.rc_context(_SETTINGS):
        rows = -(-n // columns)
        figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.5), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for one in axes:
            one.tick_params(length=0)
            one.set_visible(one in axes[:n])
        draw(axes[:n], figure)
        file = BytesIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    for place, colour in enumerate(_INK_OF):
        text = text.replace(colour, f"var(--c{place})")
    light, dark = (
        ";".join(f"--c{place}:{one}" for place, one in enumerate(each))
        for each in (_INK_OF, _INK_OF.values())
    )
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    text = re.sub(r"(<svg [^>]*>)", lambda found: found[1] + style, text, count=1, flags=re.DOTALL)
    family = "system-ui,-apple-system,&#39;Segoe UI&#39;,Helvetica,Arial,sans-serif"
    return re.sub(r"'DejaVu Sans'(, [a-z-]+)?", family, text) + "\n"


def curves(
    panels: Sequence[Panel], *, across: str, value: str, columns: int = 3,
    bounds: tuple[float, float] | None = None, scale: str = "linear", level: str = "real rows",
) -> str:  # fmt: skip
    """Draw curves with error bars in panels; a curve has one colour in all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))

    def draw(axes: list[Axes], figure: Figure) -> None:
        handles: dict[str, Any] = {}
        for one, panel in zip(axes, panels, strict=True):
            size = 10 if columns < 4 else 8.5
            one.set_title(panel.title, fontsize=size, loc="left", fontweight="bold")
            for name, points in panel.curves.items():
                place = names.index(name)
                x, y, bar = (np.array(part) for part in zip(*points, strict=True))
                x = x * 1.05**place if bar.any() else x  # bars stand side by side
                handles[name] = one.errorbar(
                    x, y, yerr=bar if bar.any() else None, label=name, capsize=2.5, markersize=4.5,
                    color=COLOURS[place % len(COLOURS)], marker=MARKS[place % len(MARKS)],
                    linestyle="-", linewidth=1.6, elinewidth=1,
                )  # fmt: skip
            if panel.level is not None:
                handles[level] = one.axhline(panel.level, color=QUIET, linestyle=(0, (4, 3)))
            one.set_xscale("log")
            ticks = sorted({x for points in panel.curves.values() for x, _, _ in points})
            shown = ticks[:1]
            shown += [t for a, t in pairwise(ticks) if t / a > 1.6 and t / shown[-1] > 1.6]
            one.set_xticks(shown, [f"{tick:g}" for tick in shown])
            one.set_xticks([], minor=True)
            one.set_yscale(scale)
            if bounds:
                one.set_ylim(*bounds)
            one.grid(axis="y", linewidth=0.6)
            one.set_xlabel(across)
        for one in axes[::columns]:
            one.set_ylabel(value)
        figure.legend(
            list(handles.values()), list(handles), loc="outside upper left", fontsize=9,
            ncols=(2, 3, 5)[min(len(panels), columns, 3) - 1],
        )  # fmt: skip

    size = (4.6, 2.9) if len(panels) == 1 else (3.1, 2.5)
    return _drawn(size, max(min(columns, len(panels)), 1), draw, len(panels))


def dots(
    rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], *, bottom: float
) -> str:

    def draw(axes: list[Axes], figure: Figure) -> None:
        (one,) = axes
        for y, (_, values) in enumerate(rows):
            shown = [max(value, bottom) for value in values]
            one.plot([min(shown), max(shown)], [y, y], color=LINES, zorder=1)
        for place, name in enumerate(names):
            colour = QUIET if name == "real rows" else COLOURS[place]
            mark = "|" if name == "real rows" else MARKS[place]
            x = [max(values[place], bottom) for _, values in rows]
            one.plot(x, range(len(rows)), mark, color=colour, label=name, markersize=6, zorder=3)
        one.set_yticks(range(len(rows)), [name for name, _ in rows])
        one.set_ylim(len(rows) - 0.4, -0.6)
        one.grid(axis="x", linewidth=0.6)
        one.set_axisbelow(True)
        figure.legend(loc="outside upper left", ncols=4, fontsize=9)

    return _drawn((8.2, 0.24 * len(rows) + 0.3), 1, draw, int(bool(rows)))


def places(
    panels: Sequence[tuple[str, Mapping[str, tuple[float, float]]]], *, across: str, value: str
) -> str:

    def draw(axes: list[Axes], _: Figure) -> None:
        for one, (title, marks) in zip(axes, panels, strict=True):
            one.set_title(title, fontsize=10, loc="left", fontweight="bold")
            ordered = sorted(marks.items(), key=lambda mark: mark[1][1])
            heights = np.array([y for _, (_, y) in ordered])
            gap = (np.ptp(heights) or 1.0) / 18
            steps, top = gap * np.arange(len(heights)), heights[-1] + gap
            # Labels that would meet go up, and not beyond the top.
            heights = np.maximum.accumulate(heights - steps)
            heights = np.minimum(heights, top - steps[-1]) + steps
            for place, ((name, (x, y)), height) in enumerate(zip(ordered, heights, strict=True)):
                colour = COLOURS[place % 6]
                one.plot([x], [y], MARKS[place % 6], color=colour, markersize=6)
                one.annotate(
                    name, (x, y), (x * 1.2, height), fontsize=8, color=colour, va="center",
                    arrowprops={"arrowstyle": "-", "color": LINES, "shrinkA": 0, "shrinkB": 3},
                )  # fmt: skip
            one.set_xscale("log")
            one.margins(x=0.3, y=0.1)
            one.grid(linewidth=0.6)
            one.tick_params(length=0, which="minor")
            one.set_xlabel(across)
        axes[0].set_ylabel(value)

    return _drawn((5.2, 4.2), max(len(panels), 1), draw, len(panels))


def scatters(
    panels: Sequence[tuple[str, NDArray[np.float64], NDArray[np.int64]]], *, columns: int
) -> str:

    def draw(axes: list[Axes], _: Figure) -> None:
        for one, (title, points, labels) in zip(axes, panels, strict=True):
            one.set_title(title, fontsize=8, loc="left")
            for label in np.unique(labels):
                x, y = points[labels == label].T
                one.plot(x, y, ".", color=COLOURS[label], markersize=2.5)
            one.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[], yticks=[], aspect="equal")

    return _drawn((1.35, 1.45), columns, draw, len(panels))
