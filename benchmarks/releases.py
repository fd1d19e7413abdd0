"""One release by the program that users run, or one rival or peer, scored from its files.

A table is split by patient. The training part is written to a file of its own, the site file is
pointed at it, and ``clustmix release`` runs on it in an empty home; of a rival
``python -m benchmarks.rivals`` does, and a peer gets the rows in codes (`benchmarks.peers`).
`benchmarks.score` then judges the files by the held-out rows in a process that imports nothing of
the pipeline. Images have test files of their own and no split.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.bundle_rows import MISSING, label_of, mapped
from benchmarks.jobs import Job
from benchmarks.peer_exchange import Request
from benchmarks.peers import coded, made_by, n_codes_of
from benchmarks.process_memory import MeasuredCommand, run_measured
from benchmarks.results import (
    BENCHMARK_OUTPUT,
    BUNDLE,
    IN_PROCESS,
    PEER,
    ResultRow,
    print_row,
)
from benchmarks.rivals.registry import ACCOUNTED, PRINTED
from benchmarks.tables import ROOT, divided, read_table, site_document, with_method, write_site
from flows.site.site_file import SiteFile
from tasks.ingest.encoding import decode, domain_of
from tasks.methods.registry import build

PEERS = ("aim", "mst")
"""Programs of others, of `benchmarks.peers`, that are measured on tables."""

FORMS = {"proven": "proven", PRINTED: "published", ACCOUNTED: "accounted"}
"""Analysis by the form that a command names."""

_KEPT = ("auc", "accuracy", "log_loss", "calibration_error", "tvd_1way", "tvd_2way",
         "cnn_accuracy", "teacher_accuracy")  # fmt: skip
_MORE = ("calibration_by_chance", "query_error", "paper_cnn_accuracy", "read_as_class",
         "importance_agreement")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: a method on one split of a dataset, or one draw of it.

    Parameters
    ----------
    dataset, method
        Name of a site file, and kind of a method; ``real`` for the real rows.
    epsilon, delta
        In place of those of the site file; the lifetime budget is made to fit.
    seed
        Split, or number of a draw where nothing is split.
    form
        ``proven``, or a form of a rival.
    rows
        Rows that are taken of the table, all if left out.
    look
        Number of an earlier look at a table, in the commands of rows that are kept from it.
    """

    dataset: str
    method: str
    epsilon: float | None = None
    seed: int = 0
    form: str = "proven"
    rows: int | None = None
    look: int | None = None
    delta: float | None = None

    def job(self, suite: str, *, counted: str = "--split", limit_seconds: int = 1800) -> Job:
        """Return the job of a suite that makes this row."""
        words = [f"benchmarks.suites.{suite}", "--dataset", self.dataset, "--method", self.method]
        words += ["--form", self.form] if self.form != "proven" else []
        words += ["--epsilon", f"{self.epsilon:g}"] if self.epsilon is not None else []
        words += ["--delta", f"{self.delta:g}"] if self.delta is not None else []
        words += ["--rows", str(self.rows)] if self.rows is not None else []
        words += [counted, str(self.seed)]
        words += ["--look", str(self.look)] if self.look is not None else []
        return Job(suite=suite, command=tuple(words), limit_seconds=limit_seconds)

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
        own = self.form == "proven" and self.method not in ("real", *PEERS)
        return with_method(document, self.method) if own else document


def asked(suite: str, arguments: Sequence[str] | None, *, counted: str = "--split") -> Run:
    """Read the command of a job."""
    parser = argparse.ArgumentParser(prog=f"benchmarks.suites.{suite}")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--form", choices=FORMS, default="proven")
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--delta", type=float)
    parser.add_argument("--rows", type=int)
    parser.add_argument(counted, type=int, default=0, dest="seed")
    parser.add_argument("--look", type=int, help="of rows that an earlier program made")
    return Run(**vars(parser.parse_args(arguments)))


def main_of(suite: str, arguments: Sequence[str] | None) -> int:
    """Run the job of a suite of tables."""
    run = asked(suite, arguments)
    return print_row(measured(run, site_document(run.dataset)))


def measured(
    run: Run,
    document: dict[str, Any],
    *,
    look_at: Callable[[pd.DataFrame], None] | None = None,
) -> ResultRow:
    """Split a table, make rows of the one part, and score them by the other.

    ``look_at`` is called with the rows that were made.
    """
    with tempfile.TemporaryDirectory(prefix="clustmix-bench-") as name:
        folder = Path(name)
        document, test, rows = divided(run.changed(document), run.seed, folder, rows=run.rows)
        site = write_site(document, folder / "site.yaml")
        noted = {key: v for key in ("rows", "look") if (v := getattr(run, key)) is not None}
        facts: dict[str, Any] = {
            "dataset": site.dataset,
            "method": run.method,
            "analysis": FORMS[run.form],
            "epsilon": site.privacy.epsilon,
            "delta": site.privacy.delta,
            "seed": run.seed,
            "rows": rows,
            "columns": len(site.columns_to_read),
            "settings": noted,
        }
        if run.method == "real":
            bundle = real_rows(site, folder)
            facts |= {"analysis": "none", "epsilon": None, "delta": None, "source": IN_PROCESS}
        elif run.method in PEERS:
            bundle, cost = peer_rows(run.method, site, run.seed, folder)
            facts |= {"analysis": "stated", "source": PEER, **cost}
        else:
            bundle, cost = released(site, folder, run)
            facts |= {"source": BUNDLE if run.form == "proven" else BENCHMARK_OUTPUT, **cost}
        if look_at is not None:
            look_at(pd.read_parquet(bundle / "synthetic.parquet"))
        train = None if site.table_schema.image else Path(document["source"]["path"])
        return ResultRow(**facts, **scored(bundle, test, train))


