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
    releases = [row for row in _rows("releases.json") if _is_compared(row)]
    beside = {row["dataset"] for row in releases if row["method"] == "naive_bayes"}
    releases = [row for row in releases if row["dataset"] in beside]
    own = [
        row
        for row in releases
        if (row["method"], row["source"], row["epsilon"]) == ("clustmix", "bundle", 1.0)
    ]
    generated = [row for row in _rows("million_rows.json") if row["source"] == "bundle"]
    cost = _groups([*own, *generated])
    if not releases and not cost:
        return "No figures are stored for this version. Run `make bench` to measure them.\n"
    parts = []
    if releases:
        parts.append(
            "| table | training rows | epsilon | delta | AUC on real test rows | runs | scored |\n"
            "|---|---|---|---|---|---|---|\n" + "".join(map(_utility_line, _groups(releases)))
        )
    untouched = _untouched(_rows("public_tables.json"))
    if untouched:
        parts.append(
            "| table beyond those that the method was made on | AUC of a release at epsilon 1 |"
            " naive Bayes | real rows | log-loss | naive Bayes | real rows | splits |\n"
            "|---|---|---|---|---|---|---|---|\n" + "".join(untouched)
        )
    both = [*_rows("releases.json"), *_rows("image_releases.json")]
    images = [row for row in both if _is_of_images(row)]
    if images:
        parts.append(
            "| images, delta 1e-05 | training rows | epsilon | accuracy of a network |"
            " of a logistic regression |\n"
            "|---|---|---|---|---|\n" + "".join(map(_image_line, _groups(images)))
        )
    if cost:
        parts.append(
            "| one release of | rows read | wall seconds | own stages, seconds | peak memory, MiB |"
            " runs |\n|---|---|---|---|---|---|\n" + "".join(map(_cost_line, cost))
        )
    return "\n".join(parts)


def _is_compared(row: dict[str, Any]) -> bool:
    """Whether a run stands in the tables: LightGBM on a split, by a method that is named above."""
    known = (row["method"], row["analysis"]) in _METHODS
    return known and row["seed"] is not None and row["auc"] is not None


def _is_of_images(row: dict[str, Any]) -> bool:
    """Whether a run stands in the table of images: one that a network was trained on."""
    known = (row["method"], row["analysis"]) in _METHODS
    return known and row.get("cnn_accuracy") is not None and row["epsilon"] in (None, 1.0)


def with_figures(readme: str) -> str:
    """Return the text of README.md with its figures written anew."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + figures() + "\n" + END + after


def _rows(name: str) -> list[dict[str, Any]]:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _groups(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Put the runs of one table, method and epsilon together, tables in the order of the file."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    tables: dict[str, None] = {}
    for row in rows:
        tables.setdefault(row["dataset"])
        names = ("dataset", "epsilon", "method", "analysis", "source", "settings")
        groups.setdefault(tuple(str(row[name]) for name in names), []).append(row)
    places, methods = list(tables), list(_METHODS)

    def place(group: list[dict[str, Any]]) -> tuple[float, ...]:
        first = group[0]
        method = methods.index((first["method"], first["analysis"]))
        return (places.index(first["dataset"]), first["epsilon"] or 0.0, method)

    return sorted(groups.values(), key=place)


def _untouched(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of the tables that are judged, at epsilon 1: of three splits at the last look."""
    groups: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["epsilon"] in (None, 1.0):
            looks = groups.setdefault((row["dataset"], row["method"]), {})
            looks.setdefault(row["settings"].get("look", 1), []).append(row)
    lines = []
    for dataset in dict.fromkeys(name for name, _ in groups):
        own = []
        for method in ("clustmix", "naive_bayes", "real"):
            looks = groups.get((dataset, method), {})
            last = max((look for look, group in looks.items() if len(group) > 2), default=None)
            own.append([] if last is None else looks[last])
        if own[0] and own[1]:
            cells = [
                f"{mean(row[name] for row in group):.3f}" if group else "-"
                for name in ("auc", "log_loss")
                for group in own
            ]
            lines.append(_line((dataset, *cells, str(len(own[0])))))
    return lines


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
        first["source"],
    )
    return _line(cells)


def _image_line(group: list[dict[str, Any]]) -> str:
    first = group[0]
    cells = (
        first["dataset"],
        _METHODS[first["method"], first["analysis"]],
        "-" if first["epsilon"] is None else f"{first['epsilon']:g}",
        f"{mean(row['cnn_accuracy'] for row in group):.3f}",
        f"{mean(row['accuracy'] for row in group):.3f}",
    )
    return _line(cells)


def _cost_line(group: list[dict[str, Any]]) -> str:
    first = group[0]
    cells = (
        f"{first['dataset']}, {_METHODS[first['method'], first['analysis']]}",
        f"{mean(row['rows'] for row in group):,.0f}",
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
