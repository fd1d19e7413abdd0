"""Write the numbers and plots of docs/results.md: ``python docs/figures.py``.

All of them come from the rows in benchmarks/results. A table stands between two marks that name the
function which writes it; a test compares every table and plot with the stored rows.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))  # `plots` stands beside this script

import plots  # noqa: E402

RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE = DOCS / "results.md"

Row = dict[str, Any]
EPSILONS = (0.2, 1.0, 10.0)
_NAMES = {
    "clustmix": "ClustMix",
    "naive_bayes": "naive Bayes",
    "aim": "AIM",
    "pgm": "junction tree",
    "real": "real rows",
}
_IN_PLOT = {"adult": "Adult", "nhanes-2009-2012": "NHANES", "cardiotocography": "Cardiotocography"}
# Naive Bayes has one form since the third look at the public tables.
_FIRST_LOOK = {"naive_bayes": 3}


@cache
def rows(name: str) -> tuple[Row, ...]:
    """Return the stored rows of one file; none where the file is absent."""
    path = RESULTS / f"{name}.json"
    return tuple(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else ()


def runs(dataset: str, method: str, epsilon: float | None) -> list[Row]:
    """Return the latest run of each split, of the first file that has this table and method."""
    for name in ("public_tables", "releases", "peers"):
        first = _FIRST_LOOK.get(method, 1) if name == "public_tables" else 1
        found = [
            row
            for row in rows(name)
            if (row["dataset"], row["method"], row["epsilon"]) == (dataset, method, epsilon)
            and row["analysis"] != "published"
            and None not in (row["auc"], row["seed"])
            and _look(row) >= first
        ]
        latest = {row["seed"]: row for row in sorted(found, key=_look)}
        if latest:
            return list(latest.values())
    return []


def _look(row: Row) -> int:
    return int(row["settings"].get("look", 1))


def figure(values: Iterable[float | None], digits: int = 3) -> str:
    """Return a mean, with the standard deviation over the runs where there are several."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    spread = f"±{stdev(found):.{digits}f}" if len(found) > 1 else ""
    return f"{mean(found):.{digits}f}{spread}"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    every = [header, ["-"] * len(header), *lines]
    return "".join(f"|{'|'.join(line)}|\n" for line in every)


@cache
def datasets() -> tuple[str, ...]:
    """Return the tables on which ClustMix was released at epsilon 1, and naive Bayes beside it."""
    named = dict.fromkeys(
        row["dataset"] for name in ("releases", "public_tables") for row in rows(name)
    )
    methods = ("clustmix", "naive_bayes")
    return tuple(name for name in named if all(runs(name, method, 1.0) for method in methods))


def auc() -> str:
    """AUC on every table, at each epsilon."""
    lines = []
    for name in datasets():
        cells = [
            figure(row["auc"] for row in runs(name, method, epsilon))
            for epsilon in EPSILONS
            for method in ("clustmix", "naive_bayes")
        ]
        real = figure(row["auc"] for row in runs(name, "real", None))
        lines.append((name, real, *cells))
    heads = [f"{_NAMES[m]}, {e:g}" for e in EPSILONS for m in ("clustmix", "naive_bayes")]
    return table(("table", "real rows", *heads), lines)


def probabilities() -> str:
    """Log-loss and calibration error at epsilon 1, with the number of splits."""
    lines = []
    for name in datasets():
        groups = [runs(name, method, 1.0) for method in ("clustmix", "naive_bayes")]
        groups.append(runs(name, "real", None))
        cells = [figure((row["log_loss"] for row in group), 2) for group in groups]
        cells.append(figure((row["calibration_error"] for row in groups[0]), 2))
        lines.append((name, *(cell.split("±")[0] for cell in cells), str(len(groups[0]))))
    heads = ("ClustMix", "naive Bayes", "real rows", "calibration error of ClustMix", "splits")
    return table(("log-loss", *heads), lines)


def peers() -> str:
    """AUC, distance of pairs of columns and processor time, on the splits that peers have."""
    lines = []
    for name, epsilon in dict.fromkeys((row["dataset"], row["epsilon"]) for row in rows("peers")):
        for method in ("aim", "pgm"):
            theirs = {row["seed"]: row for row in runs(name, method, epsilon)}
            both = [row for row in runs(name, "clustmix", epsilon) if row["seed"] in theirs]
            pairs = [theirs[row["seed"]] for row in both]
            cells = [
                figure((row[key] for row in group), digits)
                for key, digits in (("auc", 3), ("tvd_2way", 3), ("cpu_seconds", 0))
                for group in (both, pairs)
            ]
            if both:
                lines.append((name, f"{epsilon:g}", _NAMES[method], str(len(both)), *cells))
    heads = [f"{key}, {who}" for key in ("AUC", "2-way", "CPU s") for who in ("ClustMix", "peer")]
    return table(("table", "epsilon", "peer", "splits", *heads), lines)


def images() -> str:
    """Accuracy on real test images of what is trained on released ones."""
    lines = []
    kept = [row for row in rows("image_releases") if row["analysis"] == "proven"]
    kept += [row for row in rows("releases") if row["method"] == "real" and row["cnn_accuracy"]]
    for name in ("mnist", "fashion-mnist"):
        for epsilon in (*EPSILONS, None):
            group = [r for r in kept if (r["dataset"], r["epsilon"]) == (name, epsilon)]
            keys = ("cnn_accuracy", "accuracy", "teacher_accuracy")
            cells = [figure(row[key] for row in group) for key in keys]
            shown = f"{epsilon:g}" if epsilon else "real images"
            lines.append((name, shown, *cells, str(len(group))))
    heads = ("network", "logistic regression", "released classifier", "releases")
    return table(("images", "epsilon", *heads), lines)


