"""One release by the program that users run, or one rival or peer, scored from its files.

A table is split by patient, the site file is pointed at the training part, and `benchmarks.score`
judges the files by the held-out rows. Images have test files of their own and no split.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.bundle_rows import MISSING, label_of, mapped
from benchmarks.jobs import asked
from benchmarks.peer_programs import SPENT
from benchmarks.peers import PROGRAMS, made_by
from benchmarks.process_memory import run_measured
from benchmarks.results import BENCHMARK_OUTPUT, BUNDLE, IN_PROCESS, PEER, ResultRow, print_row
from benchmarks.tables import ROOT, divided, read_table, site_document, with_method, write_site
from flows.site.site_file import SiteFile

FORMS = {"proven": "proven", "printed": "published", "accounted": "accounted"}
"""Analysis by the form that a command names."""

REAL: dict[str, Any] = {"analysis": "none", "epsilon": None, "delta": None, "source": IN_PROCESS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: a method on one split of a dataset, or one draw of it.

    ``method`` is ``real`` for the real rows, ``form`` is ``proven`` or a form of a rival. Epsilon
    and delta stand in place of those of the site file; ``rows`` are taken of the table, all if left
    out.
    """

    dataset: str
    method: str
    form: str = "proven"
    epsilon: float | None = None
    delta: float | None = None
    rows: int | None = None
    seed: int = 0

    def changed(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a site file with the budget and the method of the run."""
        privacy, budget = document["privacy"], document["budget"]
        epsilon = self.epsilon or privacy["epsilon"]
        cap = max(budget["lifetime_epsilon"], epsilon)
        document = {
            **document,
            "privacy": {**privacy, "epsilon": epsilon, "delta": self.delta or privacy["delta"]},
            "budget": {**budget, "lifetime_epsilon": cap},
        }
        own = self.form == "proven" and self.method not in ("real", *PROGRAMS)
        return with_method(document, self.method) if own else document


def table_row(run: Run) -> ResultRow:
    return measured(run, site_document(run.dataset))


def main(row_of: Callable[[Run], ResultRow] = table_row) -> int:
    """Print the row of the run that the command of this process names."""
    return print_row(row_of(Run(**asked(Run, None))))


def measured(
    run: Run, document: dict[str, Any],
    look_at: Callable[[pd.DataFrame], dict[str, float]] | None = None,
) -> ResultRow:  # fmt: skip
    """Split a table, make rows of the one part, and score them by the other.

    ``look_at`` makes further figures of the rows that were made.
    """
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        document, test, rows = divided(run.changed(document), run.seed, folder, rows=run.rows)
        site = write_site(document, folder / "site.yaml")
        if run.method == "real":
            bundle, facts = real_rows(site, folder), REAL
        elif run.method in PROGRAMS:
            bundle, facts = peer_rows(run.method, site, folder)
        else:
            bundle, facts = released(site, folder, run)
        train = None if site.table_schema.image else Path(document["source"]["path"])
        found = scored(bundle, test, train)
        if (folder / SPENT).is_file():
            spent = round(float((folder / SPENT).read_text(encoding="utf-8")), 4)
            found["figures"]["epsilon_by_its_own_count"] = spent
        if look_at is not None:
            found["figures"] |= look_at(pd.read_parquet(bundle / "synthetic.parquet"))
        return ResultRow(
            dataset=site.dataset, method=run.method, seed=run.seed, rows=rows,
            columns=len(site.columns_to_read),
            settings={} if run.rows is None else {"rows": run.rows},
            **facts, **found,
        )  # fmt: skip


def budget_of(site: SiteFile) -> dict[str, Any]:
    return {"epsilon": site.privacy.epsilon, "delta": site.privacy.delta}


def released(site: SiteFile, folder: Path, run: Run) -> tuple[Path, dict[str, Any]]:
    """Release the table of the site file in a folder; return the bundle, and facts of its row."""
    path = str(folder / "site.yaml")
    if run.form == "proven":
        program = str(Path(sys.executable).parent / "clustmix")
        used, answer = _commanded([program, "release", path], folder)
        bundle = folder / "releases" / site.dataset / answer["release_id"]
    else:
        command = [sys.executable, "-m", "benchmarks.rivals", run.method, "--dataset", path]
        command += ["--form", run.form, "--output", str(folder / "output")]
        used, answer = _commanded(command, folder)
        bundle = Path(answer["folder"])
    return bundle, {
        "analysis": FORMS[run.form],
        "source": BUNDLE if run.form == "proven" else BENCHMARK_OUTPUT,
        "stage_seconds": answer.get("stage_seconds", {}),
        **budget_of(site),
        **used,
    }


def peer_rows(kind: str, site: SiteFile, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Let a peer make rows from those of a site file; return a bundle, and facts of its row."""
    if site.unit.max_rows != 1:
        raise ValueError("expected patients of one row: what a peer protects is one row")
    made, cost = made_by(
        kind, site.table_schema, read_table(site), folder, n_rows=site.n_rows, **budget_of(site)
    )
    facts = REAL if kind == "ads_gan" else {"analysis": "stated", **budget_of(site)}
    return as_bundle(made, site, folder), {**facts, "source": PEER, **cost}


def as_bundle(frame: pd.DataFrame, site: SiteFile, folder: Path) -> Path:
    (folder / "schema.json").write_text(site.table_schema.model_dump_json(), encoding="utf-8")
    frame.to_parquet(folder / "synthetic.parquet", index=False)
    return folder


def real_rows(site: SiteFile, folder: Path) -> Path:
    """Lay the real training rows out as a bundle: the ceiling, without privacy.

    Rows without one of the labels are left out, as they are by a release.
    """
    frame = read_table(site)
    for declared in (site.table_schema.label, *site.table_schema.more_labels):
        label = declared.model_dump(mode="json")
        levels = mapped(frame[label["name"]], partial(label_of, label=label))
        frame = frame[levels != MISSING]
    return as_bundle(frame, site, folder)


def _commanded(command: list[str], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    places = {"CLUSTMIX_HOME": f"{folder}/home", "CLUSTMIX_RELEASES": f"{folder}/releases"}
    said, used = run_measured([*command, "--json"], {**places, "PYTHONPATH": str(ROOT)})
    return used, json.loads(said)


def scored(bundle: Path, test: Path, train: Path | None = None) -> dict[str, Any]:
    words = [*(["--trained", str(train)] if train else []), str(bundle), str(test)]
    command = [sys.executable, "-m", "benchmarks.score", *words]
    found: dict[str, Any] = json.loads(run_measured(command, {"PYTHONPATH": str(ROOT)})[0])
    del found["worst_columns"]
    return found
