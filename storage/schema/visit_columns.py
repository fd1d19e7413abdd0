"""Declarations of patients over time: first visits as columns of one row, releases by entry."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Discriminator, Field, StrictInt, Tag, model_validator

from privacy.errors import ConfigurationError
from storage.files.refs import check_name
from storage.schema.columns import Column, Declaration, Name, in_short, left_out
from storage.schema.date_columns import TimeZone
from storage.schema.table import TableSchema

PERIOD_KEY = "period"
"""Setting of a measurement by entry, whose request key does not depend on the content."""

_FORMS = {"week": "-W[0-5][0-9]", "month": "-(0[1-9]|1[0-2])", "quarter": "-Q[1-4]", "year": ""}


def _name(text: str) -> str:
    try:
        return check_name(text)
    except ConfigurationError as error:  # one of several faults, perhaps
        raise ValueError(error.message) from None


PublicName = Annotated[str, AfterValidator(_name)]
"""Name that files and folders may have."""


class VisitColumns(Declaration):
    """One row of a patient's first visits, from a source with a row for each visit.

    The column ``weight`` becomes ``weight_1``, ``weight_2`` and so on, by time; `schema.columns`
    declares each, all alike. Columns of later visits may be empty, so they are nullable or have a
    code in ``missing``. Other columns and the labels come from the first visit. A row without a
    label is no visit; two identical rows are two visits.

    The schema contains neither ``weight`` nor the column of the order. Constraints and
    ``relative_to`` name no column of a visit; constraints apply to every row of the source.
    """

    first: Annotated[StrictInt, Field(ge=2, le=50)]
    """Number of visits of a patient that are used, from the earliest on."""
    order: Name
    """Column that orders a patient's visits; it is never released. A digest of patient and row
    orders visits of one moment."""
    order_by: Literal["dates", "numbers"] = "dates"
    """``dates`` in ISO 8601, with or without a time of day, to the microsecond; or ``numbers``
    below 2^53."""
    columns: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Columns of the source with a value for each visit."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = (self.order, *self.columns)
        if len(set(names)) != len(names):
            raise ValueError("expected each column once in order and columns")
        return self

    @property
    def words(self) -> str:
        """Rule that makes a record, in words."""
        return f"with the first {self.first} visits by column {self.order} as one record"

    def places(self, column: str) -> tuple[str, ...]:
        """Return the released columns of a source column."""
        return tuple(f"{column}_{visit}" for visit in range(1, self.first + 1))

    @property
    def released(self) -> tuple[str, ...]:
        """Released columns with a value for each visit."""
        return tuple(name for column in self.columns for name in self.places(column))

    def row_schema(self, schema: TableSchema) -> TableSchema:
        """Return the schema of a source row; call `check_schema` first."""
        own = {name: column for column in self.columns for name in self.places(column)}
        columns = dict[str, Column]()
        for column in schema.columns:
            name = own.get(column.name, column.name)
            columns.setdefault(name, column.model_copy(update={"name": name}))
        derived = {n: rule for n, rule in schema.derived.items() if {*rule.inputs} <= {*columns}}
        return schema.model_copy(update={"columns": (*columns.values(),), "derived": derived})

    def source_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the source columns of the released ones, including the order."""
        return (*self.row_schema(schema).measured_columns, self.order)

    def check_schema(self, schema: TableSchema) -> None:
        """Refuse (ValueError) a schema that does not declare exactly these columns of visits."""
        declared = {column.name: column for column in schema.columns}
        problem = None
        if absent := [name for name in self.released if name not in declared]:
            problem = f"expected schema.columns to declare {in_short(absent)}"
        elif unlike := [
            column
            for column in self.columns
            if len({repr(declared[n].model_copy(update={"name": ""})) for n in self.places(column)})
            > 1
        ]:
            problem = f"expected the columns of {in_short(unlike)} to be declared alike"
        elif never := [c for c in self.columns if not declared[self.places(c)[0]].has_missing]:
            problem = (
                f"expected the columns of {in_short(never)} to be nullable or to have missing "
                "codes, as a patient may have fewer visits"
            )
        elif twice := sorted(
            {*schema.released_columns, *schema.ignore} & {self.order, *self.columns}
        ):
            problem = f"expected {in_short(twice)} here alone, and not in the schema"
        elif ruled := sorted(
            {
                *(n for rule in schema.constraints for n in (*rule.columns, *(rule.mend or ()))),
                *(schema.columns[place].name for pair in schema.bases.items() for place in pair),
            }
            & {*self.released}
        ):
            problem = f"expected no constraint of {in_short(ruled)}, and no relative_to"
        if problem is not None:
            raise ValueError(f"privacy_unit.visits: {problem}")


class ByEntry(Declaration):
    """The patients who enter in the period of a release, each read once.

    A patient enters with the first row; with ``at_most`` 2, in the first two periods of a row. All
    rows of a patient are read. A run is of the last period that has ended, or of ``--period``:
    2026-W09, 2026-03, 2026-Q1 or 2026.
    """

    by: Literal["entry"]
    """Parts by entry."""
    column: Name
    """Column with a date or a time of ISO 8601 in every row."""
    every: Literal["week", "month", "quarter", "year"]
    """Length of a period."""
    timezone: TimeZone = "UTC"
    """Zone of the calendar, to which times with an offset are converted."""
    at_most: Annotated[StrictInt, Field(ge=1, le=100)] = 1
    """Most releases in which a patient is read; as many are charged."""

    def period_of(self, text: str) -> str | None:
        """Return the period of a date or time, None for any other text."""
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                moment = moment.astimezone(ZoneInfo(self.timezone))
        except (ValueError, OverflowError):
            return None
        return self._period(moment.date())

    def last_period(self, now: datetime) -> str:
        """Return the last period that has ended."""
        day = now.astimezone(ZoneInfo(self.timezone)).date()
        current = self._period(day)
        while self._period(day) == current:
            day -= timedelta(days=1)
        return self._period(day)

    def has_ended(self, period: str) -> bool:
        """Return whether a text names a period that has ended."""
        named = re.fullmatch("[0-9]{4}" + _FORMS[self.every], period)
        try:  # some years have no week 53
            if named and self.every == "week":
                date.fromisocalendar(int(period[:4]), int(period[6:]), 1)
        except ValueError:
            return False
        return named is not None and period <= self.last_period(datetime.now(UTC))

    def _period(self, day: date) -> str:
        if self.every == "week":
            year, week, _ = day.isocalendar()
            return f"{year:04d}-W{week:02d}"
        if self.every == "quarter":
            return f"{day.year:04d}-Q{(day.month + 2) // 3}"
        return f"{day.year:04d}" + (f"-{day.month:02d}" if self.every == "month" else "")


class _Partition(Declaration):
    """Part of the patients that a release reads; parts of one scheme are disjoint."""

    by: Literal["hash"] = left_out("hash")
    """Parts by a hash of the patient's key."""
    scheme: PublicName
    """Public name of the split."""
    parts: Annotated[StrictInt, Field(ge=2, le=1000)]
    """Number of parts."""
    part: Annotated[StrictInt, Field(ge=0, le=999)]
    """The part that is read, from 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.part >= self.parts:
            raise ValueError("expected part below parts, as the first part is 0")
        return self


def _by(declared: object) -> str:
    usual = declared.get("by", "hash") if isinstance(declared, dict) else None
    return str(usual or getattr(declared, "by", "hash"))


AnyPartition = Annotated[
    Annotated[_Partition, Tag("hash")] | Annotated[ByEntry, Tag("entry")], Discriminator(_by)
]
