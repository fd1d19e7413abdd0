"""The rows that every benchmark writes, and the tables that people read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev

RESULTS = Path(__file__).resolve().parent / "results"

NO_GUARANTEE = "none"
PROVEN = "proven"
CLAIMED = "claimed, not proven"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One measured run.

    Parameters
    ----------
    dataset, method
        Name of the site file, and of the method: ``real``, ``naive_bayes`` or ``clustmix``.
    analysis
        ``proven``, ``published``, or ``none`` for the real rows.
    guarantee
        What epsilon and delta stand for.
    epsilon, delta
        Parameters under add or remove of one patient; None for the real rows.
    seed
        Seed of the split into training and test records; None where there is no split. It is
        never a seed of privacy noise.
    rows, columns
        Size of the table that was read: records and columns of the source.
    auc, accuracy
        LightGBM trained on the release, tested on real records; None where not measured.
    tvd_1way, tvd_2way
        Mean total variation distance to the real test records, label included.
    wall_seconds
        Wall time: of the method for utility, of the whole command for cost.
    cpu_seconds
        Processor time of the same; it stays put when others keep the machine busy.
    method_seconds
        The method's own stages, with sampling and decoding.
    stage_seconds
        Wall time of each stage.
    peak_rss_mib
        Peak resident memory: of the process for utility, summed over the process tree for cost.
    peak_pss_mib
        The same sum with shared pages counted once; None where it cannot be read.
    """

    dataset: str
    method: str
    analysis: str
    guarantee: str
    epsilon: float | None = None
    delta: float | None = None
    seed: int | None = None
    rows: int | None = None
    columns: int | None = None
    auc: float | None = None
    accuracy: float | None = None
    tvd_1way: float | None = None
    tvd_2way: float | None = None
    wall_seconds: float
    cpu_seconds: float
    method_seconds: float
    stage_seconds: dict[str, float] = field(default_factory=dict)
    peak_rss_mib: float
    peak_pss_mib: float | None = None

    def __post_init__(self) -> None:
        if self.guarantee not in (NO_GUARANTEE, PROVEN, CLAIMED):
            raise ValueError(f"expected a known guarantee, found {self.guarantee!r}")
        if (self.guarantee == PROVEN) != (self.analysis == "proven"):
            raise ValueError("expected the word proven for the proven analysis and no other")
        if (self.epsilon is None) != (self.guarantee == NO_GUARANTEE):
            raise ValueError("expected an epsilon for every method but the real rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A figure that was asked for, beside the one that was measured."""

    text: str
    asked: str
    measured: str
    met: bool


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write rows as a JSON list, replacing the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in rows], indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_rows(path: Path) -> list[ResultRow]:
    """Read the rows of an earlier run; none if there was none."""
    if not path.is_file():
        return []
    return [ResultRow(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def figure(values: Sequence[float | None], digits: int = 3) -> str:
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


def requirement_table(requirements: Iterable[Requirement]) -> str:
    """Lay out what was asked beside what was measured."""
    return table(
        ("asked for", "asked", "measured", ""),
        [(r.text, r.asked, r.measured, "met" if r.met else "MISSED") for r in requirements],
        n_left=4,
    )