def released(site: SiteFile, folder: Path, run: Run) -> tuple[Path, dict[str, Any]]:
    """Release the table of the site file in a folder; return the bundle and the costs."""
    path = str(folder / "site.yaml")
    if run.form == "proven":
        program = str(Path(sys.executable).parent / "clustmix")
        used, answer = commanded([program, "release", path], folder)
        bundle = folder / "releases" / site.dataset / answer["release_id"]
    else:
        command = [sys.executable, "-m", "benchmarks.rivals", run.method, "--dataset", path]
        command += ["--form", run.form, "--output", str(folder / "output")]
        used, answer = commanded(command, folder)
        bundle = Path(answer["folder"])
    seconds: dict[str, float] = answer.get("stage_seconds", {})
    own = {"decode", "paper-method"}  # without sampling and decoding there are no records
    if run.form == "proven" and seconds:
        own |= {stage.name for stage in build(site.method, domain_of(site.table_schema)).stages()}
    return bundle, {
        "wall_seconds": used.wall_seconds,
        "cpu_seconds": used.cpu_seconds,
        "method_seconds": round(sum(t for n, t in seconds.items() if n in own), 3) or None,
        "stage_seconds": seconds,
        "peak_rss_mib": used.peak_rss_mib,
        "peak_pss_mib": used.peak_pss_mib,
    }


def peer_rows(kind: str, site: SiteFile, seed: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Let a peer make rows from those of a site file; return them as a bundle, and the costs."""
    if site.unit.max_rows != 1:
        raise ValueError("expected patients of one row: what a peer protects is one row")
    schema, privacy = site.table_schema, site.privacy
    request = Request(
        n_codes=n_codes_of(schema),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        rows_out=site.n_rows,
    )
    made, cost = made_by(kind, request, coded(read_table(site), schema), folder)
    (folder / "schema.json").write_text(schema.model_dump_json(), encoding="utf-8")
    rng = np.random.default_rng(seed)
    decode(made[:, :-1], made[:, -1], schema, rng=rng).to_parquet(folder / "synthetic.parquet")
    return folder, cost


def commanded(arguments: Sequence[str], folder: Path) -> tuple[MeasuredCommand, dict[str, Any]]:
    """Run a command in an empty home; return what it used and what it answered."""
    used = run_measured(
        [*arguments, "--json"],
        {
            "CLUSTMIX_HOME": f"{folder}/home",
            "CLUSTMIX_RELEASES": f"{folder}/releases",
            "PYTHONPATH": str(ROOT),
        },
    )
    if used.exit_code != 0:
        said = (used.stdout + used.stderr).strip()[-2000:]
        raise RuntimeError(
            f"expected {' '.join(arguments[:3])} to end with exit code 0, found "
            f"{used.exit_code}: {said}"
        )
    return used, json.loads(used.stdout)


def real_rows(site: SiteFile, folder: Path) -> Path:
    """Lay the real training rows out as a bundle: the ceiling, without privacy.

    Rows without one of the labels are left out, as they are by a release.
    """
    (folder / "schema.json").write_text(site.table_schema.model_dump_json(), encoding="utf-8")
    frame = read_table(site)
    for declared in (site.table_schema.label, *site.table_schema.more_labels):
        label = declared.model_dump(mode="json")
        levels = mapped(frame[label["name"]], partial(label_of, label=label))
        frame = frame[levels != MISSING]
    frame.to_parquet(folder / "synthetic.parquet", index=False)
    return folder


def scored(bundle: Path, test: Path, train: Path | None = None) -> dict[str, Any]:
    """Score files in a process of its own."""
    trained = ["--trained", str(train)] if train else []
    answer = subprocess.run(  # noqa: S603, the command is the benchmark's own
        [sys.executable, "-m", "benchmarks.score", "--networks", *trained, str(bundle), str(test)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(answer.stdout)
    shares = [abs(real - made) for real, made in found["label_shares"].values()]
    figures = {
        "largest_label_share_error": round(max(shares), 5),
        "worst_column": max(found["worst_columns"].values()),
        **{name: found[name] for name in _MORE if found.get(name) is not None},
        **found["by_group"],
    }
    for label, of_label in found["more_labels"].items():
        figures |= {f"{name}, {label}": of_label[name] for name in ("auc", "accuracy", "log_loss")}
    kept = {name: found.get(name) for name in _KEPT}
    return {**kept, "rows_out": found["rows"], "figures": figures}
