"""Sections of the report on papers: what is printed beside what was measured here."""

from __future__ import annotations

import base64
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks import report_plots as plots
from benchmarks.report_sections import Parts
from benchmarks.results import ResultRow
from benchmarks.rivals.clustmix.claimed_noise import noise_sigma
from benchmarks.stored_rows import (
    NAMES,
    Line,
    Stored,
    Table,
    epsilon_text,
    figure,
    grouped,
    line,
    shown,
    table_of,
    value_of,
    values_of,
)  # fmt: skip

HERE = {
    "creditcard": "creditcard-subset", "mimic3-mortality": "physionet2012-mortality",
    "mimic3-length-of-stay": "physionet2012-length-of-stay",
}  # fmt: skip
"""Stand-ins for data that are not at hand."""

RIVALS = {"DP-GAN": "dpgan", "PATE-GAN": "pategan", "ADS-GAN": "adsgan", "DP-MERF": "dp_merf"}
AUTHORS = "auc_as_its_authors_score"
SIZES = ((118, 10, 784, "MNIST, clusters of 118"), (20, 10, 784, "MNIST, clusters of 20"),
         (121, 2, 14, "Adult, clusters of 121"))  # fmt: skip


def _printed(figures: list[dict[str, Any]]) -> str:
    values = [
        f"{one['value']:g}" + (f"±{one['deviation']:g}" if "deviation" in one else "")
        for one in figures
    ]
    return ", ".join(values) or "-"


def approximate_adapt_anonymise(stored: Stored) -> list[Table]:
    """3A, Table 1 at epsilon 1: printed, the form as printed by two scores, proven, real rows."""
    table = stored.figures(paper="3A", where="Table 1")
    lines = []
    for data in dict.fromkeys(one["dataset"] for one in table):
        name, key = HERE.get(data, data), "accuracy" if data == "mnist" else "auc"
        suite = "images" if data == "mnist" else "tables"
        cells = [data if name == data else f"{data} (here {name})"]
        form = [
            row
            for row in stored.of("papers", part="table", dataset=name, epsilon=1.0)
            if not row.settings.get("search_runs_not_paid_for")
        ]
        if data == "mnist":
            form = stored.of("papers", part="means", noise="eq8", epsilon=1.0)
        tuned = [row for row in stored.of("papers", part="table", dataset=name, epsilon=1.0)
                 if row not in form]  # fmt: skip
        proven = stored.of(suite, dataset=name, method="clustmix", epsilon=1.0, analysis="proven")
        proven = [row for row in proven if suite == "tables" or row.delta == 1e-5]
        real = stored.of(suite, dataset=name, method="real")
        if not form and not proven:
            continue
        own = [one for one in table if (one["dataset"], one["method"]) == (data, "ClustMix")]
        printed_real = [one for one in table if (one["dataset"], one["method"]) == (data, "real")]
        cells += [_printed(own), shown(form, AUTHORS) if data != "mnist" else "-"]
        cells += [shown(form, key), shown(tuned, AUTHORS), shown(proven, key)]
        cells += [_printed(printed_real), shown(real, key)]
        lines.append(line(cells, [*form, *tuned, *proven, *real]))
    header = ("data", "printed", "as printed, its authors' score", "as printed, from the file",
              "best of a search (not paid for)", "proven", "real rows, printed",
              "real rows")  # fmt: skip
    title = "3A, Table 1, epsilon 1: AUC, of MNIST accuracy"
    return [Table(header=header, lines=tuple(lines), title=title)] if lines else []


def rivals_of_3a(stored: Stored) -> list[Table]:
    """3A, Table 1: the rivals that it prints, and what they reach here."""
    lines = []
    for one in stored.figures(paper="3A", where="Table 1"):
        method, name = RIVALS.get(one["method"]), HERE.get(one["dataset"], one["dataset"])
        rows = [
            row
            for suite in ("rivals", "tables", "images")
            for row in stored.of(suite, dataset=name)
            if row.method.replace("-", "").replace("_", "").lower()
            == (method or "").replace("_", "")
            and row.epsilon in (None, 1.0)
        ]
        if method and rows:
            key = "accuracy" if name == "mnist" else "auc"
            cells = (one["dataset"], one["method"], f"{one['value']:g}", shown(rows, key))
            lines.append(line(cells, rows))
    header = ("data", "rival", "printed", "here")
    return [Table(header=header, lines=tuple(lines), title="3A, Table 1: rivals")] if lines else []


