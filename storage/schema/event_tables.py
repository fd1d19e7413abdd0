"""Declared tables of events: beside one row of each patient, rows that follow in time."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from storage.schema.columns import (
    CategoricalColumn,
    Declaration,
    Finite,
    Level,
    Name,
    NumericColumn,
    did_you_mean,
    left_out,
    refuse_together,
)
from storage.schema.date_columns import DateColumn
from storage.schema.table import check_header

_AnyColumn = Annotated[NumericColumn | DateColumn | CategoricalColumn, Field(discriminator="kind")]
_Edges = Annotated[tuple[Finite, ...], Field(min_length=1)]

PATIENTS = "patients"
"""Name of the patients' table among those of a sample, which no table of events has."""

_DAYS = (1.0, 8.0, 31.0, 91.0, 181.0, 366.0, 731.0)
_YEARS = (1826.0, 3652.0, 9131.0)


class EventTime(Declaration):
    """The moment."""

    column: Name
    """A date, or an integer that is a number of days; its bounds hold for synthetic events."""
    since: Name | None = None
    """Column of the patient from which days are counted; like the moment, a date or an integer."""
    not_before: Name | None = left_out()
    """Column of the patient, such as the date of birth, before which no event lies."""
    until: Name | None = left_out()
    """Column of the patient, such as the date of death, after which no event lies."""
    when_broken: Literal["refuse", "mend"] = left_out("refuse")
    """Refuse a source with another event, or mend it: leave the event out."""


class ValueBins(Declaration):
    """Values of one kind."""

    lower: Finite
    upper: Finite
    bins: int | tuple[Finite, ...]
    decimals: int | None = None


class EventDeclaration(Declaration):
    """A table of events, in which a patient has any number of rows."""

    derived: ClassVar[tuple[str, ...]] = ()

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,39}$")]
    """Name of the table, such as ``labs``."""
    key: Name
    """Column that names the patient, as in the table of patients."""
    at: EventTime
    """When it happened."""
    max_rows_per_patient: Annotated[int, Field(ge=1, le=1_000)]
    """Events of a patient that are used: the first ones."""
    columns: Annotated[tuple[_AnyColumn, ...], Field(min_length=1)]
    """Columns of an event, with that of its moment."""
    kind: Name | None = None
    """Column of levels that says what an event is, such as a test."""
    value: Name | None = None
    """Column of numbers whose meaning depends on the kind."""
    values: dict[Level, ValueBins | None] = Field(default_factory=dict)
    """Bounds and bins of the value by kind, null for a kind without one; else its own."""
    label: Name | None = None
    """Further column of levels to predict, measured as the label of a table is."""
    gaps: _Edges | None = None
    """Lower edges in days, from 0, of bins of the time since the event before. By default 0, 1, 8,
    31, 91, 181, 366 and 731, if the bounds of the moment are as far apart."""
    offsets: _Edges | None = None
    """Edges in days of bins of the first moment. By default the bins of the moment; of one counted
    from a column the edges of gaps with 5, 10 and 25 years, before and after, inside the bounds."""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Part of the squared budget. By default what others leave, in equal parts."""
    ignore: tuple[Name, ...] = ()
    """Columns that are not used."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        own = {one.name: one for one in self.columns}
        names = [self.key, *(one.name for one in self.columns), *self.ignore]
        roles = [self.at.column, *filter(None, (self.kind, self.value, self.label))]
        lost = [f"{one}{did_you_mean(one, own)}" for one in roles if one not in own]
        refuse_together(
            f"expected a declared column, found {one}; list it in columns" for one in lost
        )
        moment, kind, value = own[roles[0]], own.get(self.kind or ""), own.get(self.value or "")
        whole = isinstance(moment, NumericColumn) and moment.is_whole and not moment.has_missing
        levels = isinstance(kind, CategoricalColumn) and not kind.has_missing
        number = isinstance(value, NumericColumn) and not value.is_date
        edges, strangers = (self.gaps or (), self.offsets or ()), {*self.values} - {*self.kinds}
        rules = {
            "each column once, in one role": len({*names}) + len({*roles}) < len(names + roles),
            "no column with relative_to": any(getattr(o, "base", None) for o in self.columns),
            "another name than patients": self.name == PATIENTS,
            "at: a date or an integer without missing values": not whole,
            "kind: a column of levels without missing values": kind is not None and not levels,
            "label: a column of levels": isinstance(own.get(self.label or ""), NumericColumn),
            "value: a column of numbers": value is not None and not number,
            "values beside a value": self.values and not value,
            f"values: levels of the kind, found {', '.join(sorted(strangers))}": strangers,
            "gaps: edges from 0, the first of all": bool(edges[0]) and edges[0][0] != 0.0,
            "gaps, offsets: increasing edges": any(a >= b for e in edges for a, b in pairwise(e)),
            "offsets: two edges or more": len(edges[1]) == 1,
        }
        refuse_together(f"expected {rule}" for rule, broken in rules.items() if broken)
        _ = self.values_by_kind  # refuses bins that a kind cannot have
        return self

    @property
    def measured_columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(one.name for one in self.columns)

    def check_header(self, header: Sequence[str], needed: Iterable[str]) -> None:
        """Refuse a header (InputError); see `storage.schema.table.check_header`."""
        check_header(header, needed, self.ignore)

    @property
    def moment(self) -> NumericColumn:
        """Column of the moment."""
        named = (one for one in self.columns if one.name == self.at.column)
        return next(one for one in named if isinstance(one, NumericColumn))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Levels of the kind; a table without kinds has one."""
        own = (one for one in self.columns if one.name == self.kind)
        return next((one.levels for one in own if isinstance(one, CategoricalColumn)), ("",))

    @property
    def values_by_kind(self) -> tuple[NumericColumn | None, ...]:
        """Column of the values of each kind, None where it has none."""
        column = next((one for one in self.columns if one.name == self.value), None)
        if column is None:
            return (None,) * len(self.kinds)
        declared: dict[str, Any] = {kind: {} for kind in self.kinds}
        for kind, bins in self.values.items():
            declared[kind] = None if bins is None else bins.model_dump(exclude_none=True)
        every = (None if own is None else {**dict(column), **own} for own in declared.values())
        return tuple(None if own is None else NumericColumn(**own) for own in every)

    @property
    def by_kind(self) -> dict[str, NumericColumn | None]:
        """Column of the values of each kind by its title, such as ``value (sodium)``."""
        titles = [f"{self.value} ({kind})".removesuffix(" ()") for kind in self.kinds]
        return dict(zip(titles, self.values_by_kind, strict=True)) if self.value else {}

    @property
    def others(self) -> tuple[NumericColumn | CategoricalColumn, ...]:
        """Columns that are neither moment, kind nor value."""
        roles = (self.at.column, self.kind, self.value)
        return tuple(one for one in self.columns if one.name not in roles)

    @property
    def gap_edges(self) -> tuple[float, ...]:
        """Lower edges of the bins of gaps."""
        width = self.moment.upper - self.moment.lower
        return self.gaps or (0.0, *(day for day in _DAYS if day <= width))

    def offset_edges(self, since: NumericColumn | None) -> Sequence[float]:
        """Edges of the bins of first moments, counted from the column `since` if it is given."""
        if self.offsets is not None:
            return self.offsets
        if since is None:
            return (*self.moment.bin_starts, self.moment.upper + 1.0)
        first, last = self.moment.lower - since.upper, self.moment.upper - since.lower + 1.0
        days = (0.0, *_DAYS, *_YEARS)
        inside = {day for one in days for day in (-one, one) if first < day < last}
        return (first, *sorted(inside), last)