def dp_cda() -> str:
    """Accuracy of the paper's network on images of DP-CDA: the best order of each form."""
    best: dict[tuple[str, str, float], tuple[float, int]] = {}
    orders: dict[tuple[str, str, float, int], list[float]] = {}
    for row in rows("dp_cda_images"):
        form, order = row["settings"]["form"], row["settings"]["order_of_mixture"]
        if row["epsilon"] in (1.0, 10.0):
            key = (row["dataset"], form, row["epsilon"], order)
            orders.setdefault(key, []).append(row["accuracy"] or row["cnn_accuracy"])
    for (dataset, form, epsilon, order), found in orders.items():
        key = (dataset, form, epsilon)
        best[key] = max(best.get(key, (0.0, 0)), (mean(found), order))
    return table(
        ("images", "form", "epsilon", "accuracy", "order of mixture"),
        [
            (dataset, form, f"{epsilon:g}", f"{accuracy:.3f}", str(order))
            for (dataset, form, epsilon), (accuracy, order) in sorted(best.items())
        ],
    )


def methods() -> str:
    """AUC on Adult and accuracy on MNIST at epsilon 1 of the methods of the product."""
    lines = []
    for method in ("clustmix", "naive_bayes", "dp_cda", "dpgm"):
        adult = figure(row["auc"] for row in runs("adult", method, 1.0))
        found = [
            row
            for row in rows("image_releases" if method == "clustmix" else "releases")
            if (row["dataset"], row["method"], row["epsilon"]) == ("mnist", method, 1.0)
            and row["analysis"] == "proven"
        ]
        name = "dp_cda, secret samples" if method == "dp_cda" else method
        lines.append((name, adult, figure(row["accuracy"] for row in found)))
    return table(("method", "AUC, Adult", "accuracy, MNIST, logistic regression"), lines)


def ablation() -> str:
    """Mean differences to the whole release at epsilon 1, on the same splits."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows("ablation"):
        if row["epsilon"] == 1.0 and row["dataset"] != "flchain":
            found.setdefault((row["dataset"], row["settings"]["variant"]), {})[row["seed"]] = row
    lines = []
    for (dataset, variant), group in found.items():
        whole = found[dataset, "whole"]
        keys = ("auc", "log_loss", "tvd_2way")
        if variant == "whole":
            cells = [figure((row[key] for row in group.values()), 3) for key in keys]
        else:
            cells = [
                _difference([r[key] - whole[s][key] for s, r in group.items() if s in whole])
                for key in keys
            ]
        lines.append((dataset, variant, *cells))
    return table(("table", "release", "AUC", "log-loss", "2-way"), lines)


def _difference(moved: Sequence[float]) -> str:
    return f"{mean(moved):+.3f}±{stdev(moved) / len(moved) ** 0.5:.3f}"


def cost() -> str:
    """Time and memory of the whole command at epsilon 1."""
    shown = ("adult", "diabetes130-readmission", "physionet2012-mortality", "isolet-vowels")
    groups = {name: runs(name, "clustmix", 1.0) for name in shown}
    for row in rows("million_rows"):
        if row["source"] == "bundle":
            groups[f"{row['dataset']}, {row['rows']:,}"] = [row]
    lines = [
        (
            name,
            f"{mean(row['rows'] for row in group):,.0f}",
            str(group[0]["columns"]),
            f"{mean(row['wall_seconds'] for row in group):.0f}",
            f"{max(row['peak_rss_mib'] for row in group):,.0f}",
        )
        for name, group in groups.items()
    ]
    return table(("release of", "rows read", "columns", "wall seconds", "peak MiB"), lines)


TABLES: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (auc, probabilities, peers, images, methods, dp_cda, ablation, cost)
}


def with_tables(page: str) -> str:
    """Return the text of a page with its tables written anew."""

    def written(mark: re.Match[str]) -> str:
        return f"<!-- {mark[1]} -->\n\n{TABLES[mark[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", written, page, flags=re.DOTALL)


def auc_plot() -> str:
    """Draw AUC against epsilon on three tables: the picture of the README."""
    methods = ("clustmix", "naive_bayes", "aim")
    panels = []
    for dataset, name in _IN_PLOT.items():
        curves = {}
        for method in methods:
            found = [(epsilon, runs(dataset, method, epsilon)) for epsilon in EPSILONS]
            curves[_NAMES[method]] = [
                (epsilon, mean(row["auc"] for row in group)) for epsilon, group in found if group
            ]
        first = runs(dataset, "clustmix", 1.0)[0]
        title = f"{name}, {first['rows']:,} rows"
        real = mean(row["auc"] for row in runs(dataset, "real", None))
        panels.append(plots.Panel(title, curves, real))
    return plots.against_epsilon(
        panels,
        [_NAMES[method] for method in methods],
        level="real rows",
        title="AUC on real test rows of a model trained on a release, against epsilon",
        bottom=0.5,
    )


def tables_plot() -> str:
    """Draw AUC at epsilon 1 on every table."""
    shown = []
    for name in datasets():
        groups = [runs(name, method, 1.0) for method in ("clustmix", "naive_bayes")]
        groups.append(runs(name, "real", None))
        if all(groups):
            shown.append((name, [mean(row["auc"] for row in group) for group in groups]))
    return plots.dots(
        sorted(shown, key=lambda row: row[1][2] - row[1][0]),
        ("ClustMix", "naive Bayes", "real rows"),
        title="AUC on real test rows of a model trained on a release of epsilon 1",
    )


PICTURES: dict[str, Callable[[], str]] = {"auc.svg": auc_plot, "tables.svg": tables_plot}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for file_name, draw in PICTURES.items():
        (DOCS / file_name).write_text(draw(), encoding="utf-8")
