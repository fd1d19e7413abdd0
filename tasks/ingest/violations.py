"""Coded rows of a chunk, and broken rules: rule and column are public, row and value private."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Indices, Integers
from privacy.errors import InputError


class Rule(StrEnum):
    """Rule of a cell; the value is the text that an error may show."""

    NOT_NULL = "a value in every cell"
    TEXT = "text without NUL characters"
    KEY = "keys of the declared pattern only"
    NUMBER = "numbers and the declared missing codes only"
    FINITE = "finite numbers only"
    INTEGER = "whole numbers only"
    LEVEL = "declared levels only, as no level is declared for other values"
    LABEL = "declared label values only"
    DATE = "a full date as ISO 8601 writes it in every cell"
    DAY = (
        "full dates and the declared missing codes only, as ISO 8601 or the declared format writes "
        "them (declare format; for moments with an offset from UTC, timezone)"
    )
    ORDER = "a number below 2^53 in every cell"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Violation:
    """A rule that some cells of a column break. ``rows`` is private: positions in the chunk.

    The rule is a `Rule`, a rule of a file, or a constraint of the schema in words.
    """

    rule: str
    column: str
    rows: Indices

    def __repr__(self) -> str:
        return f"Violation(rule={self.rule!r}, column={self.column!r})"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class EncodedChunk:
    """Codes (n, d) and labels (n,) of one chunk, before contributions are bounded. Private.

    An invalid row has no label and is left out. A broken cell has the code 0, without meaning: call
    `refuse_violations` first. Checks of constraints use ``numbers`` (n,) on each column's own grid.
    """

    codes: Codes
    label: Codes
    valid: NDArray[np.bool_]
    violations: tuple[Violation, ...]
    numbers: Mapping[int, Integers] = field(default_factory=dict)


def rows_of(violations: Iterable[Violation], n_rows: int) -> NDArray[np.bool_]:
    """Return which of the rows of a chunk break one of the rules. Private."""
    rows = np.zeros(n_rows, dtype=np.bool_)
    for violation in violations:
        rows[violation.rows] = True
    return rows


def refuse_violations(violations: Sequence[Violation], *, diagnostics: str | None = None) -> None:
    """Raise if a rule is broken; names rules, columns and the restricted file with the rows."""
    if not violations:
        return
    broken = sorted({(violation.column, str(violation.rule)) for violation in violations})
    listed = "; ".join(f"column {column}: expected {rule}" for column, rule in broken)
    where = "" if diagnostics is None else f"the rows are in {diagnostics}; "
    text = f"{listed}; correct the source or the schema; {where}nothing is charged"
    raise InputError("INPUT_REFUSED", text)
