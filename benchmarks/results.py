"""The one form of the rows that every benchmark writes, and the tables that people read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

BUNDLE = "bundle"
"""The files of ``clustmix release``, scored by a process that reads nothing else."""

BENCHMARK_OUTPUT = "benchmark-output"
"""The marked files of ``benchmarks.rivals``, scored in the same way: no release."""

IN_PROCESS = "in-process"
"""No command ran: the real rows, or a part of the pipeline called by itself (an ablation)."""

PEER = "peer"
"""Rows that another program made from the same coded rows, in an environment of its own."""

SOURCES = (BUNDLE, BENCHMARK_OUTPUT, IN_PROCESS, PEER)
GUARANTEES = {
    "proven": "proven",
    "published": "claimed, not proven",
    "accounted": "accounted, not proven",
    "stated": "stated by its authors",
    "none": "none",
}
"""What epsilon and delta stand for, by analysis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One measured run. What does not apply, or was not measured, is None.

    Parameters
    ----------
    dataset, method
        Name of the dataset, and kind of the method; ``real`` for the real rows.
    analysis
        ``proven``, ``published`` (epsilon is claimed by a paper), ``accounted`` (of a rival whose
        noise is calibrated here), ``stated`` (by the authors of a peer, whose program is not
        checked here), or ``none`` without noise.
    epsilon, delta
        Parameters under add or remove of one patient; None without noise.
    seed
        Seed of the split into training and test records, or number of a run of an ablation. It
        is never a seed of the noise of a release.
    source
        What was scored, one of `SOURCES`.
    rows, columns
        Size of the table that was read.
    rows_out
        Rows of the release.
    auc, accuracy, log_loss, calibration_error
        Of a classifier trained on the release, on real records that it has not seen.
    tvd_1way, tvd_2way
        Mean total variation distance to those records, label included.
    cnn_accuracy
        Accuracy on real test images of the small network trained on the released ones.
    teacher_accuracy
        Accuracy on real test images of the released classifier.
    settings
        What tells apart runs that are equal in everything above.
    figures
        Other figures by name, such as the error of counting queries.
    wall_seconds, cpu_seconds
        Of the whole command; in process, of the method.
    method_seconds
        The method's own stages, with sampling and decoding.
    stage_seconds
        Wall time of each stage.
    peak_rss_mib, peak_pss_mib
        Peak resident memory, summed over the processes of the command; in the second, shared
        pages count once.
    suite, command
        Name of the suite, and the command as typed: no two rows share it.
    """

    dataset: str
    method: str
    analysis: str
    epsilon: float | None
    delta: float | None
    seed: int | None
    source: str
    rows: int | None = None
    columns: int | None = None
    rows_out: int | None = None
    auc: float | None = None
    accuracy: float | None = None
    log_loss: float | None = None
    calibration_error: float | None = None
    tvd_1way: float | None = None
    tvd_2way: float | None = None
    cnn_accuracy: float | None = None
    teacher_accuracy: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    method_seconds: float | None = None
    stage_seconds: dict[str, float] = field(default_factory=dict)
    peak_rss_mib: float | None = None
    peak_pss_mib: float | None = None
    suite: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if self.analysis not in GUARANTEES or self.source not in SOURCES:
            raise ValueError(
                f"expected a known analysis and source, found {self.analysis!r}, {self.source!r}"
            )
        if self.source == BUNDLE and self.analysis != "proven":
            raise ValueError("expected a bundle of the proven analysis: no other is published")
        if len({self.epsilon is None, self.delta is None, self.analysis == "none"}) != 1:
            raise ValueError("expected an epsilon and a delta for every analysis but none")

    @property
    def guarantee(self) -> str:
        """What epsilon and delta stand for."""
        return GUARANTEES[self.analysis]

    @property
    def key(self) -> tuple[Any, ...]:
        """What was run: no two rows of a file share it."""
        settings = json.dumps(self.settings, sort_keys=True)
        run = (self.dataset, self.method, self.analysis, self.epsilon, self.delta, self.seed)
        return (*run, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A figure that was asked for, beside the one that was measured."""

    text: str
    asked: str
    measured: str
    met: bool


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write rows as a JSON list, one in a line; the file appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in rows)
    beside = path.with_suffix(".part")
    beside.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    beside.replace(path)


def read_rows(path: Path) -> list[ResultRow]:
    """Read the rows of an earlier run; none if there was none."""
    if not path.is_file():
        return []
    return [ResultRow(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def keep_rows(path: Path, rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Put rows into a file in place of earlier ones of the same runs; return all that it holds."""
    known = {row.key: row for row in read_rows(path)}
    known.update({row.key: row for row in rows})
    write_rows(path, known.values())
    return list(known.values())


def figure(values: Iterable[float | None], digits: int = 3) -> str:
    """Write the mean of some runs, with their standard deviation where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ±{stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{mean(known):.{digits}f}{spread}"


def table(header: Sequence[str], lines: Iterable[Sequence[str]], *, n_left: int = 1) -> str:
    """Lay out text cells in columns, the first ``n_left`` to the left, the others to the right."""
    cells = [list(header), *(list(line) for line in lines)]
    widths = [max(len(line[j]) for line in cells) for j in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if j < n_left else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def run_table(rows: Iterable[ResultRow]) -> str:
    """Lay out the rows of whole runs: means over the splits, with their standard deviations."""
    groups: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        run = (row.dataset, row.method, row.guarantee, row.source, row.epsilon)
        groups.setdefault((*run, json.dumps(row.settings, sort_keys=True)), []).append(row)
    lines = [
        (
            *run[:4],
            "-" if run[4] is None else f"{run[4]:g}",
            figure([mean(row.rows or 0 for row in group)], 0),
            *(
                figure([getattr(row, name) for row in group], digits)
                for name, digits in (
                    ("auc", 4), ("accuracy", 3), ("log_loss", 3), ("tvd_1way", 3),
                    ("tvd_2way", 3), ("cnn_accuracy", 3), ("teacher_accuracy", 3),
                    ("wall_seconds", 1), ("cpu_seconds", 1), ("method_seconds", 1),
                    ("peak_rss_mib", 0), ("peak_pss_mib", 0),
                )
            ),
        )
        for run, group in groups.items()
    ]  # fmt: skip
    header = (
        "dataset", "method", "guarantee", "source", "epsilon", "rows", "AUC", "accuracy",
        "log loss", "TVD 1-way", "TVD 2-way", "CNN", "teacher", "wall s", "CPU s", "method s",
        "RSS MiB", "PSS MiB",
    )  # fmt: skip
    return table(header, lines, n_left=4)


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Lay out text cells as a table in Markdown."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def requirement_table(requirements: Iterable[Requirement]) -> str:
    """Lay out what was asked beside what was measured."""
    return table(
        ("asked for", "asked", "measured", ""),
        [(r.text, r.asked, r.measured, "met" if r.met else "MISSED") for r in requirements],
        n_left=4,
    )
