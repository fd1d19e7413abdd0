"""Public rules that every record keeps."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from storage.schema.columns import (
    Column,
    Declaration,
    Level,
    Name,
    NumericColumn,
    PrintableText,
    RawValue,
    codes_asked,
    did_you_mean,
    left_out,
    levels_asked,
    refuse_together,
)

_SIGN = re.compile(r" (<=|<|=) ")


def _sorted(value: object) -> object:
    # Sorted names give one text, independent of the reader.
    return dict(sorted(value.items(), key=str)) if isinstance(value, dict) else value


_OrOne = BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,))
_Asked = Annotated[tuple[Level | None, ...], _OrOne, Field(min_length=1, max_length=1000)]
_Condition = Annotated[dict[Name, _Asked], BeforeValidator(_sorted), Field(min_length=1)]
_Mend = Annotated[
    dict[Name, RawValue | None], BeforeValidator(_sorted), Field(min_length=1, max_length=100)
]


class Constraint(Declaration):
    """A public rule that every record keeps: `holds`, or `never`, or `when` with `then`.

    A condition maps columns to cells: a declared level, a range ``LOW..HIGH`` of whole bins (HIGH
    excluded unless it is the upper bound), ``null`` for a missing cell, or a list of alternatives.
    A record meets it in every column. A condition may name the label.
    """

    holds: Annotated[PrintableText, Field(max_length=2000)] | None = left_out()
    """``a <= b``, ``a < b`` or ``a + b = c`` (also ``a + b <= c``) between numeric columns, or
    dates: ``born <= admitted <= died``. A comparison of which one is missing holds."""
    never: _Condition | None = left_out()
    """A condition that no record meets."""
    when: _Condition | None = left_out()
    """A condition that implies ``then``."""
    then: _Condition | None = left_out()
    """A condition: every record that meets ``when`` meets it."""
    mend: _Mend | None = left_out()
    """Repair of a source row that breaks this rule: by column a level, a number or ``null``.
    Without it, or if the repaired row still breaks a rule, the table is refused."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.when is None) != (self.then is None):
            raise ValueError("expected when and then together")
        if sum(part is not None for part in (self.holds, self.never, self.when)) != 1:
            raise ValueError("expected exactly one of holds, never, and when with then")
        if set(self.when or ()) & set(self.then or ()):
            raise ValueError("expected other columns in then than in when")
        if self.holds is not None and not self.relations:
            raise ValueError(
                "expected holds as a <= b, a < b or a + b = c, the names of numeric columns with "
                "blanks around the sign"
            )
        return self

    @property
    def relations(self) -> tuple[tuple[tuple[str, ...], str, str], ...]:
        """Left columns, sign and right column of each comparison of `holds`."""
        parts = [part.strip() for part in _SIGN.split(self.holds or "")]
        sums = [tuple(part.strip() for part in one.split(" + ")) for one in parts[::2]]
        # Only the first side may be a sum.
        return tuple(zip(sums, parts[1::2], parts[2::2], strict=False))

    @property
    def title(self) -> str:
        """The rule in words."""
        if self.holds is not None:
            return self.holds
        if self.never is not None:
            return f"never {_in_words(self.never)}"
        return f"{_in_words(self.when or {})} implies {_in_words(self.then or {})}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in the rule."""
        if self.holds is not None:
            names = [name for parts, _, total in self.relations for name in (*parts, total)]
            return tuple(dict.fromkeys(names))
        named = (self.never or {}, self.when or {}, self.then or {})
        return tuple(dict.fromkeys(name for condition in named for name in condition))

    def forbidden(self) -> tuple[dict[str, tuple[bool, tuple[str | None, ...]]], ...]:
        """Return the conditions that no record meets, without `holds`.

        By column: true and the excluded cells, or false and the only allowed cells.
        """
        if self.never is not None:
            return ({name: (True, asked) for name, asked in self.never.items()},)
        given = {name: (True, asked) for name, asked in (self.when or {}).items()}
        return tuple({**given, name: (False, asked)} for name, asked in (self.then or {}).items())


def _in_words(condition: Mapping[str, Sequence[str | None]]) -> str:
    return " and ".join(
        f"{name}={' or '.join('null' if one is None else one for one in asked)}"
        for name, asked in condition.items()
    )


def related_columns(
    constraints: Sequence[Constraint], columns: Sequence[Column]
) -> tuple[dict[int, NumericColumn], int]:
    """Return the columns of rules between numbers, by index, and their largest number of decimals.

    The rules are checked on that grid in whole numbers.
    """
    named = {name for one in constraints if one.holds is not None for name in one.columns}
    places = {index for index, column in enumerate(columns) if column.name in named}
    for own, base in reversed(bases_of(columns).items()):
        places |= {base} if own in places else set()
    numeric = ((index, columns[index]) for index in sorted(places))
    found = {index: column for index, column in numeric if isinstance(column, NumericColumn)}
    return found, max((column.grid_decimals for column in found.values()), default=0)


