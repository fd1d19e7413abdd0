"""Rules of the schema that a cell may break, and how a broken one is told without the cell.

The rule and the column are public. Which rows, and what they hold, stay private.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from privacy.arrays import Indices
from privacy.errors import InputError


class Rule(StrEnum):
    """What a cell must be; the value is the text that an error may show."""

    NOT_NULL = "a value in every cell"
    TEXT = "text without NUL characters"
    NUMBER = "numbers and the declared missing codes only"
    FINITE = "finite numbers only"
    INTEGER = "whole numbers only"
    LEVEL = "declared levels only, as no level is declared for other values"
    LABEL = "declared label values only"
    DATE = "a full date as ISO 8601 writes it in every cell"
    ORDER = "a number below 2^53 in every cell"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Violation:
    """A rule that some cells of a column break. ``rows`` is private: positions in the chunk.

    The rule is a `Rule`, one of a file, or a constraint of the schema in words.
    """

    rule: str
    column: str
    rows: Indices

    def __repr__(self) -> str:
        return f"Violation(rule={self.rule!r}, column={self.column!r})"


def refuse_violations(violations: Sequence[Violation], *, diagnostics: str | None = None) -> None:
    """Raise if a rule is broken: names rules, columns and the restricted file of the rows."""
    if not violations:
        return
    broken = sorted({(violation.column, str(violation.rule)) for violation in violations})
    listed = "; ".join(f"column {column}: expected {rule}" for column, rule in broken)
    where = f"; the rows are in {diagnostics}" if diagnostics is not None else ""
    raise InputError("INPUT_REFUSED", f"{listed}; correct the source or the schema{where}")