def figures_of_3a(stored: Stored) -> Parts:
    """3A, Figures 1 to 3: toy points, the noise of Eq. 8, digits at three budgets."""
    parts: list[Table | str] = []
    toys = stored.of("papers", part="toy")
    if toys:
        panels = []
        for (data, analysis, epsilon), (row, *_) in grouped(
            toys, "dataset", "analysis", "epsilon"
        ).items():
            form = {"none": "real", "published": "printed"}.get(analysis, analysis)
            title = f"{data}, {form}" + (f" {epsilon:g}" if epsilon else "")
            points = np.column_stack([row.settings["x"], row.settings["y"]])
            panels.append((title, points, np.array(row.settings["label"])))
        order = {"real": 0, "printed": 1, "proven": 2}
        panels.sort(key=lambda p: (p[0].split(",")[0], order[p[0].split()[1]]))
        parts.append(plots.scatters(panels, columns=7))
    parts.append(noise_plot())
    means = stored.of("papers", part="means")
    names = ("noise_stddev", "accuracy", AUTHORS)
    parts += table_of(means, names, title="3A, Figure 3: means of MNIST images with a noise")
    for row in stored.of("papers", part="digits"):
        said = ", clusters of {cluster_size}, noise {noise}" if "noise" in row.settings else ""
        said = said.format(**row.settings)
        form = {"none": "real", "published": "as printed"}.get(row.analysis, row.analysis)
        budget = f", epsilon {row.epsilon:g}" if row.epsilon else ""
        base64.b64decode(row.settings["png"], validate=True)
        parts.append(
            f'<figure><img alt="digits" src="data:image/png;base64,{row.settings["png"]}">'
            f"<figcaption>{form}{budget}{said}<br><code>{row.command}</code></figcaption></figure>"
        )
    return parts


def noise_plot() -> str:
    """Draw the noise that Eq. 8 of 3A asks for on each feature, against epsilon."""
    epsilons = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    curves = {}
    for size, classes, features, name in SIZES:
        found = [
            (
                e,
                noise_sigma(
                    epsilon=e, delta=1e-5, cluster_size=size, n_classes=classes, n_features=features
                ),
            )
            for e in epsilons
        ]
        curves[name] = [(e, sigma, 0.0) for e, sigma in found if sigma is not None]
    panel = plots.Panel(title="Noise of Eq. 8, features in [0, 1]", curves=curves, level=1.0)
    return plots.curves(
        [panel], across="epsilon", value="standard deviation", logarithmic_value=True, columns=2,
        level="range of a feature",
    )  # fmt: skip


def dp_cda(stored: Stored) -> Parts:
    """DP-CDA: accuracy over the order of mixture (Table 2, Figure 2), and Table 3."""
    figures = stored.figures(paper="DP-CDA", where="Table 2")
    rows = [
        row
        for row in stored.of("papers", method="dp_cda")
        if "order_of_mixture" in row.settings and row.cnn_accuracy is not None
    ]
    panels, lines = [], []
    for data in ("mnist", "fashion-mnist"):
        for epsilon in (None, 20.0, 10.0):
            of_paper = [
                one for one in figures if one["dataset"] == data and one.get("epsilon") == epsilon
            ]
            printed = [
                (float(one["settings"]["order"]), one["value"], one.get("deviation", 0.0))
                for one in of_paper
            ]
            groups = {
                order: group
                for (name, e, order), group in grouped(
                    rows, "dataset", "epsilon", "order_of_mixture"
                ).items()
                if (name, e) == (data, epsilon)
            }
            here = []
            for order, group in sorted(groups.items()):
                found = values_of(group, "cnn_accuracy")
                here.append((float(order), mean(found), stdev(found) if len(found) > 1 else 0.0))
            curves = {"printed": printed, "as printed, here": here}
            title = f"{data}, " + (f"epsilon {epsilon:g}" if epsilon else "no noise")
            kept = {name: points for name, points in curves.items() if points}
            if kept:
                panels.append(plots.Panel(title=title, curves=kept))
            for one in of_paper:
                group = groups.get(one["settings"]["order"], [])
                cells = (data, epsilon_text(epsilon), str(one["settings"]["order"]))
                lines.append(
                    line((*cells, _printed([one]), shown(group, "cnn_accuracy", 4)), group)
                )
    if not rows:
        return []
    header = ("data", "epsilon", "order", "printed", "here")
    curve = plots.curves(panels, across="order of mixture", value="accuracy", bounds=(0.0, 1.0))
    table = Table(header=header, lines=tuple(lines), title="DP-CDA, Table 2: accuracy")
    return [curve, table, *dp_cda_table_3(stored)]


