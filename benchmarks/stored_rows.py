"""Rows and printed figures that the report is made of, and tables of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from benchmarks.results import OF_IMAGES, RESULTS, SCORED, ResultRow, read_rows

PAPERS = Path(__file__).resolve().parent / "papers.toml"
DIGITS = 3
HIDDEN = ("x", "y", "label", "png", "outcome", "limit_seconds", "rows", "look", "part")
"""Settings that a table does not show."""

LAYOUT = tomllib.loads(Path(__file__).with_name("report.toml").read_text("utf-8"))
NAMES: dict[str, str] = LAYOUT["names"]
TITLES: dict[str, str] = LAYOUT["titles"]

Rows = Iterable[ResultRow]
Entry = tuple[Iterable[str], Rows]
"""Cells of a line, and the rows that it is made of."""


class Table(NamedTuple):
    """A header and lines, under a title; a line is cells, and commands of rows behind them."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    def markdown(self) -> str:
        """Lay the table out in Markdown."""
        every = [self.header, ["-"] * len(self.header), *(cells for cells, _ in self.lines)]
        return "".join(f"|{'|'.join(cells)}|\n" for cells in every)


@dataclass(frozen=True)
class Stored:
    """Measured rows, and the figures that papers print."""

    rows: tuple[ResultRow, ...]
    printed: tuple[dict[str, Any], ...]
    protocols: dict[str, dict[str, str]]

    @classmethod
    def read(cls, folder: Path = RESULTS, papers: Path = PAPERS) -> Stored:
        """Read all files of rows, in the order of their names."""
        rows = [row for path in sorted(folder.glob("*.json")) for row in read_rows(path)]
        found = tomllib.loads(papers.read_text(encoding="utf-8")) if papers.is_file() else {}
        return cls(tuple(rows), tuple(found.get("figure", ())), found.get("protocol", {}))

    @cached_property
    def _suites(self) -> dict[tuple[Any, ...], list[ResultRow]]:
        return grouped(self.rows, "suite")

    def of(self, suite: str, **facts: Any) -> list[ResultRow]:
        """Return the rows of a suite that have these facts; of settings where no field has it."""
        return [
            row
            for row in self._suites.get((suite,), [])
            if all(getattr(row, k, row.settings.get(k)) == v for k, v in facts.items())
        ]

    def figures(self, **facts: Any) -> list[dict[str, Any]]:
        """Return the printed figures that have these facts."""
        return [one for one in self.printed if all(one.get(k) == v for k, v in facts.items())]


def tabled(entries_of: Callable[[Stored], Iterable[Entry]]) -> Callable[[Stored], Table]:
    """Make a table of what a function yields: cells of lines, and the rows behind each.

    ``report.toml`` has its title and the names of its columns.
    """
    layout = LAYOUT["tables"][entries_of.__name__]
    return lambda stored: made_table(layout["title"], layout["columns"], entries_of(stored))


def made_table(title: str, header: Iterable[str], entries: Iterable[Entry]) -> Table:
    lines = (
        (tuple(cells), tuple(row.command for row in rows if row.command)) for cells, rows in entries
    )
    return Table(title, tuple(header), tuple(lines))


def name_of(row: ResultRow) -> str:
    form = {"published": ", as printed", "accounted": ", accounted"}.get(row.analysis, "")
    return NAMES.get(row.method, row.method) + form


def value_of(row: ResultRow, name: str) -> Any:
    return getattr(row, name) if hasattr(row, name) else row.figures.get(name)


def values_of(rows: Rows, name: str) -> list[float]:
    return [value for row in rows if (value := value_of(row, name)) is not None]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation, which is 0 of one value."""
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def shown(rows: Sequence[ResultRow], name: str, digits: int | None = None) -> str:
    """Write a figure of some runs, or that they did not end."""
    values = values_of(rows, name)
    if not values:
        return next((str(row.outcome) for row in rows if row.outcome), "-")
    if digits is None:
        digits = 0 if max(map(abs, values)) >= 100 else DIGITS
    middle, deviation = spread(values)
    return f"{middle:.{digits}f}" + (f"±{deviation:.{digits}f}" if len(values) > 1 else "")


def epsilon_text(epsilon: float | None) -> str:
    return "-" if epsilon is None else f"{epsilon:g}"


def grouped(rows: Rows, *facts: str) -> dict[tuple[Any, ...], list[ResultRow]]:
    """Put rows together by some fields or settings, in the order of the rows."""
    found: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        key = tuple(getattr(row, fact, row.settings.get(fact)) for fact in facts)
        found.setdefault(key, []).append(row)
    return found


def table_of(rows: Rows, *names: str, title: str) -> Table:
    """Lay out rows of any suite: a line for what differs in more than the draw.

    Shown are the figures named, or all that a row has.
    """
    groups: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        kept = {k: v for k, v in row.settings.items() if k not in HIDDEN}
        key = (row.dataset, name_of(row), row.epsilon, json.dumps(kept, sort_keys=True))
        groups.setdefault(key, []).append(row)
    every = [row for group in groups.values() for row in group]
    others = dict.fromkeys(name for row in every for name in row.figures)
    names = names or (*SCORED, *OF_IMAGES, *others, "cpu_seconds")
    columns = [name for name in names if values_of(every, name)]
    keys = list(dict.fromkeys(k for group in groups for k in json.loads(group[3])))

    def entries() -> Iterable[Entry]:
        for (dataset, method, epsilon, text), group in groups.items():
            cells = [dataset, method, epsilon_text(epsilon)]
            values = [json.loads(text).get(k) for k in keys]
            cells += [f"{v:.4g}" if isinstance(v, float) else "-" if v is None else str(v)
                      for v in values]  # fmt: skip
            figures = [shown(group, name) for name in columns]
            if not any(values_of(group, name) for name in columns):
                figures[1:] = ["-" for _ in figures[1:]]
            yield [*cells, str(len(group)), *figures], group

    words = [k.replace("_", " ") for k in keys]
    words += ["runs", *(TITLES.get(name, name.replace("_", " ")) for name in columns)]
    return made_table(title, ("data", "method", "epsilon", *words), entries())
