"""The one form of the rows that every benchmark writes, and the files that keep them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
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

FORMER = "--look "
"""In the command of a row that an earlier program made; no plain run makes it again."""

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
        What tells apart runs that are equal in everything above; of a job that made no row, its
        ``outcome``.
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
        noisy = self.analysis != "none"
        if not self.outcome and {self.epsilon is None, self.delta is None, not noisy} != {
            not noisy
        }:
            raise ValueError("expected an epsilon and a delta for every analysis but none")

    @property
    def guarantee(self) -> str:
        """What epsilon and delta stand for."""
        return GUARANTEES[self.analysis]

    @property
    def outcome(self) -> str | None:
        """End of a job that made no row: ``did not end`` or ``failed``."""
        return self.settings.get("outcome")

    @property
    def former(self) -> bool:
        """True if an earlier program made this row."""
        return FORMER in (self.command or "")


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
    """Put rows into a file in place of earlier ones of the same commands; return all it holds."""
    known = {row.command: row for row in read_rows(path)}
    known.update({row.command: row for row in rows})
    write_rows(path, known.values())
    return list(known.values())


def stored(suite: str) -> list[ResultRow]:
    """Read the rows of a suite."""
    return read_rows(RESULTS / f"{suite}.json")


def print_row(row: ResultRow) -> int:
    """Print a row as the last line of a job; the exit code of the job."""
    print(json.dumps(asdict(row), allow_nan=False), flush=True)
    return 0
