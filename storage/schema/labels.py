"""The labels of a table: the columns that models trained on a release will predict.

Several labels are measured as one label with a level for each combination. A release then serves
each of them, and their association, at the cost of one label.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from storage.schema.columns import (
    Declaration,
    Finite,
    Level,
    Name,
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


def _of_entries(value: object) -> object:
    """Read ``[{name: ..., values: ...}, ...]`` as a mapping in that order."""
    if not isinstance(value, list | tuple):
        return value
    if any(not isinstance(entry, dict) or set(entry) != {"name", "values"} for entry in value):
        raise ValueError("expected a list of entries with the keys name and values")
    if len({raw_text(entry["name"]) for entry in value}) != len(value):
        raise ValueError("expected each level once")
    return {entry["name"]: entry["values"] for entry in value}


def _as_entries(levels: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "values": values} for name, values in levels.items()]


# The order of label levels is the order of their codes. They are written as a list, since JSON with
# sorted keys loses the order of a mapping. A mapping in a site file is read in the order of lines.
_Levels = Annotated[
    dict[Level, tuple[RawValue, ...]], BeforeValidator(_of_entries), PlainSerializer(_as_entries)
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


class Labels:
    """Several labels as one, with a level for each combination: ``died=no, stay=short``."""

    def __init__(self, labels: Sequence[Label]) -> None:
        self._labels = tuple(labels)
        self._sizes = tuple(len(label.level_names) for label in labels)
        if len(labels) > 1 and prod(self._sizes) > MAX_LABEL_LEVELS:
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
        every = product(*(label.level_names for label in self._labels))
        if len(names) == 1:
            return tuple(level for (level,) in every)
        return tuple(", ".join(map("{}={}".format, names, levels)) for levels in every)

    @property
    def parts(self) -> dict[str, list[str]]:
        """The level of each label, by its name, in every level together."""
        own = self.columns(np.arange(prod(self._sizes)))
        return {name: levels.tolist() for name, levels in own.items()}

    def joined(self, codes: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """Return one code (n,) for the codes of all labels, negative where one of them is."""
        found = np.zeros_like(codes[0])
        for own, size in zip(codes, self._sizes, strict=True):
            found = np.where((found < 0) | (own < 0), np.minimum(own, -1), found * size + own)
        return found

    def columns(self, codes: NDArray[Any]) -> dict[str, NDArray[np.object_]]:
        """Return the levels of each label, by its name, for joint codes (n,)."""
        parts = np.unravel_index(codes.astype(np.int64), self._sizes)
        return {
            label.name: np.array(label.level_names, dtype=object)[part]
            for label, part in zip(self._labels, parts, strict=True)
        }

    def asked(self, name: str, asked: str | None) -> NDArray[np.bool_]:
        """Return a mask of the joint levels that a condition on one label allows (ValueError)."""
        places = np.unravel_index(np.arange(prod(self._sizes)), self._sizes)
        place = [label.name for label in self._labels].index(name)
        allowed = levels_asked(name, asked, self._labels[place].level_names)
        return np.asarray(allowed)[places[place]]