def dp_cda_best(stored: Stored) -> Table:
    """Accuracy of the paper's network at the best order, printed and here."""
    lines = []
    rows = [row for row in stored.of("papers", method="dp_cda") if row.cnn_accuracy is not None]
    for (data, epsilon), group in grouped(rows, "dataset", "epsilon").items():
        best = max(
            grouped(group, "order_of_mixture").items(),
            key=lambda one: mean(values_of(one[1], "cnn_accuracy")),
        )
        figures = [
            one
            for one in stored.figures(paper="DP-CDA", where="Table 2", dataset=data)
            if one.get("epsilon") == epsilon
        ]
        top = max(figures, key=lambda one: float(one["value"]), default=None)
        printed = (f"{top['value']:.3f}", str(top["settings"]["order"])) if top else ("-", "-")
        found = (shown(best[1], "cnn_accuracy"), str(best[0][0]))
        lines.append(line((data, epsilon_text(epsilon), *printed, *found), best[1]))
    header = ("images", "epsilon", "printed", "order", "here", "order")
    return Table(header=header, lines=tuple(lines), title="DP-CDA: the best order")


def dp_cda_table_3(stored: Stored) -> list[Table]:
    """DP-CDA, Table 3: every method at epsilon 10 and 20 on images."""
    names = {"Random Projection": "random_projection", "Local Perturbation": "local_perturbation",
             "DPMix": "dp_mix", "DP-MERF": "dp_merf", "DP-CDA": "dp_cda"}  # fmt: skip
    lines = []
    for one in stored.figures(paper="DP-CDA", where="Table 3"):
        facts = {"dataset": one["dataset"], "method": names[one["method"]],
                 "epsilon": one.get("epsilon")}  # fmt: skip
        rows = [r for r in stored.of("images", **facts) if r.analysis != "none"]
        cells = (one["dataset"], one["method"], epsilon_text(one.get("epsilon")), _printed([one]))
        if rows:
            keys = {"the paper's network": "paper_cnn_accuracy", "a network": "cnn_accuracy",
                    "logistic regression": "accuracy"}  # fmt: skip
            how, key = next(one for one in keys.items() if values_of(rows, one[1]))
            best = max(rows, key=lambda row: value_of(row, key) or 0.0)
            lines.append(line((*cells, shown([best], key), how), [best]))
    header = ("data", "method", "epsilon", "printed", "here", "trained on it")
    found = [Table(header=header, lines=tuple(lines), title="DP-CDA, Table 3")] if lines else []
    mixed = stored.of("papers", part="mixtures", method="dp_mix")
    mixed = [replace(row, settings={**row.settings, "images": row.rows_out}) for row in mixed]
    return found + table_of(mixed, title="DPMix as printed")


def dpgm(stored: Stored) -> Parts:
    """DPGM: accuracy of clusters (Figure 3), and errors of counting queries (Figures 5 and 6)."""
    parts: list[Table | str] = []
    clusters = [row for row in stored.of("papers") if "clustering_accuracy" in row.figures]
    if clusters:
        panel = plots.Panel(
            title="MNIST in black and white",
            curves=_curves(clusters, "features", lambda row: row.figures["clustering_accuracy"]),
        )
        parts.append(
            plots.curves([panel], across="epsilon", value="accuracy of clusters", columns=2)
        )
        parts += table_of(clusters, ("clustering_accuracy",), title="DPGM, Figure 3")
    queries = [row for row in stored.of("papers") if "error_20" in row.figures]
    panels = [
        plots.Panel(
            title=f"{data}, {design}",
            curves=_curves(group, "variant", lambda row: mean(row.figures.values())),
        )
        for (data, design), group in grouped(queries, "dataset", "design").items()
    ]
    if panels:
        parts.append(
            plots.curves(
                panels,
                across="epsilon",
                value="mean relative error",
                columns=2,
                logarithmic_value=True,
            )
        )
        parts += table_of(queries, title="DPGM, section 6.3: error of the five sets of queries")
    printed = [
        Line(
            cells=(
                one["where"],
                one["dataset"],
                one["method"],
                one["metric"].replace("_", " "),
                epsilon_text(one.get("epsilon")),
                f"{one['value']:g}",
            )
        )
        for one in stored.figures(paper="DPGM")
        if one["where"] != "Table 2"
    ]
    header = ("where", "data", "method", "figure", "epsilon", "printed")
    if printed and parts:
        parts.append(Table(header=header, lines=tuple(printed), title="DPGM: printed figures"))
    return parts


