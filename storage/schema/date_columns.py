"""Dates as whole days since 1970: those that a cell spells, those of a declaration, and periods.

A moment is reduced to its day, as it is written; one with an offset from UTC only under a declared
time zone.
"""

import re
from datetime import date, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

import numpy as np
from pydantic import AfterValidator, Field, WithJsonSchema, field_serializer, model_validator

from storage.schema.columns import (
    MAX_CODES,
    Name,
    NumericColumn,
    left_out,
    number_of,
    refuse_together,
)

Period = Literal["year", "quarter", "month"]
"""Parts of a calendar that bins of dates may be."""

_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_EPOCH = date(1970, 1, 1).toordinal()
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ISO = re.compile(rf"{_DAY}(?:[T ].+)?")
_NAMES = (
    "january february march april may june july august september october november december".split()
)
_PARTS = {"Y": "[0-9]{4}", "y": "[0-9]{2}", "b": "[a-z]{3}", "B": "[a-z]+"} | {
    **{"m": "[01]?[0-9]", "d": "[0-3]?[0-9]", "H": "[0-2]?[0-9]"},
    **{"M": "[0-5][0-9]", "S": r"[0-5][0-9](?:\.[0-9]+)?"},
}
_LIKE = {"y": "Y", "b": "m", "B": "m"}


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("expected the name of a time zone, such as Europe/Berlin") from None
    return name


def _format(form: str) -> str:
    parts = re.split("%(.)", form, flags=re.DOTALL)[1::2]
    days = sorted(_LIKE.get(one, one) for one in parts if one not in "HMS")
    if days != ["Y", "d", "m"] or len({*parts}) < len(parts) or not form.isprintable():
        raise ValueError(
            "expected a format with %d, one of %m, %b and %B, and one of %Y and %y, once each, and "
            "perhaps %H, %M and %S, such as %d.%m.%Y"
        )
    if form.startswith("%Y-%d-%m"):
        raise ValueError("expected a format in which no date of ISO 8601 is another date")
    return form


TimeZone = Annotated[str, AfterValidator(_zone)]
"""Name of a time zone."""

DateFormat = Annotated[str, AfterValidator(_format)]
"""Form of the dates in a source, in the directives of ``strftime``."""


def declared_day(value: Any) -> float:
    """Return the day of a declared date; ValueError for anything else."""
    text = str(value)
    if re.fullmatch(_DAY, text) is None or (day := day_of(text)) is None:
        raise ValueError("expected a date such as 2015-01-31")
    return day


def day_of(
    text: str, form: str | None = None, zone: str | None = None, *, last: float = 0.0
) -> float | None:
    """Return the day of a cell in the declared form or in ISO 8601, else None.

    A year of two digits is the last such year that is not after that of the day `last`.
    """
    try:
        if form is not None and (found := _pattern(form).fullmatch(text)) is not None:
            return _numbered(found.groupdict(), last) - _EPOCH
        if _ISO.fullmatch(text) is None:
            return None
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            if zone is None:
                return None
            moment = moment.astimezone(ZoneInfo(zone))
        return float(moment.toordinal() - _EPOCH)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=256)
def _pattern(form: str) -> re.Pattern[str]:
    texts = re.split("%(.)", form)
    # Without a sign between two parts, each has all of its digits.
    fixed = "" in texts[2:-1:2]
    for place in range(1, len(texts), 2):
        part = _PARTS[texts[place]].replace("?" if fixed else "\0", "")
        texts[place] = f"(?P<{texts[place]}>{part})"
    return re.compile(
        "".join(one if n % 2 else re.escape(one) for n, one in enumerate(texts)), re.IGNORECASE
    )


def _numbered(parts: dict[str, str], last: float) -> float:
    if (name := parts.get("b") or parts.get("B")) is None:
        month = int(parts["m"])
    else:
        names = _NAMES if "B" in parts else [one[:3] for one in _NAMES]
        month = names.index(name.lower()) + 1
    year = int(parts.get("Y") or parts["y"])
    if "y" in parts:
        ends = date.fromordinal(int(last) + _EPOCH).year
        year = ends - (ends - year) % 100
    moment = datetime(year, month, int(parts["d"]), int(parts.get("H", 0)))
    return float(moment.toordinal())


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


