"""The output gate: rules of the declared schema, of the file that is published.

The source is held against them by the encoder, and against the owner's own rules by
`tasks.gates.suites`. A release reveals that the table kept these rules, and the guarantee does not
cover that one bit.
"""

from dataclasses import dataclass
from typing import Self

import pandas as pd

from storage.releases.manifest import GateRecord
from storage.schema.table import TableSchema
from tasks.gates.table_rules import judged, release_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """A named check of a column, or with None of the table; a comparison has distance and bound."""

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
        """Return the check of a distance, which passes up to its bound."""
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
        """True if there are checks and every one passed."""
        return bool(self.checks) and not self.failed_checks

    @property
    def failed_checks(self) -> tuple[GateCheck, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def records(self) -> tuple[GateRecord, ...]:
        """Return the checks as a manifest records them."""
        return tuple(
            GateRecord(
                check=check.title,
                passed=check.passed,
                distance=None if check.distance is None else round(check.distance, 4),
                bound=None if check.bound is None else round(check.bound, 4),
                unseen=check.unseen,
            )
            for check in self.checks
        )


def output_gate(frame: pd.DataFrame, schema: TableSchema, rows: int) -> GateReport:
    """Check a synthetic table that was read back from the file to be published.

    ``rows`` is the public number of the site file. A label level may be absent; a value that is no
    label level is refused.

    Privacy
    -------
    Post-processing: reads synthetic rows and public declarations only.
    """
    if not frame.columns.is_unique or not all(isinstance(name, str) for name in frame.columns):
        return GateReport(checks=(GateCheck(name="columns", column=None, passed=False),))
    return GateReport(
        checks=tuple(
            GateCheck(name=name, column=column, passed=passed)
            for name, column, passed in judged(release_rules(frame, schema, rows))
        )
    )
