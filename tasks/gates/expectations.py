"""The two gates of a release: what the source must be, and what a release must be.

Both ask rules of the declared schema alone, which Great Expectations judges; only booleans leave
it. The input gate reads private rows, the output gate the published file as it is read back.

The input gate never fails on what the encoder mends by a declared rule (an undeclared category
where a level takes such values, a number outside the bounds). Whether it passed depends on
private rows. A refusal stays with the operators and keeps its charge; that a release exists at all
tells that the table kept the declared rules, and the guarantee does not cover that one bit.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd

from privacy.errors import ConfigurationError
from storage.schema.table import TableSchema
from tasks.gates.table_rules import Rules, condensed, release_rules, source_rules

_MOST_CELLS = 1_000_000
"""Cells that a gate holds before it judges them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One named check, of a column or, with None, of the table, with how far rows are apart."""

    name: str
    column: str | None
    passed: bool
    distance: float | None = None
    bound: float | None = None
    unseen: tuple[str, ...] = ()

    @classmethod
    def compared(
        cls, name: str, column: str, *, distance: float, bound: float, unseen: tuple[str, ...] = ()
    ) -> Self:
        """Return a comparison, which passes up to its bound."""
        return cls(
            name=name,
            column=column,
            passed=distance <= bound,
            distance=distance,
            bound=bound,
            unseen=unseen,
        )

    @property
    def nearness(self) -> float:
        """Distance as a part of its bound; 0 where nothing was compared."""
        return self.distance / self.bound if self.distance and self.bound else 0.0

    @property
    def title(self) -> str:
        """Name of the check, with its column where it has one."""
        return self.name if self.column is None else f"{self.name}: {self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The checks of one gate, in a fixed order."""

    checks: tuple[GateCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed; a gate without checks did not."""
        return bool(self.checks) and not self.failed_checks

    @property
    def failed_checks(self) -> tuple[GateCheck, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def records(self) -> list[dict[str, Any]]:
        """Return what a `storage.releases.manifest.GateRecord` holds of each check."""
        records = []
        for check in self.checks:
            record: dict[str, Any] = {"check": check.title, "passed": check.passed}
            if check.distance is not None and check.bound is not None:
                record |= {"distance": round(check.distance, 4), "bound": round(check.bound, 4)}
            records.append(record | ({"unseen": check.unseen} if check.unseen else {}))
        return records


def merge(reports: Iterable[GateReport]) -> GateReport:
    """Combine the reports of the chunks of one table: a check passes if it passed everywhere."""
    merged: dict[str, GateCheck] = {}
    for report in reports:
        for check in report.checks:
            if merged.setdefault(check.title, check).passed:
                merged[check.title] = check
    if not merged:
        raise ConfigurationError(
            "GATE_EMPTY", "expected the report of one chunk or more, found none; check the source"
        )
    return GateReport(checks=tuple(merged.values()))


def input_gate(
    frame: pd.DataFrame, schema: TableSchema, *, patient_column: str | None = None
) -> GateReport:
    """Check one chunk of private rows, as text or as native types, against the declared schema.

    ``patient_column`` names the patient if one has several rows; it may not be empty.

    Privacy
    -------
    Reads private rows. The result is internal: it is not differentially private, and a failure
    ends the run before any noise is drawn.
    """
    used = frame[[name for name in frame.columns if name not in schema.ignore]]
    return _judged(used, lambda: source_rules(used, schema, patient_column))


class SourceGate:
    """The input gate of rows that come in batches, few of each (`table_rules.condensed`).

    It holds them until it is asked, or they have become many. A check passes if it passes whenever
    it is made.
    """

    def __init__(self, schema: TableSchema, patient_column: str | None) -> None:
        self._asked = (schema, patient_column)
        self._held: list[pd.DataFrame] = []
        self.reports: list[GateReport] = []

    def add(self, rows: pd.DataFrame) -> None:
        """Take some rows; judge where what is held of them has become much."""
        self._held.append(rows)
        if self._cells() > _MOST_CELLS:
            self._held = [condensed(pd.concat(self._held), *self._asked)]
        if self._cells() > _MOST_CELLS / 2:
            self.judge()

    def judge(self) -> None:
        """Judge the rows that are held, and hold them no longer."""
        if self._held:
            schema, patient_column = self._asked
            rows = pd.concat(self._held)
            self.reports.append(input_gate(rows, schema, patient_column=patient_column))
        self._held = []

    def _cells(self) -> int:
        return sum(rows.size for rows in self._held)


def output_gate(frame: pd.DataFrame, schema: TableSchema, rows: int) -> GateReport:
    """Check a synthetic table, as read from the file that will be published.

    ``rows`` is the number that the site file asks for: public, never that of the source. A label
    level may be absent from the rows; a value that is no label level may not occur.

    Privacy
    -------
    Post-processing: reads synthetic rows and public declarations only.
    """
    return _judged(frame, lambda: release_rules(frame, schema, rows))


def _judged(frame: pd.DataFrame, rules: Callable[[], Rules]) -> GateReport:
    """Judge rules of a table whose columns can be told apart by their names."""
    if not frame.columns.is_unique or not all(isinstance(name, str) for name in frame.columns):
        return GateReport(checks=(GateCheck(name="columns", column=None, passed=False),))
    return GateReport(
        checks=tuple(
            GateCheck(name=name, column=column, passed=passed)
            for name, column, passed in rules().judge()
        )
    )
