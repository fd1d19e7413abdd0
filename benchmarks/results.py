"""The one form of the rows that every benchmark writes, and the files that keep them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

BUNDLE, BENCHMARK_OUTPUT = "bundle", "benchmark-output"
"""The files of ``clustmix release``, or the marked files of ``benchmarks.rivals``, which are no
release, scored by a process that reads nothing else."""

IN_PROCESS = "in-process"
"""No command ran: the real rows, or a part of the pipeline called by itself (an ablation)."""

PEER = "peer"
"""Rows that another program made from the same coded rows, in an environment of its own."""

SOURCES = (BUNDLE, BENCHMARK_OUTPUT, IN_PROCESS, PEER)
SCORED = ("auc", "accuracy", "log_loss", "calibration_error", "tvd_1way", "tvd_2way")
OF_IMAGES = ("cnn_accuracy", "teacher_accuracy")
"""Figures of every release that is scored, and of images."""

ANALYSES = ("proven", "published", "accounted", "stated", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One measured run. What does not apply, or was not measured, is None.

    ``method`` is the kind of a method, or ``real`` for the real rows. ``analysis`` is ``proven``,
    ``published`` (epsilon is claimed by a paper), ``accounted`` (of a rival whose noise is
    calibrated here), ``stated`` (by the authors of a peer, whose program is not checked here), or
    ``none`` without noise. ``seed`` is that of the split, or the number of a draw; never one of the
    noise of a release. ``rows`` and ``columns`` are those of the table that was read.

    AUC, accuracy, log-loss and calibration error are of a classifier trained on the release, on
    real records that it has not seen; distances are to those records, label included. On real test
    images ``cnn_accuracy`` is that of the small network trained on the released ones,
    ``teacher_accuracy`` of the released classifier. ``settings`` tell apart runs that are equal in
    everything else, and of a job that made no row its ``outcome``; ``figures`` are others by name.

    Seconds and memory, which is summed over processes, are those of the whole command, or of the
    method in process. Earlier rows have those of all stages together, and memory that counts
    shared pages once. No two rows share the command, as typed.
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
        if self.analysis not in ANALYSES or self.source not in SOURCES:
            raise ValueError(
                f"expected a known analysis and source, found {self.analysis!r}, {self.source!r}"
            )
        if self.source == BUNDLE and self.analysis != "proven":
            raise ValueError("expected a bundle of the proven analysis: no other is published")
        if not self.outcome and {self.epsilon is None, self.delta is None} != {
            self.analysis == "none"
        }:
            raise ValueError("expected an epsilon and a delta for every analysis but none")

    @property
    def outcome(self) -> str | None:
        """End of a job that made no row: ``did not end`` or ``failed``."""
        return self.settings.get("outcome")


def read_rows(path: Path) -> list[ResultRow]:
    if not path.is_file():
        return []
    return [ResultRow(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def keep_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Put rows into a file, a JSON list with one in a line, in place of those of equal commands.

    The file appears complete or not at all.
    """
    known = {row.command: row for row in (*read_rows(path), *rows)}
    lines = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in known.values())
    beside = path.with_suffix(".part")
    beside.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    beside.replace(path)


def print_row(row: ResultRow) -> int:
    """Print a row as the last line of a job; the exit code of the job."""
    print(json.dumps(asdict(row), allow_nan=False), flush=True)
    return 0