def _curves(
    rows: list[ResultRow], fact: str, value: Any
) -> dict[str, list[tuple[float, float, float]]]:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for (name, epsilon), group in sorted(grouped(rows, fact, "epsilon").items()):
        values = [value(row) for row in group]
        bar = stdev(values) if len(values) > 1 else 0.0
        found.setdefault(str(name).replace("_", " "), []).append((epsilon, mean(values), bar))
    return found


def nist(stored: Stored) -> list[Table]:
    """NIST's Diverse Communities: printed figures and ours, by features and epsilon."""
    rows = stored.of("nist")
    if not rows:
        return []
    lines: list[tuple[tuple[Any, ...], Line]] = []
    names = ("k_marginal", "propensity_mse", "inconsistent_records")
    digits = {"k_marginal": 1, "propensity_mse": 4, "inconsistent_records": 0}
    more = [n for n in dict.fromkeys(k for row in rows for k in row.figures) if n not in names]
    for (features, epsilon, method, ruled), group in grouped(
        rows, "features", "epsilon", "method", "rules"
    ).items():
        name = NAMES.get(method, method) + (", with rules" if ruled else "")
        cells = [str(features), epsilon_text(epsilon), name, "here", str(len(group))]
        cells += [shown(group, key, digits.get(key)) for key in (*names, *more)]
        best = -max(values_of(group, "k_marginal"), default=0.0)
        lines.append(((int(features or 0), epsilon or 99.0, best), line(cells, group)))
    of_paper: dict[tuple[Any, ...], dict[str, float]] = {}
    for one in stored.figures(paper="NIST"):
        key = (one["settings"]["features"], one.get("epsilon"), one["method"])
        of_paper.setdefault(key, {})[one["metric"]] = one["value"]
    for (features, epsilon, method), found in of_paper.items():
        cells = [str(features), epsilon_text(epsilon), method, "NIST", "-"]
        cells += [f"{found[key]:g}" if key in found else "-" for key in names]
        place = (features, epsilon or 99.0, -found.get("k_marginal", 0.0))
        lines.append((place, Line(cells=(*cells, *("-" for _ in more)))))
    lines.sort(key=lambda one: one[0])
    header = ("features", "epsilon", "method", "from", "draws", *names, *more)
    header = tuple(name.replace("_", " ") for name in header)
    title = "NIST Diverse Communities, national2019, scored by sdnist"
    return [Table(header=header, lines=tuple(one for _, one in lines), title=title)]


def nist_brief(stored: Stored) -> list[Table]:
    """NIST's two figures that everybody prints, in few words."""
    chosen = [0, 1, 2, 3, 5, 7]
    return [
        Table(
            header=tuple(table.header[place] for place in chosen),
            lines=tuple(
                Line(cells=tuple(one.cells[place].replace(" ", "-") for place in chosen))
                for one in table.lines
            ),
        )
        for table in nist(stored)
    ]


def image_anchors(stored: Stored) -> list[Table]:
    """DPImageBench and DPDM beside our images."""
    lines = []
    keys = {"accuracy": "logistic regression", "cnn_accuracy": "small network",
            "teacher_accuracy": "released classifier"}  # fmt: skip
    for data in ("mnist", "fashion-mnist"):
        for epsilon in (1.0, 10.0):
            rows = [
                row
                for row in stored.of("images", dataset=data, method="clustmix", epsilon=epsilon)
                if row.delta == 1e-5
            ]
            for key, name in keys.items():
                cells = (data, f"{epsilon:g}", "ClustMix", name, shown(rows, key))
                lines.append(line(cells, rows))
            for paper in ("DPImageBench", "DPDM"):
                for one in stored.figures(paper=paper, dataset=data, epsilon=epsilon):
                    how = one.get("settings", {}).get("classifier", "mean of three networks")
                    of_paper = (data, f"{epsilon:g}", f"{one['method']} ({paper})", how)
                    lines.append(Line(cells=(*of_paper, f"{one['value']:.3f}")))
    header = ("images", "epsilon", "method", "trained on the release", "accuracy")
    title = "DPImageBench and DPDM, as printed, beside ours"
    return [Table(header=header, lines=tuple(lines), title=title)] if stored.of("images") else []


def outcomes(stored: Stored) -> list[Table]:
    """Jobs that failed or did not end."""
    lines = [
        line(
            (
                str(row.suite),
                row.dataset,
                row.method,
                epsilon_text(row.epsilon),
                str(row.outcome),
                figure([row.settings.get("limit_seconds")], 0),
            ),
            [row],
        )
        for row in stored.rows
        if row.outcome
    ]
    header = ("suite", "data", "method", "epsilon", "outcome", "limit, seconds")
    return [Table(header=header, lines=tuple(lines), title="No row came of")] if lines else []