def bases_of(columns: Sequence[Column]) -> dict[int, int]:
    """Map each relative date to its base, by their places; a base comes before its dependents.

    ValueError if a base is no date, is in a cycle, or may be missing where its dependent may not.
    """
    numeric = {i: column for i, column in enumerate(columns) if isinstance(column, NumericColumn)}
    own = {place: column for place, column in numeric.items() if column.base is not None}
    dates = {column.name: place for place, column in numeric.items() if column.is_date}
    found: dict[int, int] = {}
    while len(found) < len(own):
        rest = {i: dates.get(str(column.base)) for i, column in own.items() if i not in found}
        ready = {i: at for i, at in rest.items() if at is not None and at not in rest}
        names = ", ".join(own[i].name for i in ready or rest)
        if not ready:
            raise ValueError(f"{names}: expected relative_to to name another date, in no circle")
        if any(columns[at].has_missing and not columns[i].has_missing for i, at in ready.items()):
            raise ValueError(f"{names}: expected nullable or missing codes, as of relative_to")
        found |= ready
    return found


def require_declared(
    constraints: Sequence[Constraint],
    columns: Sequence[Column],
    labels: Mapping[str, Sequence[str]],
) -> None:
    """Refuse (ValueError) constraints with undeclared names, and those that cannot be kept."""
    by_name = {column.name: column for column in columns}
    faults = []
    for constraint in constraints:
        try:
            _require_names(constraint, by_name, labels)
            _require_mend(constraint, by_name)
        except ValueError as error:
            faults.append(f"constraints, {constraint.title}: {error}")
    refuse_together(faults)
    related, decimals = related_columns(constraints, columns)
    for column in related.values():
        if max(abs(column.lower), abs(column.upper)) * 10**decimals >= 2**53:
            raise ValueError(
                f"constraints: expected bounds of {column.name} below 2^53 on a grid of {decimals} "
                "decimals, the most of a column that a rule compares"
            )
    # Rules of order alone may form cycles: bounds of single columns then bound them together.
    groups: list[set[str]] = []
    orders = [({columns[i].name, columns[j].name}, False, "") for i, j in bases_of(columns).items()]
    relations = [
        ({*parts, total}, _is_sum(parts, sign), one.title)
        for one in constraints
        for parts, sign, total in one.relations
    ]
    for own, is_sum, title in sorted([*orders, *relations], key=lambda one: one[1]):
        met = [group for group in groups if group & own]
        if is_sum and any(len(group & own) > 1 for group in met):
            raise ValueError(
                f"constraints, {title}: expected columns of a sum that no other rule between "
                "numbers, and no relative_to, connects; leave out what follows from the sum"
            )
        groups = [group for group in groups if not group & own] + [own.union(*met)]


def _is_sum(parts: Sequence[str], sign: str) -> bool:
    return len(parts) > 1 or sign == "="


def _require_names(
    constraint: Constraint, columns: Mapping[str, Column], labels: Mapping[str, Sequence[str]]
) -> None:
    names = constraint.columns
    known = {*columns, *labels}
    if unknown := sorted(set(names) - known):
        hint = did_you_mean(unknown[0], known)
        raise ValueError(f"expected declared columns, found {', '.join(unknown)}{hint}")
    for parts, sign, total in constraint.relations:
        found = [columns.get(name) for name in (*parts, total)]
        numeric = [column for column in found if isinstance(column, NumericColumn)]
        if len(numeric) < len(found) or len({*parts, total}) < len(found):
            raise ValueError("expected numeric columns, each once, or dates")
        if _is_sum(parts, sign) and len({column.grid_decimals for column in numeric}) > 1:
            raise ValueError("expected columns of equally many decimals")
        if sum(column.is_date for column in numeric[:-1]) != numeric[-1].is_date:
            raise ValueError("expected numbers on both sides, or one date on each of them")
    for condition in constraint.forbidden():
        for name, (_, asked) in condition.items():
            for one in asked:
                if name in labels:
                    levels_asked(name, one, labels[name])
                else:
                    codes_asked(columns[name], one)


def _require_mend(constraint: Constraint, columns: Mapping[str, Column]) -> None:
    for name, value in (constraint.mend or {}).items():
        column = columns.get(name)
        if column is None:
            raise ValueError(f"mend: expected a feature column, found {name}")
        if not isinstance(column, NumericColumn) or value is None:
            codes_asked(column, value)
            continue
        number = column.declared(value)
        on_grid = number is not None and round(number, column.grid_decimals) == number
        if number is None or not on_grid or not column.lower <= number <= column.upper:
            raise ValueError(f"mend: expected a number of {name} within its bounds and decimals")