def period_name(start: float, end: float) -> str:
    """Return the name of the days from `start` up to `end`, which is not among them."""
    (year, month, first), (then, later, last) = (iso(day).split("-") for day in (start, end))
    months = 12 * (int(then) - int(year)) + int(later) - int(month)
    if first == last == "01":
        if months == 12 and month == "01":
            return year
        if months == 3 and int(month) % 3 == 1:
            return f"{year} Q{(int(month) + 2) // 3}"
        if months == 1:
            return f"{year}-{month}"
    return iso(start) if end == start + 1 else f"{iso(start)} to {iso(end - 1)}"


_Day = Annotated[
    float,
    Field(allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date"}, {"type": "integer"}]}),
]


class DateColumn(NumericColumn):
    """A column of dates in bins of days; released are dates, uniform inside a bin.

    A cell is a date of ISO 8601 or of `format`. A time of day is dropped.
    """

    kind: Literal["date"]  # type: ignore[assignment]
    lower: _Day
    upper: _Day
    """Last day; with ``relative_to``, like ``lower``, a number of days. A cell outside the bounds
    is clipped to them."""
    bins: Period | Annotated[int, Field(ge=1, lt=MAX_CODES)] | tuple[_Day, ...]  # type: ignore[assignment]
    """Bins by the calendar, or as of numbers: so many of equal width, or edges, which may end on
    the day after ``upper``."""
    decimals: Literal[0] | None = left_out()
    relative_to: Name | None = left_out()
    """Column of dates from which this one is counted in days: the difference is measured, and
    released is the other date plus it. Missing where the other date is."""
    format: DateFormat | None = left_out()
    """Form of the cells beside ISO 8601, such as ``%d.%m.%Y``, ``%Y%m%d`` or ``%d-%b-%Y``, with
    English names of months. A year ``%y`` is the last one that is not after ``upper``."""
    timezone: TimeZone | None = left_out()
    """Zone whose day counts for moments with an offset from UTC, which are refused without it."""

    @model_validator(mode="before")
    @classmethod
    def _in_days(cls, declared: Any) -> Any:
        if not isinstance(declared, dict) or declared.get("relative_to") is not None:
            return declared
        found, faults, bins = dict(declared), list[str](), declared.get("bins")
        ends = {key: (found[key],) for key in ("lower", "upper") if key in found}
        for key, dates in (
            ends | ({"bins": bins} if isinstance(bins, list | tuple) else {})
        ).items():
            try:
                days = tuple(map(declared_day, dates))
                found[key] = days if key == "bins" else days[0]
            except ValueError as error:
                faults.append(f"{key}: {error}")
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
        if self.relative_to == self.name:
            raise ValueError("relative_to: expected another column")
        if "%y" in (self.format or "") and (self.relative_to or self.upper - self.lower >= 36500):
            raise ValueError(
                "format: expected %Y, as %y needs bounds of less than 100 years and no relative_to"
            )
        return self

    @property
    def is_date(self) -> bool:
        """True if numbers are days."""
        return True

    @property
    def base(self) -> str | None:
        """Column from which the numbers are counted, None for 1970."""
        return self.relative_to

    def read(self, cell: str) -> float | None:
        """Return the day of a cell of the source, else None."""
        return day_of(cell, self.format, self.timezone, last=self.upper)

    def declared(self, text: str) -> float | None:
        """Return the day, or the number of days, that a condition or a repair names, else None."""
        return number_of(text) if self.relative_to is not None else day_of(text)

    def text(self, number: float) -> str:
        """Return a bound, or the end of a bin, as text."""
        return super().text(number) if self.relative_to is not None else iso(number)

    @property
    def widths(self) -> str:
        """Rule of the widths of the bins, in words."""
        return f"by {self.bins}" if isinstance(self.bins, str) else super().widths

    @property
    def bin_starts(self) -> tuple[float, ...]:
        """Lower end of each bin, increasing; the last bin ends at ``upper``, included."""
        if isinstance(self.bins, str):
            return period_starts(self.lower, self.upper, self.bins)
        return super().bin_starts
