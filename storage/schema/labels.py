"""The labels of a table: the columns that models trained on a release will predict.

Several labels are measured as one label with a level for each combination. A release then serves
each of them, and their association, at the cost of one label. Event and time are measured so, too.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, Tag, model_validator

from storage.schema.columns import (
    MAX_DECIMALS,
    Declaration,
    Finite,
    Level,
    Name,
    NumericColumn,
    RawValue,
    did_you_mean,
    left_out,
    levels_asked,
    number_of,
    raw_text,
    refuse_duplicates,
    refuse_prefixes,
)

MAX_LABEL_LEVELS = 50
"""Most levels of several labels together."""


def of_entries(value: object) -> object:
    """Read ``[{name: ..., values: ...}, ...]`` as a mapping in that order."""
    if not isinstance(value, list | tuple):
        return value
    if any(not isinstance(entry, dict) or set(entry) != {"name", "values"} for entry in value):
        raise ValueError("expected a list of entries with the keys name and values")
    if len({raw_text(entry["name"]) for entry in value}) != len(value):
        raise ValueError("expected each level once")
    return {entry["name"]: entry["values"] for entry in value}


def as_entries(levels: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write a mapping as a list of ``{name: ..., values: ...}``, which keeps its order."""
    return [{"name": name, "values": values} for name, values in levels.items()]


# The order of label levels is the order of their codes. They are written as a list, since JSON with
# sorted keys loses the order of a mapping. A mapping in a site file is read in the order of lines.
_Levels = Annotated[
    dict[Level, tuple[RawValue, ...]], BeforeValidator(of_entries), PlainSerializer(as_entries)
]


class _Buckets(Declaration):
    """Label levels cut out of a number: ``levels[i]`` holds ``edges[i-1] <= value < edges[i]``."""

    edges: Annotated[tuple[Finite, ...], Field(min_length=1)]
    """Inner edges, increasing; the first bucket has no lower end and the last no upper end."""
    levels: tuple[Level, ...]
    """Names of the buckets, one more than edges."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError("expected edges in increasing order")
        if len(self.levels) != len(self.edges) + 1:
            raise ValueError("expected one level more than edges")
        if any(number_of(level) is not None for level in self.levels):
            raise ValueError("expected names of buckets that are not numbers")
        return self


class Label(Declaration):
    """A column that a model trained on the release will predict.

    Raw values are looked up as those of a categorical column.
    """

    name: Name
    """Column name."""
    levels: _Levels | None = None
    """Raw values by level, in the order of their codes: a list of ``{name, values}``. A level's own
    name also stands for itself."""
    buckets: _Buckets | None = None
    """Levels cut out of a numeric label; instead of ``levels``."""
    prefixes: dict[Level, tuple[RawValue, ...]] = left_out({})
    """Beginnings of raw values that belong to a level, by level."""
    other: Level | None = left_out()
    """The level of every undeclared value; such values are refused if left out."""
    positive: Level | None = None
    """The level that a two-level label counts as positive, if any."""
    missing: tuple[RawValue, ...] = ()
    """Raw codes that mean "no label". Such rows are left out."""
    nullable: bool = False
    """Allow empty cells, which mean "no label"."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.levels is None) == (self.buckets is None):
            raise ValueError("expected exactly one of levels and buckets")
        if len(self.level_names) < 2:
            raise ValueError("expected two or more label levels")
        raw = [
            value
            for level, values in (self.levels or {}).items()
            for value in values
            if value != level
        ]
        refuse_duplicates((*self.level_names, *raw, *self.missing))
        if self.positive is not None and self.positive not in self.level_names:
            hint = did_you_mean(self.positive, self.level_names)
            raise ValueError(f"expected positive to name a label level{hint}")
        if not {*self.prefixes, self.other} - {None} <= {*self.level_names}:
            raise ValueError("expected other and prefixes to name label levels")
        refuse_prefixes(self.prefixes)
        return self

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the label levels, in the order of their codes."""
        return tuple(self.levels or ()) if self.buckets is None else self.buckets.levels

    @property
    def number(self) -> NumericColumn | None:
        """The number that a level is released as, if it is an interval of time."""
        return None

    @property
    def about(self) -> str:
        """Kind of the column in words."""
        return f"label, {len(self.level_names)} levels"


class _Part(Declaration):
    """A column of a survival label."""

    column: Name
    """Name of the column."""
    missing: tuple[RawValue, ...] = ()
    """Raw codes that mean "no label". Such rows are left out."""
    nullable: bool = False
    """Allow empty cells, which mean "no label"."""


class _Time(_Part):
    """Time to the event, or to the end of observation.

    Interval i holds ``edges[i] <= time < edges[i + 1]``; a released time is uniform in it. A time
    from the last edge on is censored at that edge, where many should still be observed; one below
    the first is refused.
    """

    unit: Level
    """Unit, such as days."""
    edges: Annotated[tuple[Finite, ...], Field(min_length=2)]
    """Increasing and public, such as years of follow-up."""
    decimals: Annotated[int, Field(ge=0, le=MAX_DECIMALS)] | None = None
    """Decimals of a released time; by default 0 for days, else 2."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ = self.number  # refuses edges that are not in order, or off the grid
        return self

    @property
    def number(self) -> NumericColumn:
        """The released column."""
        by_unit = 0 if self.unit.lower().startswith("day") else 2
        decimals = by_unit if self.decimals is None else self.decimals
        return NumericColumn(
            name=self.column,
            kind="real" if decimals else "integer",
            lower=self.edges[0],
            upper=self.edges[-1],
            bins=self.edges,
            decimals=decimals,
        )


