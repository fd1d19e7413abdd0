"""Declared columns of a `storage.schema.table`, the text form of raw values, and conditions.

A condition on a column is a declared level, a range of whole bins, or a missing cell: the language
of `constraints:` in the site file and of ``clustmix publish --where``.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from storage.files.documents import listed

_FAULTS = listed(__package__, "faults.toml")

MAX_CODES = 4096
MAX_DECIMALS = 6
_LONGEST_WORD = 100
MOST_NAMED = 20
"""Most names of a list that a message gives."""

SEPARATOR = "; and "
"""Between the faults of one message."""

# A level such as "+" or "-ve" is common; a formula calls a function or another program.
_FORMULA = re.compile(r"[=@]|[+-].*[(|!]")


def raw_text(value: object) -> str:
    """Return the text of a raw value, for comparison with codes and levels.

    It loses its outer blanks; a whole number has one form: ``3``, ``3.0`` and ``"3"`` are ``"3"``.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, bool) and hasattr(value, "__float__"):
        number = float(value)
        if math.isfinite(number) and number.is_integer() and abs(number) < 2**53:
            return str(int(number))
    return str(value)


def number_of(text: str) -> float | None:
    """Return the finite number that a text spells, or None."""
    if "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _declared_text(value: object) -> str:
    # Python writes the true of YAML as True, which would be a level that no record has.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected text or a number; write true, false and null in quotes")
    return raw_text(value)


def _printable(text: str) -> str:
    # Releases are read in terminals and browsers: no control or direction mark, no lone surrogate.
    if not text.isprintable():
        raise ValueError("expected one line of text with printable characters")
    return text


def _no_formula(text: str) -> str:
    if number_of(text) is None and _FORMULA.match(text):
        raise ValueError(_FAULTS["formula"])
    return text


PrintableText = Annotated[str, AfterValidator(_printable)]
"""One line of printable text."""

_Released = Annotated[PrintableText, AfterValidator(_no_formula)]

