"""Peers beside ClustMix on the same splits, from the stored rows.

``python -m benchmarks.peer_tables`` prints the tables; ``docs/figures.py`` writes a short one into
``docs/results.md``. A later look at a public table replaces an earlier one of the same split.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from benchmarks import public_tables, releases
from benchmarks.public_tables import FIGURES, Difference
from benchmarks.results import PEER, RESULTS, ResultRow, figure, markdown_table, read_rows

RESULT_FILE = RESULTS / "peers.json"

OWN = "clustmix"
NAMES = {"real": "real rows", OWN: "ClustMix", "naive_bayes": "naive Bayes", "aim": "AIM",
         "pgm": "junction tree"}  # fmt: skip
TITLES = {"auc": "AUC", "accuracy": "accuracy", "log_loss": "log-loss", "tvd_2way": "2-way",
          "tvd_1way": "1-way"}  # fmt: skip

Group = dict[int | None, ResultRow]
Groups = dict[tuple[str, float, str], Group]


def groups_of(rows: Iterable[ResultRow]) -> Groups:
    """Put the runs of one table, epsilon and method together by split, if a peer has the split.

    The real rows, which have no epsilon, stand beside every epsilon.
    """
    rows = sorted(rows, key=lambda row: row.settings.get("look", 1))
    peers = [row for row in rows if row.source == PEER]
    splits = {(row.dataset, row.epsilon or inf, row.seed) for row in peers}
    found: Groups = {}
    for dataset, epsilon, _ in dict.fromkeys((r.dataset, r.epsilon or inf, "") for r in peers):
        for method in NAMES:
            for row in rows:
                fits = (row.dataset, row.method) == (dataset, method)
                proven = row.analysis != "published" and row.epsilon in (None, epsilon)
                if fits and proven and (dataset, epsilon, row.seed) in splits:
                    found.setdefault((dataset, epsilon, method), {})[row.seed] = row
    return found


def value_table(groups: Groups) -> str:
    """Lay out means over the splits, with their standard deviations."""
    lines = [
        (
            dataset,
            f"{epsilon:g}",
            NAMES[method],
            str(len(rows)),
            *(figure([getattr(row, name) for row in rows.values()], 4) for name in TITLES),
            figure([row.cpu_seconds for row in rows.values()], 0),
        )
        for (dataset, epsilon, method), rows in groups.items()
    ]
    header = ("table", "epsilon", "method", "splits", *TITLES.values(), "CPU s")
    return markdown_table(header, lines)


def gains(groups: Groups) -> list[tuple[str, float, str, dict[str, Difference]]]:
    """Return how much better each peer is than ClustMix, on the splits of both."""
    found = []
    for (dataset, epsilon, method), rows in groups.items():
        own = groups.get((dataset, epsilon, OWN), {})
        seeds = [seed for seed in rows if seed in own and rows[seed].source == PEER]
        if seeds:
            differences = {
                name: Difference(
                    gains=tuple(
                        sign * (getattr(rows[seed], name) - getattr(own[seed], name))
                        for seed in seeds
                    )
                )
                for name, sign in FIGURES.items()
            }
            found.append((dataset, epsilon, method, differences))
    return found


def gain_table(groups: Groups) -> str:
    """Lay out the gains of the peers over ClustMix, with standard errors and verdicts."""
    lines = [
        (
            dataset,
            f"{epsilon:g}",
            NAMES[method],
            str(len(differences["auc"].gains)),
            *(str(differences[name]) for name in TITLES),
        )
        for dataset, epsilon, method, differences in gains(groups)
    ]
    return markdown_table(("table", "epsilon", "peer", "splits", *TITLES.values()), lines)


def tables() -> str:
    """Return both tables, of all that is stored."""
    files = (RESULT_FILE, releases.RESULT_FILE, public_tables.RESULT_FILE)
    groups = groups_of(row for path in files for row in read_rows(path))
    return f"{value_table(groups)}\n\n{gain_table(groups)}\n"


def main() -> None:
    print(tables())


if __name__ == "__main__":
    main()
