"""Sections of the report on our own suites; each is left out where it has no rows yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product
from statistics import mean

from benchmarks import report_plots as plots
from benchmarks.results import ResultRow
from benchmarks.stored_rows import (
    LAYOUT,
    NAMES,
    Entry,
    Stored,
    Table,
    epsilon_text,
    grouped,
    name_of,
    shown,
    spread,
    table_of,
    tabled,
    values_of,
)  # fmt: skip

EPSILONS = (0.2, 1.0, 10.0)
OWN, YARDSTICK = "clustmix", "naive_bayes"
IN_PLOT: dict[str, str] = LAYOUT["in_plot"]
IMAGES = ("mnist", "fashion-mnist")
OF_TABLES = ("auc", "accuracy", "log_loss", "tvd_1way", "tvd_2way", "cpu_seconds")

Parts = Sequence[Table | str]
"""Tables, and plots as SVG."""


def datasets(stored: Stored) -> list[str]:
    """Return the tables with ClustMix at an epsilon of one, and naive Bayes beside it."""
    rows = stored.of("tables", epsilon=1.0)
    other = {row.dataset for row in rows if row.method == YARDSTICK}
    return list(dict.fromkeys(r.dataset for r in rows if r.method == OWN and r.dataset in other))


def runs(stored: Stored, dataset: str, method: str, epsilon: float | None) -> list[ResultRow]:
    found = stored.of("tables", dataset=dataset, method=method, epsilon=epsilon)
    return [row for row in found if row.analysis in ("proven", "stated", "none")]


def standard_error(values: Sequence[float]) -> float:
    return spread(values)[1] / len(values) ** 0.5


@tabled
def auc(stored: Stored) -> Iterator[Entry]:
    for name in datasets(stored):
        groups = [runs(stored, name, "real", None)]
        groups += [runs(stored, name, m, e) for e in EPSILONS for m in (OWN, YARDSTICK)]
        yield [name, *(shown(group, "auc") for group in groups)], chain(*groups)


@tabled
def probabilities(stored: Stored) -> Iterator[Entry]:
    for name in datasets(stored):
        groups = [runs(stored, name, m, 1.0) for m in (OWN, YARDSTICK)]
        groups.append(runs(stored, name, "real", None))
        cells = [shown(group, "log_loss", 2) for group in groups]
        cells += [shown(groups[i], "calibration_error", 2) for i in (0, 2)]
        yield [name, *(cell.split("±")[0] for cell in cells), str(len(groups[0]))], chain(*groups)


@tabled
def verdicts(stored: Stored) -> Iterator[Entry]:
    signs = {"auc": 1, "accuracy": 1, "log_loss": -1, "tvd_2way": -1, "tvd_1way": -1}
    for name, epsilon in product(datasets(stored), EPSILONS):
        theirs = {row.seed: row for row in runs(stored, name, YARDSTICK, epsilon)}
        own = runs(stored, name, OWN, epsilon)
        pairs = [(row, theirs[row.seed]) for row in own if row.seed in theirs]
        if len(pairs) < 2:
            continue
        cells = []
        for key, sign in signs.items():
            gains = [sign * (getattr(a, key) - getattr(b, key)) for a, b in pairs]
            gain, error = mean(gains), standard_error(gains)
            verdict = "ahead" if gain > 2 * error else "level"
            verdict = "below" if -gain > max(2 * error, 0.005) else verdict
            cells.append(f"{gain:+.4f} ± {error:.4f} {verdict}")
        yield [name, f"{epsilon:g}", str(len(pairs)), *cells], chain(*pairs)


@tabled
def fairness(stored: Stored) -> Iterator[Entry]:
    known = [row for row in stored.of("groups") if "importance_agreement" in row.figures]
    for (name, method, epsilon), group in grouped(known, "dataset", "method", "epsilon").items():
        keys = dict.fromkeys(k for row in group for k in row.figures if k.startswith("auc, "))
        by = "; ".join(f"{k.removeprefix('auc, ')} {shown(group, k)}" for k in keys)
        cells = [name, NAMES.get(method, method), epsilon_text(epsilon), shown(group, "auc")]
        more = ("importance_agreement", "calibration_error", "calibration_by_chance")
        yield [*cells, by or "-", *(shown(group, key) for key in more)], group


def points_of(groups: dict[float, list[ResultRow]], key: str) -> plots.Points:
    """Return mean and error bar of a figure by epsilon, or by another number."""
    found = {place: values_of(group, key) for place, group in groups.items()}
    return [(place, *spread(values)) for place, values in found.items() if values]


def auc_plot(stored: Stored, names: dict[str, str] | None = None, columns: int = 3) -> str:
    panels = []
    for dataset, name in (IN_PLOT if names is None else names).items():
        curves = {}
        for method in (OWN, YARDSTICK, "aim"):
            groups = {e: runs(stored, dataset, method, e) for e in EPSILONS}
            if points := points_of(groups, "auc"):
                curves[NAMES[method]] = points
        real = values_of(runs(stored, dataset, "real", None), "auc")
        rows = max(values_of(runs(stored, dataset, OWN, 1.0), "rows"), default=0)
        level = mean(real) if real else None
        panels.append(plots.Panel(f"{name}, {rows:,} rows", curves, level))
    return plots.curves(panels, across="epsilon", value="AUC", columns=columns, bounds=(0.5, 1.0))


def auc_plots(stored: Stored) -> str:
    several = {row.dataset for row in stored.of("tables", epsilon=10.0)}
    names = {name: name for name in datasets(stored) if name in several}
    return auc_plot(stored, names, columns=4)


def tables_plot(stored: Stored) -> str:
    found = []
    for name in datasets(stored):
        groups = [runs(stored, name, OWN, 1.0), runs(stored, name, YARDSTICK, 1.0)]
        groups.append(runs(stored, name, "real", None))
        if all(values_of(group, "auc") for group in groups):
            found.append((name, [mean(values_of(group, "auc")) for group in groups]))
    found.sort(key=lambda row: row[1][2] - row[1][0])
    return plots.dots(found, ("ClustMix", "naive Bayes", "real rows"), bottom=0.5)


def time_plot(stored: Stored) -> str:
    panels = []
    for suite, dataset, key in (("tables", "adult", "auc"), ("images", "mnist", "accuracy"),
                                ("rivals", "adult", "auc")):  # fmt: skip
        rows = stored.of(suite, dataset=dataset, epsilon=1.0)
        groups = {name: [r for r in rows if name_of(r) == name] for name in map(name_of, rows)}
        marks = {
            name: (mean(seconds), mean(values))
            for name, group in groups.items()
            if (seconds := values_of(group, "cpu_seconds")) and (values := values_of(group, key))
        }
        if marks:
            panels.append((f"{dataset}, {key}, epsilon 1 ({suite})", marks))
    return plots.places(panels, across="processor seconds", value="utility")


def adult(stored: Stored) -> Table:
    rows = sorted(stored.of("tables", dataset="adult"), key=lambda row: row.epsilon or 0.0)
    return table_of(rows, *OF_TABLES, title="Adult: every method, form and rival")


def rivals(stored: Stored) -> Table:
    rows = stored.of("rivals")
    rows += [row for name in dict.fromkeys(row.dataset for row in rows)
             for method, epsilon in ((OWN, 1.0), ("aim", 1.0), ("real", None))
             for row in runs(stored, name, method, epsilon)]  # fmt: skip
    rows.sort(key=lambda row: row.dataset)
    title = "Networks of others, ClustMix and AIM"
    return table_of(rows, *OF_TABLES, "epsilon_by_its_own_count", title=title)


def image_plot(stored: Stored) -> str:
    keys = {"network": "cnn_accuracy", "released classifier": "teacher_accuracy",
            "logistic regression": "accuracy"}  # fmt: skip
    panels = []
    for name in IMAGES:
        own = {"dataset": name, "method": OWN, "delta": 1e-5}
        groups = {epsilon: stored.of("images", epsilon=epsilon, **own) for epsilon in EPSILONS}
        found = {title: points_of(groups, key) for title, key in keys.items()}
        curves = {title: points for title, points in found.items() if points}
        real = values_of(stored.of("images", dataset=name, method="real"), "cnn_accuracy")
        if curves:
            panels.append(plots.Panel(name, curves, mean(real) if real else None))
    return plots.curves(
        panels, across="epsilon", value="accuracy", level="network trained on real images"
    )


def images(stored: Stored) -> Table:
    rows = [
        r for r in stored.of("images") if r.method == "real" or (r.method, r.delta) == (OWN, 1e-5)
    ]
    names = ("accuracy", "cnn_accuracy", "paper_cnn_accuracy", "teacher_accuracy", "cpu_seconds")
    return table_of(rows, *names, title="ClustMix, and real images")


@tabled
def parts(stored: Stored) -> Iterator[Entry]:
    keys = ("auc", "log_loss", "tvd_2way")
    found = grouped(stored.of("parts", epsilon=1.0), "dataset", "variant")
    for (dataset, variant), group in found.items():
        whole = {row.seed: row for row in found[dataset, "whole"]}
        cells = [shown(group, key) for key in keys]
        if variant != "whole":
            pairs = [(row, whole[row.seed]) for row in group if row.seed in whole]
            moved = [[getattr(a, key) - getattr(b, key) for a, b in pairs] for key in keys]
            cells = [f"{mean(one):+.3f}±{standard_error(one):.3f}" for one in moved]
        yield [dataset, variant, *cells], group


@tabled
def cost(stored: Stored) -> Iterator[Entry]:
    names = ("adult", "diabetes130-readmission", "physionet2012-mortality", "isolet-vowels")
    groups = {name: runs(stored, name, OWN, 1.0) for name in names}
    groups |= {f"{row.dataset}, {row.rows:,}": [row] for row in stored.of("sizes")}
    for name, group in groups.items():
        if group:
            rows, seconds = (mean(values_of(group, key)) for key in ("rows", "wall_seconds"))
            peak = max(values_of(group, "peak_rss_mib"))
            cells = (f"{rows:,.0f}", str(group[0].columns), f"{seconds:.0f}", f"{peak:,.0f}")
            yield [name, *cells], group


@tabled
def distilled(stored: Stored) -> Iterator[Entry]:
    keys = ("points, ridge", "points, trees", "random rows, ridge", "random rows, trees")
    for row in stored.of("distill"):
        for n in (name.split()[0] for name in row.figures if name.endswith(" points, ridge")):
            named = (*(f"{n} {key}" for key in keys), "all rows, trees", f"{n} points, seconds")
            cells = [shown([row], key) for key in named]
            yield [row.dataset, n, *cells, row.settings.get("device", "-")], [row]


@tabled
def outcomes(stored: Stored) -> Iterator[Entry]:
    for row in stored.rows:
        if row.outcome:
            cells = [str(row.suite), row.dataset, row.method, epsilon_text(row.epsilon)]
            yield [*cells, row.outcome, str(row.settings.get("limit_seconds", "-"))], [row]
