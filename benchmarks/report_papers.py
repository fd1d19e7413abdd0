"""Sections of the report on papers: what is printed beside what was measured here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import Any

import numpy as np

from benchmarks import report_plots as plots
from benchmarks.report_sections import IMAGES, OWN, Parts, points_of
from benchmarks.results import ResultRow
from benchmarks.stored_rows import (
    NAMES,
    Entry,
    Stored,
    Table,
    epsilon_text,
    grouped,
    made_table,
    shown,
    spread,
    table_of,
    tabled,
    value_of,
    values_of,
)  # fmt: skip

HERE = {
    "creditcard": "creditcard-subset", "mimic3-mortality": "physionet2012-mortality",
    "mimic3-length-of-stay": "physionet2012-length-of-stay",
}  # fmt: skip
"""Stand-ins for data that are not at hand."""

KINDS = {name: kind for kind, name in NAMES.items() if kind != OWN}
AUTHORS, ACCURACY = "auc_as_its_authors_score", "cnn_accuracy"


def _printed(figures: list[dict[str, Any]]) -> str:
    values = [
        f"{one['value']:g}" + (f"±{one['deviation']:g}" if "deviation" in one else "")
        for one in figures
    ]
    return ", ".join(values) or "-"


@tabled
def three_a(stored: Stored) -> Iterator[Entry]:
    table = {"paper": "3A", "where": "Table 1"}
    for data in dict.fromkeys(one["dataset"] for one in stored.figures(**table)):
        name, digits = HERE.get(data, data), data == "mnist"
        suite, key = ("images", "accuracy") if digits else ("tables", "auc")
        every = stored.of("papers", part="table", dataset=name, epsilon=1.0)
        tuned = [row for row in every if row.settings.get("search_runs_not_paid_for")]
        form = [row for row in every if row not in tuned]
        if digits:
            form = stored.of("papers", part="means", noise="eq8", epsilon=1.0)
        proven = stored.of(suite, dataset=name, method=OWN, epsilon=1.0, analysis="proven")
        proven = [row for row in proven if not digits or row.delta == 1e-5]
        real = stored.of(suite, dataset=name, method="real")
        if form or proven:
            own, printed_real = (
                _printed(stored.figures(dataset=data, method=method, **table))
                for method in ("ClustMix", "real")
            )
            yield [
                data if name == data else f"{data} (here {name})", own,
                "-" if digits else shown(form, AUTHORS), shown(form, key), shown(tuned, AUTHORS),
                shown(proven, key), printed_real, shown(real, key),
            ], [*form, *tuned, *proven, *real]  # fmt: skip


@tabled
def rivals_of_3a(stored: Stored) -> Iterator[Entry]:
    for one in stored.figures(paper="3A", where="Table 1"):
        name, kind = HERE.get(one["dataset"], one["dataset"]), KINDS.get(one["method"], "-")
        suites = ("rivals", "tables", "images")
        rows = [row for suite in suites for row in stored.of(suite, dataset=name, method=kind)]
        rows = [row for row in rows if row.epsilon in (None, 1.0)]
        if rows:
            key = "accuracy" if name == "mnist" else "auc"
            yield [one["dataset"], one["method"], f"{one['value']:g}", shown(rows, key)], rows


def figures_of_3a(stored: Stored) -> Parts:
    """3A, Figures 1 to 3: toy points, the noise of Eq. 8, digits at three budgets."""
    panels, forms = [], {"none": "real", "published": "printed", "proven": "proven"}
    toys = grouped(stored.of("papers", part="toy"), "dataset", "analysis", "epsilon")
    for (data, analysis, epsilon), (row, *_) in sorted(
        toys.items(), key=lambda one: (one[0][0], [*forms].index(one[0][1]))
    ):
        title = f"{data}, {forms[analysis]}" + (f" {epsilon:g}" if epsilon else "")
        points = np.column_stack([row.settings["x"], row.settings["y"]])
        panels.append((title, points, np.array(row.settings["label"])))
    parts: list[Table | str] = [plots.scatters(panels, columns=7), noise_plot(stored)]
    means = stored.of("papers", part="means")
    title = "3A, Figure 3: means of MNIST images with a noise"
    parts.append(table_of(means, "noise_stddev", "accuracy", AUTHORS, title=title))
    for row in stored.of("papers", part="digits"):
        said = ", clusters of {cluster_size}, noise {noise}" if "noise" in row.settings else ""
        form = {"none": "real", "published": "as printed"}.get(row.analysis, row.analysis)
        budget = f", epsilon {row.epsilon:g}" if row.epsilon else ""
        base64.b64decode(row.settings["png"], validate=True)
        parts.append(
            f'<figure><img alt="digits" src="data:image/png;base64,{row.settings["png"]}">'
            f"<figcaption>{form}{budget}{said.format(**row.settings)}<br>"
            f"<code>{row.command}</code></figcaption></figure>"
        )
    return parts


def noise_plot(stored: Stored) -> str:
    curves = {
        f"{row.dataset}, clusters of {row.settings['size']}": [
            (float(name.removeprefix("epsilon_")), sigma, 0.0)
            for name, sigma in row.figures.items()
        ]
        for row in stored.of("papers", part="noise")
    }
    panels = [plots.Panel("Noise of Eq. 8, features in [0, 1]", curves, level=1.0)]
    return plots.curves(
        panels if curves else [], across="epsilon", value="standard deviation", scale="log",
        columns=2, level="range of a feature",
    )  # fmt: skip


def _table_2(stored: Stored) -> Iterator[tuple[str, float | None, Any, Any]]:
    """Yield the parts of Table 2: data, epsilon, printed figures, and rows by order of mixture."""
    rows = [r for r in stored.of("papers", method="dp_cda") if r.cnn_accuracy is not None]
    known = grouped(rows, "dataset", "epsilon")
    for data, epsilon in product(IMAGES, (None, 20.0, 10.0, 1.0)) if known else ():
        figures = stored.figures(paper="DP-CDA", where="Table 2", dataset=data)
        figures = [one for one in figures if one.get("epsilon") == epsilon]
        yield data, epsilon, figures, grouped(known.get((data, epsilon), []), "order_of_mixture")


def dp_cda_curves(stored: Stored) -> str:
    panels = []
    for data, epsilon, figures, groups in _table_2(stored):
        printed = [(float(one["settings"]["order"]), one["value"], one.get("deviation", 0.0))
                   for one in figures]  # fmt: skip
        here = points_of({float(order): g for (order,), g in sorted(groups.items())}, ACCURACY)
        both = {"printed": printed, "as printed, here": here}
        if curves := {name: points for name, points in both.items() if points}:
            title = f"{data}, " + (f"epsilon {epsilon:g}" if epsilon else "no noise")
            panels.append(plots.Panel(title, curves))
    return plots.curves(panels, across="order of mixture", value="accuracy", bounds=(0.0, 1.0))


@tabled
def dp_cda_orders(stored: Stored) -> Iterator[Entry]:
    for data, epsilon, figures, groups in _table_2(stored):
        for one in figures:
            order = one["settings"]["order"]
            group = groups.get((order,), [])
            cells = [data, epsilon_text(epsilon), str(order), _printed([one])]
            yield [*cells, shown(group, ACCURACY, 4)], group


@tabled
def dp_cda(stored: Stored) -> Iterator[Entry]:
    for data, epsilon, figures, groups in _table_2(stored):
        if groups:
            best = max(groups, key=lambda order: mean(values_of(groups[order], ACCURACY)))
            top = max(figures, key=lambda one: float(one["value"]), default=None)
            printed = (f"{top['value']:.3f}", str(top["settings"]["order"])) if top else ("-", "-")
            here = (shown(groups[best], ACCURACY), str(best[0]))
            yield [data, epsilon_text(epsilon), *printed, *here], groups[best]


@tabled
def dp_cda_table_3(stored: Stored) -> Iterator[Entry]:
    keys = {"the paper's network": "paper_cnn_accuracy", "a network": "cnn_accuracy",
            "logistic regression": "accuracy"}  # fmt: skip
    for one in stored.figures(paper="DP-CDA", where="Table 3"):
        kind = KINDS.get(one["method"]) or KINDS[one["method"].lower()]
        rows = stored.of("images", dataset=one["dataset"], method=kind, epsilon=one.get("epsilon"))
        rows = [row for row in rows if row.analysis != "none"]
        if rows:
            how, key = next(each for each in keys.items() if values_of(rows, each[1]))
            best = max(rows, key=lambda row: value_of(row, key) or 0.0)
            cells = [one["dataset"], one["method"], epsilon_text(one.get("epsilon"))]
            yield [*cells, _printed([one]), shown([best], key), how], [best]


def dp_mix(stored: Stored) -> Table:
    mixed = stored.of("papers", part="mixtures", method="dp_mix")
    rows = [replace(row, settings={**row.settings, "images": row.rows_out}) for row in mixed]
    return table_of(rows, title="DPMix as printed")


def dpgm(stored: Stored) -> Parts:
    clusters = [row for row in stored.of("papers") if "clustering_accuracy" in row.figures]
    queries = [row for row in stored.of("papers") if "error_20" in row.figures]
    panels = [
        plots.Panel(f"{data}, {design}", _curves(group, "variant"))
        for (data, design), group in grouped(queries, "dataset", "design").items()
    ]
    panel = plots.Panel("MNIST in black and white", _curves(clusters, "features"))
    return [
        plots.curves([panel] if clusters else [], across="epsilon", value="accuracy of clusters",
                     columns=2),
        table_of(clusters, "clustering_accuracy", title="DPGM, Figure 3"),
        plots.curves(panels, across="epsilon", value="mean relative error", columns=2,
                     scale="log"),
        table_of(queries, title="DPGM, section 6.3: error of the five sets of queries"),
    ]  # fmt: skip


def _curves(rows: list[ResultRow], fact: str) -> dict[str, list[tuple[float, float, float]]]:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for (name, epsilon), group in sorted(grouped(rows, fact, "epsilon").items()):
        point = (epsilon, *spread([mean(row.figures.values()) for row in group]))
        found.setdefault(str(name).replace("_", " "), []).append(point)
    return found


def printed(figures: Iterable[dict[str, Any]], title: str) -> Table:
    header = ("where", "data", "method", "figure", "settings", "epsilon", "printed")
    entries: list[Entry] = []
    for one in figures:
        settings = ", ".join(map(str, one.get("settings", {}).values())) or "-"
        cells = [one["where"], one["dataset"], one["method"], one["metric"].replace("_", " ")]
        entries.append(([*cells, settings, epsilon_text(one.get("epsilon")), _printed([one])], []))
    return made_table(title, header, entries)


def nist_in_full(stored: Stored) -> Table:
    rows, entries = stored.of("nist"), list[tuple[Any, Entry]]()
    digits = {"k_marginal": 1, "propensity_mse": 4, "inconsistent_records": 0}
    names = list(dict.fromkeys([*digits, *(name for row in rows for name in row.figures)]))

    groups = grouped(rows, "features", "epsilon", "method", "rules")
    for (features, epsilon, method, ruled), group in groups.items():
        name = NAMES.get(method, method) + (", with rules" if ruled else "")
        cells = [str(features), epsilon_text(epsilon), name, "here", str(len(group))]
        cells += [shown(group, key, digits.get(key)) for key in names]
        best = max(values_of(group, "k_marginal"), default=0.0)
        entries.append(((features or 0, epsilon or 99.0, -best), (cells, group)))
    of_paper: dict[tuple[Any, ...], dict[str, float]] = {}
    for one in stored.figures(paper="NIST") if rows else ():
        key = (one["settings"]["features"], one.get("epsilon"), one["method"])
        of_paper.setdefault(key, {})[one["metric"]] = one["value"]
    for (features, epsilon, method), found in of_paper.items():
        cells = [str(features), epsilon_text(epsilon), method, "NIST", "-"]
        cells += [f"{found[name]:g}" if name in found else "-" for name in names]
        best = found.get("k_marginal", 0.0)
        entries.append(((features, epsilon or 99.0, -best), (cells, [])))
    entries.sort(key=lambda one: one[0])
    header = ("features", "epsilon", "method", "from", "draws", *names)
    title = "NIST Diverse Communities, national2019, scored by sdnist"
    return made_table(title, (name.replace("_", " ") for name in header), (e for _, e in entries))


def nist(stored: Stored) -> Table:
    table, chosen = nist_in_full(stored), [0, 1, 2, 3, 5, 7]
    lines = ([cells[place].replace(" ", "-") for place in chosen] for cells, _ in table.lines)
    return made_table("", (table.header[place] for place in chosen), ((one, ()) for one in lines))