Name = Annotated[_Released, Field(min_length=1, max_length=128)]
RawValue = Annotated[str, BeforeValidator(_declared_text)]
Level = Annotated[_Released, BeforeValidator(_declared_text), Field(min_length=1, max_length=200)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def left_out(default: Any = None) -> Any:
    """Declare a key that is not written at its default, so that an upgrade keeps request keys."""
    return Field(default=default, exclude_if=lambda value: value == default)


class Declaration(BaseModel):
    """A part of a schema, immutable and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Column(Declaration):
    name: Name
    missing: tuple[RawValue, ...] = ()
    """Raw codes that mean "missing", such as ``?`` or ``-1``; numbers lie outside the bounds."""
    nullable: bool = False
    """Allow empty cells, which mean "missing"."""

    @property
    def has_missing(self) -> bool:
        """True for a column with a missing code, which is the last of its codes."""
        return self.nullable or bool(self.missing)


class NumericColumn(_Column):
    """A numeric column with public bounds and public bins."""

    is_date: ClassVar[bool] = False

    kind: Literal["integer", "real"]
    lower: Finite
    upper: Finite
    """Public bounds, both included. A value outside is clipped."""
    bins: Annotated[int, Field(ge=1, lt=MAX_CODES)] | tuple[Finite, ...]
    """Number of bins of equal width, or edges from ``lower`` to ``upper``. Bins are half open,
    ``[edge, next edge)``; the last includes ``upper``. Edges of an integer column may end at
    ``upper + 1``, so that the last bin can hold one value."""
    decimals: Annotated[int, Field(ge=0, le=MAX_DECIMALS)] | None = None
    """Decimals of a released value; 0 for integers. Bounds and edges lie on this grid."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lower >= self.upper:
            raise ValueError("expected lower below upper")
        if self.is_whole and self.decimals not in (None, 0):
            raise ValueError("expected no decimals for an integer column; use kind: real")
        if max(abs(self.lower), abs(self.upper)) * 10**self.grid_decimals >= 2**53:
            raise ValueError("expected bounds below 2^53 on the grid of the declared decimals")
        edges = self.bins if isinstance(self.bins, tuple) else (self.lower, self.upper)
        if any(round(value, self.grid_decimals) != value for value in (*edges, self.lower)):
            raise ValueError(_FAULTS["grid"].format(decimals=self.grid_decimals))
        if isinstance(self.bins, tuple):
            last = (self.upper, self.upper + 1) if self.is_whole else (self.upper,)
            if len(edges) < 2 or edges[0] != self.lower or edges[-1] not in last:
                raise ValueError("expected the edges of bins to run from lower to upper")
        starts = edges if isinstance(self.bins, tuple) else self.bin_starts
        if any(a >= b for a, b in pairwise(starts)):
            raise ValueError(_FAULTS["bins"])
        if self.n_codes > MAX_CODES:
            raise ValueError(f"expected at most {MAX_CODES} codes")
        inside = (self.lower <= code <= self.upper for code in self.missing_numbers)
        if self.base is None and any(inside):
            raise ValueError("expected missing codes outside lower and upper")
        return self

    @property
    def is_whole(self) -> bool:
        """True if numbers are whole."""
        return self.kind != "real"

    @property
    def base(self) -> str | None:
        """Column from which the numbers are counted, None for 0."""
        return getattr(self, "relative_to", None)

    @property
    def grid_decimals(self) -> int:
        """Decimals of a released value."""
        if self.is_whole:
            return 0
        return 2 if self.decimals is None else self.decimals

    def read(self, cell: str) -> float | None:
        """Return the number that a cell of the source spells, else None."""
        return number_of(cell)

    def declared(self, text: str) -> float | None:
        """Return the number that a condition or a repair names, else None."""
        return self.read(text) if self.base is None else number_of(text)

    def text(self, number: float) -> str:
        """Return a bound, or the end of a bin, as text."""
        return f"{number:.{self.grid_decimals}f}"

    @property
    def bin_starts(self) -> tuple[float, ...]:
        """Lower end of each bin, increasing; the last bin ends at ``upper``, included."""
        if not isinstance(self.bins, int):
            return self.bins[:-1]
        # The grid has upper - lower + 1 step values; bins get as equal numbers of them as possible.
        scale = 10**self.grid_decimals
        first, last = round(self.lower * scale), round(self.upper * scale)
        n_values = last - first + 1
        return tuple((first + k * n_values // self.bins) / scale for k in range(self.bins))

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        """The missing codes that are numbers."""
        numbers = (self.read(code) for code in self.missing)
        return tuple(number for number in numbers if number is not None)

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return self.bins if isinstance(self.bins, int) else len(self.bin_starts)

    @property
    def n_codes(self) -> int:
        """Number of codes: bins, plus one where the column has a missing code."""
        return self.n_bins + self.has_missing


class CategoricalColumn(_Column):
    """A categorical column with public levels.

    A raw value is looked up in this order: missing codes, a level's own name, ``groups``,
    ``prefixes``, ``numeric_ranges``, ``other``. A value that none of them contains is refused.
    """

    kind: Literal["categorical"]
    levels: Annotated[tuple[Level, ...], Field(min_length=1, max_length=MAX_CODES - 1)]
    """The levels of the released column."""
    other: Level | None = None
    """The level of every undeclared value; None to refuse such values."""
    groups: dict[Level, tuple[RawValue, ...]] = {}
    """Raw values that belong to a level, by level."""
    prefixes: dict[Level, tuple[RawValue, ...]] = {}
    """Beginnings of raw values that belong to a level, by level."""
    numeric_ranges: dict[Level, tuple[tuple[Finite, Finite], ...]] = {}
    """Half-open ranges ``[lower, upper)`` of raw values that are numbers, by level."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        named = {*self.groups, *self.prefixes, *self.numeric_ranges}
        if self.other is not None:
            named.add(self.other)
        if not named <= set(self.levels):
            hints = [did_you_mean(name, self.levels) for name in named.difference(self.levels)]
            raise ValueError(_FAULTS["levels"].format(hint=max(hints)))
        raw = [value for values in self.groups.values() for value in values]
        refuse_duplicates((*self.levels, *raw, *self.missing))
        refuse_prefixes(self.prefixes)
        ranges = sorted(pair for pairs in self.numeric_ranges.values() for pair in pairs)
        if any(lower >= upper for lower, upper in ranges) or any(
            a[1] > b[0] for a, b in pairwise(ranges)
        ):
            raise ValueError("expected numeric_ranges [lower, upper) that do not overlap")
        return self

    @property
    def n_codes(self) -> int:
        """Number of codes: levels, plus one where the column has a missing code."""
        return len(self.levels) + self.has_missing


Column = NumericColumn | CategoricalColumn


def codes_asked(column: Column, asked: str | None) -> NDArray[np.bool_]:
    """Return a mask (k,) of the codes of a column that meet a condition.

    A condition is a declared level, a range ``LOW..HIGH`` of whole bins (between starts of bins, or
    to the upper bound), a number with its own bin, or None for a missing cell; else a ValueError.
    """
    found = np.zeros(column.n_codes, dtype=np.bool_)
    if asked is None:
        if not column.has_missing:
            raise ValueError(f"expected missing codes or nullable: true of {column.name}")
        found[-1] = True
        return found
    within = (
        _in_range(column, asked)
        if isinstance(column, NumericColumn)
        else levels_asked(column.name, asked, column.levels)
    )
    found[: len(within)] = within
    return found


def levels_asked(name: str, asked: str | None, levels: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the requested level of a column or label; ValueError if it is unknown."""
    if asked not in levels:
        known, hint = in_short(levels), did_you_mean(asked, levels)
        raise ValueError(_FAULTS["level"].format(name=name, known=known, found=asked, hint=hint))
    return np.array([level == asked for level in levels])


def _in_range(column: NumericColumn, asked: str) -> NDArray[np.bool_]:
    low, dots, high = (part.strip() for part in asked.partition(".."))
    starts = [*column.bin_starts, column.upper]
    ends = map(column.declared, (low, high))
    first, end = (math.nan if value is None else value for value in ends)
    if not dots:
        # One number with a bin of its own.
        end = round(first + 10.0**-column.grid_decimals, column.grid_decimals)
        end = math.inf if end > column.upper else end
    elif end in (column.upper, column.upper + column.is_whole):
        end = math.inf  # the bound belongs to the last bin, even if the bin starts there
    is_known = first in column.bin_starts and end in (*column.bin_starts, math.inf)
    if not is_known or first >= end:
        places = in_short([*map(column.text, starts)])
        raise ValueError(_FAULTS["range"].format(name=column.name, places=places, found=asked))
    found = np.asarray(column.bin_starts)
    return np.asarray((found >= first) & (found < end))


def in_short(names: Sequence[str], most: int = MOST_NAMED, between: str = ", ") -> str:
    """Return names as a list in words, shortened if there are more than `most`."""
    shown, more = between.join(names[:most]), len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def near(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelt one was probably meant to be."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(word).lower()[:_LONGEST_WORD], by_lower, n=1)
    return by_lower[found[0]] if found else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word; empty if no known one is near."""
    guess = near(word, known)
    return "" if guess is None else f"; did you mean {guess}?"


def refuse_together(faults: Iterable[str]) -> None:
    """Raise one ValueError of all faults, if there are any."""
    if found := SEPARATOR.join(dict.fromkeys(faults)):
        raise ValueError(found)


def refuse_duplicates(values: Sequence[str]) -> None:
    """Raise ValueError if a text occurs twice."""
    if len(set(values)) != len(values):
        raise ValueError("expected each level, raw value and missing code once")


def refuse_prefixes(prefixes: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError if a beginning of raw values is empty or begins another."""
    starts = sorted(text for texts in prefixes.values() for text in texts)
    if "" in starts or any(b.startswith(a) for a, b in pairwise(starts)):
        raise ValueError("expected prefixes of which none begins another")
