"""Sections of the report on our own suites; each is left out where it has no rows yet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import mean, stdev

from benchmarks import report_plots as plots
from benchmarks.results import ResultRow
from benchmarks.stored_rows import (
    NAMES,
    Line,
    Stored,
    Table,
    epsilon_text,
    figure,
    grouped,
    line,
    name_of,
    shown,
    table_of,
    values_of,
)  # fmt: skip

EPSILONS = (0.2, 1.0, 10.0)
OWN, YARDSTICK = "clustmix", "naive_bayes"
IN_PLOT = {"adult": "Adult", "nhanes-2009-2012": "NHANES", "cardiotocography": "Cardiotocography"}
IMAGES = ("mnist", "fashion-mnist")

Parts = Sequence[Table | str]
"""Tables, and plots as SVG."""


def datasets(stored: Stored) -> list[str]:
    """Return the tables with ClustMix at an epsilon of one, and naive Bayes beside it."""
    rows = stored.of("tables", epsilon=1.0)
    other = {row.dataset for row in rows if row.method == YARDSTICK}
    return list(dict.fromkeys(r.dataset for r in rows if r.method == OWN and r.dataset in other))


def runs(stored: Stored, dataset: str, method: str, epsilon: float | None) -> list[ResultRow]:
    """Return the proven or peer rows of one table."""
    found = stored.of("tables", dataset=dataset, method=method, epsilon=epsilon)
    return [row for row in found if row.analysis in ("proven", "stated", "none")]


def auc(stored: Stored) -> Table:
    """AUC on every table, at each epsilon."""
    lines = []
    for name in datasets(stored):
        groups = [runs(stored, name, "real", None)]
        groups += [runs(stored, name, m, e) for e in EPSILONS for m in (OWN, YARDSTICK)]
        cells = (name, *(shown(group, "auc") for group in groups))
        lines.append(line(cells, (row for group in groups for row in group)))
    heads = (f"{NAMES[m]}, {e:g}" for e in EPSILONS for m in (OWN, YARDSTICK))
    return Table(header=("table", "real rows", *heads), lines=tuple(lines), title="AUC")


def probabilities(stored: Stored) -> Table:
    """Log-loss and calibration error at epsilon 1, with the number of splits."""
    lines = []
    for name in datasets(stored):
        groups = [runs(stored, name, m, 1.0) for m in (OWN, YARDSTICK)]
        groups.append(runs(stored, name, "real", None))
        cells = [figure(values_of(group, "log_loss"), 2) for group in groups]
        cells += [figure(values_of(groups[i], "calibration_error"), 2) for i in (0, 2)]
        cells = [cell.split("±")[0] for cell in cells]
        lines.append(line((name, *cells, str(len(groups[0]))), chain(*groups)))
    heads = ("ClustMix", "naive Bayes", "real rows", "calibration error of ClustMix",
             "of real rows", "splits")  # fmt: skip
    return Table(header=("log-loss", *heads), lines=tuple(lines), title="Probabilities, epsilon 1")


def verdicts(stored: Stored) -> list[Table]:
    """Mean gain over naive Bayes on the same splits, with its standard error."""
    lines = []
    signs = {"auc": 1, "accuracy": 1, "log_loss": -1, "tvd_2way": -1, "tvd_1way": -1}
    for name in datasets(stored):
        for epsilon in EPSILONS:
            own, other = (runs(stored, name, m, epsilon) for m in (OWN, YARDSTICK))
            theirs = {row.seed: row for row in other}
            pairs = [(row, theirs[row.seed]) for row in own if row.seed in theirs]
            if len(pairs) < 2:
                continue
            cells = []
            for key, sign in signs.items():
                gains = [sign * (getattr(a, key) - getattr(b, key)) for a, b in pairs]
                error = stdev(gains) / len(gains) ** 0.5
                verdict = "ahead" if mean(gains) > 2 * error else "level"
                verdict = "below" if -mean(gains) > max(2 * error, 0.005) else verdict
                cells.append(f"{mean(gains):+.4f} ± {error:.4f} {verdict}")
            cells = [name, f"{epsilon:g}", str(len(pairs)), *cells]
            lines.append(line(cells, (row for pair in pairs for row in pair)))
    title = "Gain of ClustMix over naive Bayes on the same splits, and its standard error"
    header = ("table", "epsilon", "splits", "AUC", "accuracy", "log-loss", "2-way", "1-way")
    return [Table(header=header, lines=tuple(lines), title=title)] if lines else []


def fairness(stored: Stored) -> list[Table]:
    """AUC by sex and age, and agreement of importances, of releases beside real rows."""
    lines = []
    known = [row for row in stored.of("groups") if "importance_agreement" in row.figures]
    for (name, method, epsilon), group in grouped(known, "dataset", "method", "epsilon").items():
        groups = list(
            dict.fromkeys(k for row in group for k in row.figures if k.startswith("auc, "))
        )
        by = "; ".join(f"{k.removeprefix('auc, ')} {figure(values_of(group, k))}" for k in groups)
        cells = [
            name,
            NAMES.get(method, method),
            epsilon_text(epsilon),
            shown(group, "auc"),
            by or "-",
        ]
        keys = ("importance_agreement", "calibration_error", "calibration_by_chance")
        cells += [shown(group, key) for key in keys]
        lines.append(line(cells, group))
    title = "Who is served: held-out AUC by group, importances (Spearman), calibration"
    header = ("table", "method", "epsilon", "AUC", "AUC by group", "importances",
              "calibration error", "by chance")  # fmt: skip
    return [Table(header=header, lines=tuple(lines), title=title)] if lines else []


def peers(stored: Stored) -> Table:
    """AIM and others beside ClustMix on the splits of both."""
    lines = []
    rows = [row for row in stored.of("tables") if row.method in ("aim", "mst")]
    for (name, method, epsilon), theirs in grouped(rows, "dataset", "method", "epsilon").items():
        seeds = {row.seed for row in theirs}
        both = [row for row in runs(stored, name, OWN, epsilon) if row.seed in seeds]
        keys = (("auc", 3), ("tvd_2way", 3), ("cpu_seconds", 0))
        cells = [shown(group, key, digits) for key, digits in keys for group in (both, theirs)]
        cells = [name, epsilon_text(epsilon), NAMES[method], str(len(theirs)), *cells]
        lines.append(line(cells, [*both, *theirs]))
    heads = (f"{key}, {who}" for key in ("AUC", "2-way", "CPU s") for who in ("ClustMix", "peer"))
    header = ("table", "epsilon", "peer", "splits", *heads)
    return Table(header=header, lines=tuple(lines), title="Peers")


def auc_plot(stored: Stored, names: dict[str, str] | None = None, columns: int = 3) -> str:
    """Draw AUC against epsilon with error bars."""
    panels = []
    for dataset, name in (IN_PLOT if names is None else names).items():
        curves = {}
        for method in (OWN, YARDSTICK, "aim"):
            found = [(e, values_of(runs(stored, dataset, method, e), "auc")) for e in EPSILONS]
            points = [(e, mean(v), stdev(v) if len(v) > 1 else 0.0) for e, v in found if v]
            if points:
                curves[NAMES[method]] = points
        real = runs(stored, dataset, "real", None)
        rows = max(values_of(runs(stored, dataset, OWN, 1.0), "rows"), default=0)
        level = mean(values_of(real, "auc")) if real else None
        panels.append(plots.Panel(title=f"{name}, {rows:,} rows", curves=curves, level=level))
    return plots.curves(panels, across="epsilon", value="AUC", columns=columns, bounds=(0.5, 1.0))


def tables_plot(stored: Stored) -> str:
    """Draw AUC at epsilon 1 on every table."""
    found = []
    for name in datasets(stored):
        groups = [runs(stored, name, OWN, 1.0), runs(stored, name, YARDSTICK, 1.0)]
        groups.append(runs(stored, name, "real", None))
        if all(values_of(group, "auc") for group in groups):
            found.append((name, [mean(values_of(group, "auc")) for group in groups]))
    found.sort(key=lambda row: row[1][2] - row[1][0])
    return plots.dots(found, ("ClustMix", "naive Bayes", "real rows"), bottom=0.5)


def time_plot(stored: Stored) -> list[str]:
    """Draw processor seconds against AUC on Adult and accuracy on MNIST, at epsilon 1."""
    panels = []
    for suite, dataset, key in (("tables", "adult", "auc"), ("images", "mnist", "accuracy"),
                                ("rivals", "adult", "auc")):  # fmt: skip
        rows = stored.of(suite, dataset=dataset, epsilon=1.0)
        marks = {
            name: (mean(seconds), mean(values))
            for name, group in _by_name(rows).items()
            if (seconds := values_of(group, "cpu_seconds")) and (values := values_of(group, key))
        }
        if marks:
            panels.append((f"{dataset}, {key}, epsilon 1 ({suite})", marks))
    return [plots.places(panels, across="processor seconds", value="utility")] if panels else []


def _by_name(rows: list[ResultRow]) -> dict[str, list[ResultRow]]:
    found: dict[str, list[ResultRow]] = {}
    for row in rows:
        found.setdefault(name_of(row), []).append(row)
    return found


def images(stored: Stored) -> Table:
    """Accuracy on real test images of what is trained on released ones."""
    lines = []
    for name in IMAGES:
        for epsilon in (*EPSILONS, None):
            method = OWN if epsilon else "real"
            group = [
                row
                for row in stored.of("images", dataset=name, method=method, epsilon=epsilon)
                if row.delta in (1e-5, None)
            ]
            keys = ("cnn_accuracy", "accuracy", "teacher_accuracy")
            shown_epsilon = f"{epsilon:g}" if epsilon else "real images"
            cells = (name, shown_epsilon, *(shown(group, k) for k in keys), str(len(group)))
            lines += [line(cells, group)] if group else []
    heads = ("network", "logistic regression", "released classifier", "releases")
    return Table(header=("images", "epsilon", *heads), lines=tuple(lines), title="Images")


def image_plot(stored: Stored) -> str:
    """Draw the accuracy on images against epsilon."""
    keys = {"network": "cnn_accuracy", "released classifier": "teacher_accuracy",
            "logistic regression": "accuracy"}  # fmt: skip
    panels = []
    for name in IMAGES:
        curves: dict[str, list[tuple[float, float, float]]] = {}
        for title, key in keys.items():
            for epsilon in EPSILONS:
                rows = stored.of("images", dataset=name, method=OWN, epsilon=epsilon)
                found = values_of((row for row in rows if row.delta == 1e-5), key)
                if found:
                    bar = stdev(found) if len(found) > 1 else 0.0
                    curves.setdefault(title, []).append((epsilon, mean(found), bar))
        real = values_of(stored.of("images", dataset=name, method="real"), "cnn_accuracy")
        if curves:
            level = mean(real) if real else None
            panels.append(plots.Panel(title=name, curves=curves, level=level))
    return plots.curves(
        panels, across="epsilon", value="accuracy", level="network trained on real images"
    )


def methods(stored: Stored) -> Table:
    """AUC on Adult and accuracy on MNIST at epsilon 1 of the methods of the product."""
    lines = []
    for method in (OWN, YARDSTICK, "dp_cda", "dpgm", "dp_kmeans"):
        adult = runs(stored, "adult", method, 1.0)
        mnist = stored.of("images", dataset="mnist", method=method, epsilon=1.0, analysis="proven")
        delta = 1e-5 if method == OWN else 1e-6
        mnist = [row for row in mnist if row.delta == delta]
        if adult or mnist:
            cells = (NAMES[method], shown(adult, "auc"), shown(mnist, "accuracy"))
            lines.append(line(cells, [*adult, *mnist]))
    header = ("method", "AUC, Adult", "accuracy, MNIST, logistic regression")
    return Table(header=header, lines=tuple(lines), title="The methods of the product, epsilon 1")


def parts(stored: Stored) -> Table:
    """Mean differences to the whole release at epsilon 1, on the same splits."""
    lines: list[Line] = []
    found = grouped(stored.of("parts", epsilon=1.0), "dataset", "variant")
    for (dataset, variant), group in found.items():
        whole = {row.seed: row for row in found[dataset, "whole"]}
        cells = []
        for key in ("auc", "log_loss", "tvd_2way"):
            moved = [
                getattr(row, key) - getattr(whole[row.seed], key)
                for row in group
                if row.seed in whole
            ]
            error = stdev(moved) / len(moved) ** 0.5 if len(moved) > 1 else 0.0
            cells.append(
                shown(group, key) if variant == "whole" else f"{mean(moved):+.3f}±{error:.3f}"
            )
        lines.append(line((dataset, variant, *cells), group))
    header = ("table", "release", "AUC", "log-loss", "2-way")
    return Table(header=header, lines=tuple(lines), title="Releases without a part, epsilon 1")


def points(stored: Stored) -> list[Table]:
    """Accuracy of the released classifier of images with sampled and with optimised points."""
    names = ("teacher_accuracy", "cpu_seconds")
    return table_of(
        stored.of("points"), names, title="Inducing points sampled, and optimised by KIP"
    )


def structure(stored: Stored) -> list[Table]:
    """Tables of XOR."""
    names = ("rule_kept", "auc", "accuracy", "tvd_1way", "tvd_2way", "cpu_seconds")
    title = "Rules of two and three columns: .9 of the real rows keep each"
    return table_of(stored.of("structure"), names, title=title)


def cost(stored: Stored) -> Table:
    """Time and memory of the whole command at epsilon 1."""
    names = ("adult", "diabetes130-readmission", "physionet2012-mortality", "isolet-vowels")
    groups = {name: runs(stored, name, OWN, 1.0) for name in names}
    for row in stored.of("sizes"):
        groups[f"{row.dataset}, {row.rows:,}"] = [row]
    lines = [
        line(
            (
                name,
                f"{mean(values_of(group, 'rows')):,.0f}",
                str(group[0].columns),
                f"{mean(values_of(group, 'wall_seconds')):.0f}",
                f"{max(values_of(group, 'peak_rss_mib')):,.0f}",
            ),
            group,
        )
        for name, group in groups.items()
        if group
    ]
    header = ("release of", "rows read", "columns", "wall seconds", "peak MiB")
    return Table(header=header, lines=tuple(lines), title="Time and memory")


def distilled(stored: Stored) -> list[Table]:
    """Scores of models of a few distilled points, of as many random rows, and of all rows."""
    lines = []
    for row in stored.of("distill"):
        for name in row.figures:
            n, _, kind = name.partition(" ")
            if kind != "points, ridge":
                continue
            named = ("points, trees", "random rows, ridge", "random rows, trees")
            keys = [name, *(f"{n} {key}" for key in named), "all rows, trees"]
            keys.append(f"{n} points, seconds")
            cells = [row.dataset, n, *(figure([row.figures.get(key)]) for key in keys)]
            lines.append(line([*cells, row.settings.get("device", "-")], [row]))
    header = ("data", "points", "ridge", "trees", "random rows, ridge", "random rows, trees",
              "all rows, trees", "seconds", "device")  # fmt: skip
    title = "AUC for two labels, else accuracy, of models of distilled points"
    return [Table(header=header, lines=tuple(lines), title=title)] if lines else []
