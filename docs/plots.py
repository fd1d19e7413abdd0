"""Draw numbers as SVG: curves against epsilon in panels, and dots in rows.

One file serves light and dark pages. It has no script and nothing from elsewhere, and the same
numbers give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from xml.sax.saxutils import escape

_STYLE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:12px;
fill:#1f2328}
.t{font-weight:600;font-size:13px}.s{fill:#59636e}.g{stroke:#d8dee4}.r{stroke:#59636e}
.c0{fill:#0969da;stroke:#0969da}.c1{fill:#bc4c00;stroke:#bc4c00}.c2{fill:#8250df;stroke:#8250df}
.c3{fill:#59636e;stroke:#59636e}.l{fill:none;stroke-width:2}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.s{fill:#a5afb9}.g{stroke:#30363d}.r{stroke:#a5afb9}
.c0{fill:#58a6ff;stroke:#58a6ff}.c1{fill:#f0883e;stroke:#f0883e}.c2{fill:#bc8cff;stroke:#bc8cff}
.c3{fill:#a5afb9;stroke:#a5afb9}.l{fill:none}}
"""

Series = Mapping[str, Sequence[tuple[float, float]]]
"""The points of each named curve, as pairs of epsilon and value."""


@dataclass(frozen=True)
class Panel:
    """One table: its curves, and a level that does not depend on epsilon."""

    title: str
    curves: Series
    level: float


class _Drawing:
    """Parts of a picture, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(title)}">\n<style>\n{_STYLE}</style>\n'
        )
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, words: str, style: str = "", *, anchor: str = "start"
    ) -> None:
        self._parts.append(
            f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def line(self, style: str, points: Sequence[tuple[float, float]], dashes: str = "") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(f'<polyline class="{style}" fill="none" points="{path}"{dashed}/>')

    def mark(self, place: int, x: float, y: float) -> None:
        """Draw the mark of a series: a disc, a square, a diamond or a bar."""
        style = f'class="c{place}"'
        if place == 0:
            self._parts.append(f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
            return
        width, height = ((7, 7), (7, 7), (2, 12))[place - 1]
        turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if place == 2 else ""
        self._parts.append(
            f'<rect {style} x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width}" '
            f'height="{height}"{turned}/>'
        )

    def legend(
        self, names: Sequence[str], x: float, y: float, *, marks: Sequence[int] = range(4)
    ) -> None:
        """Draw the mark of each series beside its name; the last one of four is a level."""
        for place, name in zip(marks, names, strict=False):
            if place == 3 and len(names) == 4:
                self.line("r", [(x - 8, y - 4), (x + 6, y - 4)], "5 4")
            else:
                self.mark(place, x, y - 4)
            self.text(x + 10, y, name)
            x += 34 + 7 * len(name)

    def svg(self) -> str:
        return self._head + "\n".join(self._parts) + "\n</svg>\n"


def against_epsilon(
    panels: Sequence[Panel], names: Sequence[str], *, level: str, title: str, bottom: float
) -> str:
    """Return panels side by side: a value against epsilon, on one scale from ``bottom`` to 1."""
    left, width, top, height = 44, 290, 74, 200
    drawing = _Drawing(left + width * len(panels), top + height + 46, title)
    drawing.legend([*names, level], left + 6, 18)
    ticks = sorted({e for panel in panels for line in panel.curves.values() for e, _ in line})
    for place, panel in enumerate(panels):
        frame = _Frame(left + place * width, top, width - 26, height, ticks, bottom)
        drawing.text(frame.x, top - 22, panel.title, "t")
        for value in (bottom + step * (1 - bottom) / 5 for step in range(6)):
            drawing.line("g", frame.across(value))
            if not place:
                drawing.text(frame.x - 6, frame.y_of(value) + 4, f"{value:.1f}", "s", anchor="end")
        for epsilon in ticks:
            at = frame.x_of(epsilon), top + height + 18
            drawing.text(*at, f"{epsilon:g}", "s", anchor="middle")
        drawing.line("r", frame.across(panel.level), "5 4")
        for number, name in enumerate(names):
            points = [(frame.x_of(e), frame.y_of(value)) for e, value in panel.curves[name]]
            if points:
                drawing.line(f"c{number} l", points)
            for x, y in points:
                drawing.mark(number, x, y)
    drawing.text(left, top + height + 38, "epsilon, on a logarithmic scale", "s")
    return drawing.svg()


@dataclass(frozen=True)
class _Frame:
    """The place of one panel, and its two scales."""

    x: int
    y: int
    width: int
    height: int
    ticks: Sequence[float]
    bottom: float

    def x_of(self, epsilon: float) -> float:
        low, high = log10(self.ticks[0]), log10(self.ticks[-1])
        return self.x + 14 + (log10(epsilon) - low) / (high - low) * (self.width - 28)

    def y_of(self, value: float) -> float:
        return self.y + (1 - value) / (1 - self.bottom) * self.height

    def across(self, value: float) -> list[tuple[float, float]]:
        return [(self.x, self.y_of(value)), (self.x + self.width, self.y_of(value))]


def dots(rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], *, title: str) -> str:
    """Return rows of marks on one scale from 0.5 to 1, one mark for each name."""
    left, width, step, top = 230, 560, 24, 64
    bottom = top + step * len(rows)
    drawing = _Drawing(left + width + 30, bottom + 6, title)
    drawing.legend(names, left, 18, marks=_DOT_MARKS)
    for tick in range(6):
        x = left + tick * width / 5
        drawing.line("g", [(x, top - 14), (x, bottom - 8)])
        drawing.text(x, top - 22, f"{0.5 + tick / 10:.1f}", "s", anchor="middle")
    for place, (name, values) in enumerate(rows):
        y = top + place * step
        drawing.text(left - 12, y + 4, name, anchor="end")
        marks = [left + (max(value, 0.5) - 0.5) * 2 * width for value in values]
        drawing.line("g", [(min(marks), y), (max(marks), y)])
        for number in reversed(range(len(marks))):
            drawing.mark(_DOT_MARKS[number], marks[number], y)
    return drawing.svg()


_DOT_MARKS = (0, 1, 3)
