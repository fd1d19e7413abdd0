"""First half of the output gate: the published file keeps the declared schema.

The source is held against the schema by the encoder, and against the owner's own rules by
`tasks.gates.suites`. A release reveals that the table kept these rules, and the guarantee does not
cover that one bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from storage.releases.manifest import GateRecord
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.table import TableSchema
from storage.sources.cells import distinct, number_cells


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
    names = [*map(str, frame.columns)]
    rules: dict[tuple[str, str | None], bool] = {
        ("columns", None): names == list(schema.released_columns),
        ("row_count", None): len(frame) == rows,
    }
    if len(set(names)) == len(names):
        rules |= _cell_rules(frame, schema)
    return GateReport(
        checks=tuple(
            GateCheck(name=name, column=column, passed=passed)
            for (name, column), passed in rules.items()
        )
    )


def _cell_rules(frame: pd.DataFrame, schema: TableSchema) -> dict[tuple[str, str | None], bool]:
    """Return whether the cells keep each rule; the columns of a block have one together."""
    rules: dict[tuple[str, str | None], bool] = {}
    if schema.image is not None:
        grays = set(schema.image.levels)
        cells = [frame[name] for name in schema.column_names if name in frame]
        rules["pixels", None] = len(cells) == len(schema.columns) and all(
            own.dtype.kind in "iu" and grays.issuperset(own.unique()) for own in cells
        )
    elif schema.items is not None:
        names = schema.column_names
        rules["items", None] = all(_has_texts(frame, name, {"0", "1"}) for name in names)
    else:
        for column in schema.columns:
            if isinstance(column, CategoricalColumn):
                levels = {*column.levels, *column.missing, *([""] if column.nullable else [])}
                rules["level", column.name] = _has_texts(frame, column.name, levels)
            else:
                rules |= {(name, column.name): ok for name, ok in _number_rules(frame, column)}
    for label in (schema.label, *schema.more_labels):
        rules["label", label.name] = _has_texts(frame, label.name, {*label.level_names})
    return rules


def _has_texts(frame: pd.DataFrame, name: str, texts: set[str]) -> bool:
    """Return whether a column has these texts alone; an empty cell is the empty text."""
    if name not in frame:
        return False
    index, found = distinct(frame[name])
    return texts >= {*found, *([""] if (index < 0).any() else [])}


def _number_rules(frame: pd.DataFrame, column: NumericColumn) -> Iterator[tuple[str, bool]]:
    """Yield the rules of a column of numbers: in bounds, on the grid, no other missing cells."""
    if column.name not in frame:
        yield from dict.fromkeys(("number", "grid", "bounds", "not_null"), False).items()
        return
    values, null, missing, refused = number_cells(frame[column.name], column)
    numbers = values[~missing & np.isfinite(values)]
    yield "number", not (refused | np.isinf(values)).any()
    yield "grid", bool(np.all(np.round(numbers, column.grid_decimals) == numbers))
    yield "bounds", bool(np.all((numbers >= column.lower) & (numbers <= column.upper)))
    yield "not_null", column.nullable or not null.any()