class _Event(_Part):
    """An event, or the end of observation without one."""

    levels: _Levels
    """Raw values by level, as of any label."""
    censored: Level | None = None
    """The level without an event; if left out, that named ``censored``, or of raw 0 or False."""
    other: Level | None = left_out()
    """The level of every undeclared value; such values are refused if left out."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ = self.label  # refuses levels without one that is censored
        return self

    @property
    def code(self) -> int:
        """Code of the level of records without an event."""
        named = {"censored", "0", "False"} if self.censored is None else {self.censored}
        own = [{name, *(() if self.censored else raw)} for name, raw in self.levels.items()]
        found = [code for code, names in enumerate(own) if named & names]
        if len(found) != 1:
            raise ValueError("expected censored to name the level of records without an event")
        return found[0]

    @property
    def label(self) -> Label:
        """The outcome as a label."""
        events = [level for code, level in enumerate(self.levels) if code != self.code]
        return Label(
            name=self.column,
            positive=events[0] if len(events) == 1 else None,
            **self.model_dump(include={"levels", "other", "missing", "nullable"}),
        )


class _TimeLabel(Label):
    """Intervals of a survival time, the last one open; the label before it is the outcome."""

    declared: _Time
    censored: int

    @property
    def number(self) -> NumericColumn:
        return self.declared.number

    @property
    def about(self) -> str:
        return f"label, time in {self.declared.unit} to the event or the end of observation"


class SurvivalLabel(Declaration):
    """A time to an event, censored where observation ended before it: two released columns."""

    kind: Literal["survival"]
    time: _Time
    """The time."""
    event: _Event
    """The outcome."""

    @property
    def labels(self) -> tuple[Label, Label]:
        """The outcome and the intervals of the time, as labels."""
        time, outcome = self.time, self.event.label
        ends = [f"{edge:.{time.number.grid_decimals}f}" for edge in time.edges]
        levels = (*map("..".join, pairwise(ends)), f"{ends[-1]} or more")
        return outcome, _TimeLabel(
            name=time.column,
            buckets=_Buckets(edges=time.edges[1:], levels=levels),
            missing=time.missing,
            nullable=time.nullable,
            declared=time,
            censored=self.event.code,
        )


def _kind_of(label: Any) -> str:
    kind = label.get("kind") if isinstance(label, dict) else getattr(label, "kind", None)
    return "label" if kind is None else "survival"


AnyLabel = Annotated[
    Annotated[Label, Tag("label")] | Annotated[SurvivalLabel, Tag("survival")],
    Discriminator(_kind_of),
]


class Labels:
    """Several labels as one, with a level for each combination: ``died=no, stay=short``.

    The last level of a time is censored, so it occurs only with the outcome without an event.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self._labels = tuple(labels)
        self._sizes = tuple(len(label.level_names) for label in labels)
        # The merging of outcomes below keeps at least half of the combinations.
        too_many = len(labels) > 1 and prod(self._sizes) > 2 * MAX_LABEL_LEVELS
        places = [*np.unravel_index(np.arange(1 if too_many else prod(self._sizes)), self._sizes)]
        for place, label in enumerate(labels):
            if isinstance(label, _TimeLabel):
                last = places[place] == len(label.level_names) - 1
                places[place - 1] = np.where(last, label.censored, places[place - 1])
        joined = np.ravel_multi_index(places, self._sizes)
        kept, self._codes = np.unique(joined, return_inverse=True)
        self._places = np.unravel_index(kept, self._sizes)
        if too_many or (len(labels) > 1 and len(kept) > MAX_LABEL_LEVELS):
            raise ValueError(
                f"expected labels of {MAX_LABEL_LEVELS} levels or fewer together, found more; "
                "declare fewer levels, or fewer labels"
            )

    @property
    def name(self) -> str:
        """Names of the labels."""
        return ", ".join(label.name for label in self._labels)

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the levels together, in the order of their codes."""
        names = [label.name for label in self._labels]
        every = zip(*self.parts.values(), strict=True)
        if len(names) == 1:
            return tuple(level for (level,) in every)
        return tuple(", ".join(map("{}={}".format, names, levels)) for levels in every)

    @property
    def parts(self) -> dict[str, list[str]]:
        """The level of each label, by its name, in every level together."""
        own = self.columns(np.arange(len(self._places[0])))
        return {name: levels.tolist() for name, levels in own.items()}

    def joined(self, codes: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """Return one code (n,) for the codes of all labels, negative where one of them is."""
        found = np.zeros_like(codes[0])
        for own, size in zip(codes, self._sizes, strict=True):
            found = np.where((found < 0) | (own < 0), np.minimum(own, -1), found * size + own)
        return np.where(found < 0, found, self._codes[found]).astype(np.int32)

    def apart(self, codes: NDArray[Any]) -> list[NDArray[np.intp]]:
        """Return the code (n,) of each label for joint codes (n,)."""
        return [own[codes] for own in self._places]

    def columns(self, codes: NDArray[Any]) -> dict[str, NDArray[np.object_]]:
        """Return the levels of each label, by its name, for joint codes (n,)."""
        return {
            label.name: np.array(label.level_names, dtype=object)[part]
            for label, part in zip(self._labels, self.apart(codes), strict=True)
        }

    def asked(self, name: str, asked: str | None) -> NDArray[np.bool_]:
        """Return a mask of the joint levels that a condition on one label allows (ValueError)."""
        place = [label.name for label in self._labels].index(name)
        allowed = levels_asked(name, asked, self._labels[place].level_names)
        return np.asarray(allowed)[self._places[place]]
