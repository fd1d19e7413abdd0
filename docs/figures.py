"""Write the figures of README.md from benchmarks/results: ``python docs/figures.py``.

The text between the two marks is replaced. Without results it says so and gives no figure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: docs/figures.py -->\n", "<!-- end of figures -->"

_METHODS = {
    ("real", "none"): "real rows, no privacy",
    ("naive_bayes", "proven"): "naive Bayes, proven",
    ("clustmix", "proven"): "ClustMix, proven",
    ("clustmix", "published"): "ClustMix as published, epsilon not proven",
}


def figures() -> str:
    """Return the Markdown that stands between the marks."""
    utility = _groups(_rows("utility.json"))
    cost = _groups([*_rows("cost.json"), *_rows("million_rows.json")], by_rows=True)
    if not utility and not cost:
        return "No figures are stored for this version. Run `make bench` to measure them.\n"
    parts = []
    if utility:
        parts.append(
            "| table | training rows | epsilon | delta | AUC on real test rows | runs |\n"
            "|---|---|---|---|---|---|\n" + "".join(map(_utility_line, utility))
        )
    if cost:
        parts.append(
            "| one release of | rows read | wall seconds | own stages, seconds | peak memory, MiB |"
            " runs |\n|---|---|---|---|---|---|\n" + "".join(map(_cost_line, cost))
        )
    return "\n".join(parts)


def with_figures(readme: str) -> str:
    """Return the text of README.md with its figures written anew."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + figures() + "\n" + END + after


def _rows(name: str) -> list[dict[str, Any]]:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _groups(rows: Iterable[dict[str, Any]], *, by_rows: bool = False) -> list[list[dict[str, Any]]]:
    """Put the runs of one table and method together, in the order of the file."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["dataset"], row["method"], row["analysis"], row["rows"] if by_rows else None)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _utility_line(group: list[dict[str, Any]]) -> str:
    first, aucs = group[0], [row["auc"] for row in group]
    private = first["epsilon"] is not None
    cells = (
        first["dataset"],
        _METHODS[first["method"], first["analysis"]],
        f"{first['epsilon']:g}" if private else "-",
        f"{first['delta']:g}" if private else "-",
        f"{mean(aucs):.3f}" + (f" ± {stdev(aucs):.3f}" if len(aucs) > 1 else ""),
        str(len(group)),
    )
    return _line(cells)


def _cost_line(group: list[dict[str, Any]]) -> str:
    first = group[0]
    cells = (
        f"{first['dataset']}, {_METHODS[first['method'], first['analysis']]}",
        f"{first['rows']:,}",
        f"{mean(row['wall_seconds'] for row in group):.1f}",
        f"{mean(row['method_seconds'] for row in group):.1f}",
        f"{max(row['peak_rss_mib'] for row in group):,.0f}",
        str(len(group)),
    )
    return _line(cells)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    README.write_text(with_figures(README.read_text(encoding="utf-8")), encoding="utf-8")
