"""Columns of dates, as whole days since 1970."""

import re
from datetime import date, datetime
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self
from zoneinfo import ZoneInfo

import numpy as np
from pydantic import AfterValidator, Field, WithJsonSchema, field_serializer, model_validator

from storage.schema.columns import MAX_CODES, Finite, Name, NumericColumn, left_out, refuse_together

Period = Literal["year", "quarter", "month"]
"""Parts of a calendar that bins of dates may be."""

_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_EPOCH = date(1970, 1, 1).toordinal()
_ISO = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ].+)?")
_LIKE = {"y": "Y", "b": "m", "B": "m"}


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("expected the name of a time zone, such as Europe/Berlin") from None
    return name


def _format(form: str) -> str:
    parts = re.split("%(.)", form, flags=re.DOTALL)[1::2]
    days = sorted(_LIKE.get(one, one) for one in parts if one not in "HMSf")
    if days != ["Y", "d", "m"] or len({*parts}) < len(parts) or not form.isprintable():
        raise ValueError("expected a format with a day, month and year, such as %d.%m.%Y")
    if form.startswith("%Y-%d-%m"):
        raise ValueError("expected a format in which no date of ISO 8601 is another date")
    return form


TimeZone = Annotated[str, AfterValidator(_zone)]
"""Name of a time zone."""

DateFormat = Annotated[str, AfterValidator(_format)]
"""Form of the dates in a source, in the directives of ``strftime``."""


def day_of(text: str, form: str = "", zone: str = "", *, last: float = 0.0) -> float | None:
    """Return the day of a cell in the declared form or in ISO 8601, else None.

    A time of day is dropped. A moment with an offset from UTC is converted to `zone`; without a
    zone it is refused. A two-digit year is the latest such year up to that of the day `last`.
    """
    try:
        if _ISO.fullmatch(text) is not None:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                moment = moment.astimezone(ZoneInfo(zone))
        else:
            moment = datetime.strptime(text, form)
            # Parts without a separator between them must have all of their digits.
            if "" in re.split("%.", form)[1:-1] and len(text) < len(moment.strftime(form)):
                return None
            if "%y" in form:
                year = date.fromordinal(int(last) + _EPOCH).year
                moment = moment.replace(year=year - (year - moment.year) % 100)
    except (ValueError, OverflowError):
        return None
    return float(moment.toordinal() - _EPOCH)


def iso(day: float) -> str:
    """Return a day as ISO 8601 writes it."""
    return str(np.datetime64(int(day), "D"))


@lru_cache(maxsize=256)
def period_starts(lower: float, upper: float, every: Period) -> tuple[float, ...]:
    """Return `lower` and the first days of the periods that begin after it, up to `upper`."""
    first, final = (date.fromordinal(int(end) + _EPOCH) for end in (lower, upper))
    months = range(first.year * 12 + first.month, final.year * 12 + final.month)
    begun = (date(m // 12, m % 12 + 1, 1) for m in months if m % _MONTHS[every] == 0)
    return (lower, *(float(day.toordinal() - _EPOCH) for day in begun))


_EITHER = {"anyOf": [{"type": "string", "format": "date"}, {"type": "integer"}]}
_Day = Annotated[Finite, WithJsonSchema(_EITHER)]


class DateColumn(NumericColumn):
    """A column of dates, in ISO 8601 or `format`; a time of day is dropped.

    Released are dates, uniform inside a bin.
    """

    is_date: ClassVar[bool] = True

    kind: Literal["date"]  # type: ignore[assignment]
    lower: _Day
    """First day."""
    upper: _Day
    """Last day. With ``relative_to`` both are numbers of days."""
    bins: Period | Annotated[int, Field(ge=1, lt=MAX_CODES)] | tuple[_Day, ...]  # type: ignore[assignment]
    """Bins by the calendar, or as of integers; edges may end on the day after ``upper``."""
    relative_to: Name | None = left_out()
    """Date from which this one counts: the difference in days is measured, and missing where that
    date is."""
    format: DateFormat | None = left_out()
    """Form of the cells, such as ``%d.%m.%Y``, ``%Y%m%d`` or ``%d-%b-%Y``. ``%y`` is the last such
    year up to ``upper``."""
    timezone: TimeZone | None = left_out()
    """Zone whose day counts for moments with an offset, which are refused without it."""

    @model_validator(mode="before")
    @classmethod
    def _in_days(cls, declared: Any) -> Any:
        if not isinstance(declared, dict) or declared.get("relative_to") is not None:
            return declared
        found, faults = dict(declared), list[str]()
        for key, value in declared.items():
            is_edges = key == "bins" and isinstance(value, list | tuple)
            if is_edges or key in ("lower", "upper"):
                days = [day_of(str(one)) for one in (value if is_edges else [value])]
                found[key] = tuple(days) if is_edges else days[0]
                faults += [f"{key}: expected a date such as 2015-01-31"] * (None in days)
        refuse_together(faults)
        return found

    @field_serializer("lower", "upper", "bins")
    def _as_dates(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._as_dates, value))
        return iso(value) if isinstance(value, float) and self.relative_to is None else value

    @model_validator(mode="after")
    def _check_dates(self) -> Self:
        if self.relative_to is not None and isinstance(self.bins, str):
            raise ValueError("bins: expected numbers of days with relative_to")
        if "%y" in (self.format or "") and (self.relative_to or self.upper - self.lower >= 36500):
            raise ValueError("format: expected %Y, or bounds of dates of less than 100 years")
        return self

    def read(self, cell: str) -> float | None:
        """Return the day of a cell of the source, else None."""
        return day_of(cell, self.format or "", self.timezone or "", last=self.upper)

    def text(self, number: float) -> str:
        """Return a bound, or the end of a bin, as text."""
        return super().text(number) if self.relative_to is not None else iso(number)

    @property
    def bin_starts(self) -> tuple[float, ...]:
        """Lower end of each bin, increasing; the last bin ends at ``upper``, included."""
        if isinstance(self.bins, str):
            return period_starts(self.lower, self.upper, self.bins)
        return super().bin_starts
