"""Rows and printed figures that the report is made of, and tables of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.results import RESULTS, ResultRow, read_rows

PAPERS = Path(__file__).resolve().parent / "papers.toml"
DIGITS = 3
HIDDEN = ("x", "y", "label", "png", "outcome", "limit_seconds", "rows", "look", "part")
"""Settings that a table does not show."""

METRICS = ("auc", "accuracy", "log_loss", "calibration_error", "tvd_1way", "tvd_2way",
           "cnn_accuracy", "teacher_accuracy")  # fmt: skip
NAMES = {
    "clustmix": "ClustMix", "naive_bayes": "naive Bayes", "aim": "AIM", "mst": "MST",
    "real": "real rows", "dp_cda": "DP-CDA", "dpgm": "DPGM", "dp_kmeans": "DP k-means",
    "dp_merf": "DP-MERF", "mwem": "MWEM", "dp_mix": "DPMix", "mbi": "mixture of mbi",
    "local_perturbation": "local perturbation", "random_projection": "random projection",
}  # fmt: skip
TITLES = {
    "auc": "AUC", "tvd_1way": "1-way", "tvd_2way": "2-way", "log_loss": "log-loss",
    "cnn_accuracy": "accuracy of a network", "teacher_accuracy": "released classifier",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a table, and the commands of the rows that it is made of."""

    cells: tuple[str, ...]
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A header and lines, under a title."""

    header: tuple[str, ...]
    lines: tuple[Line, ...]
    title: str = ""

    def markdown(self) -> str:
        """Lay the table out in Markdown."""
        every = [self.header, ["-"] * len(self.header), *(line.cells for line in self.lines)]
        return "".join(f"|{'|'.join(cells)}|\n" for cells in every)


@dataclass(frozen=True)
class Stored:
    """Rows of today's programs, and the figures that papers print."""

    rows: tuple[ResultRow, ...]
    printed: tuple[dict[str, Any], ...]
    protocols: dict[str, dict[str, str]]

    @classmethod
    def read(cls, folder: Path = RESULTS, papers: Path = PAPERS) -> Stored:
        """Read all files of rows, in the order of their names."""
        rows = [row for path in sorted(folder.glob("*.json")) for row in read_rows(path)]
        found = tomllib.loads(papers.read_text(encoding="utf-8")) if papers.is_file() else {}
        return cls(
            tuple(row for row in rows if not row.former),
            tuple(found.get("figure", ())),
            found.get("protocol", {}),
        )

    @cached_property
    def _suites(self) -> dict[str | None, list[ResultRow]]:
        found: dict[str | None, list[ResultRow]] = {}
        for row in self.rows:
            found.setdefault(row.suite, []).append(row)
        return found

    def of(self, suite: str, **facts: Any) -> list[ResultRow]:
        """Return the rows of a suite that have these facts; of settings where no field has it."""
        return [
            row
            for row in self._suites.get(suite, [])
            if all(getattr(row, k, row.settings.get(k)) == v for k, v in facts.items())
        ]

    def figures(self, **facts: Any) -> list[dict[str, Any]]:
        """Return the printed figures that have these facts."""
        return [one for one in self.printed if all(one.get(k) == v for k, v in facts.items())]


def name_of(row: ResultRow) -> str:
    """Return the name of a method, and the form of a paper."""
    form = {"published": ", as printed", "accounted": ", accounted"}.get(row.analysis, "")
    return NAMES.get(row.method, row.method) + form


def value_of(row: ResultRow, name: str) -> float | None:
    """Return a figure of a row by name, of its fields or of its others."""
    return getattr(row, name) if hasattr(row, name) else row.figures.get(name)


def values_of(rows: Iterable[ResultRow], name: str) -> list[float]:
    """Return the figures of rows that have it."""
    return [value for row in rows if (value := value_of(row, name)) is not None]


def figure(values: Iterable[float | None], digits: int = DIGITS) -> str:
    """Write the mean of some runs, with their standard deviation where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f"±{stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{mean(known):.{digits}f}{spread}"


def shown(rows: Sequence[ResultRow], name: str, digits: int | None = None) -> str:
    """Write a figure of some runs, or that they did not end."""
    values = values_of(rows, name)
    if not values:
        return next((str(row.outcome) for row in rows if row.outcome), "-")
    large = max(map(abs, values))
    return figure(values, (0 if large >= 100 else DIGITS) if digits is None else digits)


def epsilon_text(epsilon: float | None) -> str:
    """Write an epsilon, or that there is none."""
    return "-" if epsilon is None else f"{epsilon:g}"


def commands_of(rows: Iterable[ResultRow]) -> tuple[str, ...]:
    """Return the commands of rows."""
    return tuple(row.command for row in rows if row.command)


def line(cells: Iterable[str], rows: Iterable[ResultRow] = ()) -> Line:
    """Make a line of cells and of the rows behind them."""
    return Line(cells=tuple(cells), commands=commands_of(rows))


def grouped(rows: Iterable[ResultRow], *facts: str) -> dict[tuple[Any, ...], list[ResultRow]]:
    """Put rows together by some fields or settings, in the order of the rows."""
    found: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        key = tuple(getattr(row, fact, row.settings.get(fact)) for fact in facts)
        found.setdefault(key, []).append(row)
    return found


def table_of(
    rows: Iterable[ResultRow], names: Sequence[str] = (), *, title: str = "", settings: bool = True
) -> list[Table]:
    """Lay out rows of any suite: a line for what differs in more than the draw; none of no rows.

    Shown are the figures named, or all that a row has.
    """
    groups: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        kept = {k: v for k, v in row.settings.items() if k not in HIDDEN} if settings else {}
        key = (row.dataset, name_of(row), row.epsilon, json.dumps(kept, sort_keys=True))
        groups.setdefault(key, []).append(row)
    if not groups:
        return []
    every = [row for group in groups.values() for row in group]
    named = names or [
        *METRICS, *dict.fromkeys(name for row in every for name in row.figures), "cpu_seconds",
    ]  # fmt: skip
    columns = [name for name in named if values_of(every, name)]
    ended = any(row.outcome for row in every)
    keys = list(dict.fromkeys(k for group in groups for k in json.loads(group[3])))
    lines = [
        line(
            (
                dataset, method, epsilon_text(epsilon),
                *(_setting(json.loads(text).get(k)) for k in keys),
                str(len(group)),
                *(shown(group, name) for name in columns),
                *((group[0].outcome or "-",) if ended else ()),
            ),
            group,
        )
        for (dataset, method, epsilon, text), group in groups.items()
    ]  # fmt: skip
    titles = (TITLES.get(name, name.replace("_", " ")) for name in columns)
    header = ("data", "method", "epsilon", *(k.replace("_", " ") for k in keys), "runs", *titles)
    header += ("outcome",) if ended else ()
    return [Table(header=header, lines=tuple(lines), title=title)]


def _setting(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
