"""Public rules of whole records: allowed combinations of codes, and of numbers in their bins.

A rule is a forbidden box of codes, or a relation of numbers on one grid; a record without one of
the numbers keeps it. Codes break a relation if no numbers inside their bins keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Indices, Integers

LABEL = -1
"""Stands for the label where a column has its number."""

MAX_COMBINATIONS = 200_000
"""Most combinations of codes that are listed for columns connected by rules."""

_REDRAWS = 16

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Masks of codes by column: no record may have a masked code in all of these columns."""

    masks: Mapping[int, Bools]

    @property
    def columns(self) -> tuple[int, ...]:
        """Every column of the box."""
        return tuple(self.masks)

    def broken(self, codes: Codes, label: Codes) -> Bools:
        """Return a mask (n,) of the records in the box."""
        found = np.ones(len(label), dtype=np.bool_)
        for column, mask in self.masks.items():
            found &= mask[label if column == LABEL else codes[:, column]]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """``least <= x[total] - sum(x[parts]) <= most`` (None: no bound); `counted`: a bin's bounds."""

    parts: tuple[int, ...]
    total: int
    least: int | Integers
    most: int | Integers | None
    counted: bool = False

    @property
    def columns(self) -> tuple[int, ...]:
        """Every column of the relation."""
        return (*self.parts, self.total)

    def broken(self, numbers: Mapping[int, Integers], present: Mapping[int, Bools]) -> Bools:
        """Return a mask (n,) of records that have all numbers, in grid units, and break it."""
        left = numbers[self.total] - sum(numbers[part] for part in self.parts)
        found = left < self.least
        if self.most is not None:
            found |= left > self.most
        for column in self.columns:
            found &= present[column]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """First and last number (k,) of each bin on a common grid; the column has each `step`-th."""

    first: Integers
    last: Integers
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """Codes (m, c) of columns that keep the rules with some label, and a mask of these (m, C)."""

    columns: tuple[int, ...]
    codes: Codes
    labels: Bools


@dataclass(frozen=True, eq=False)
class RecordRules:
    """All rules of a table of these numbers of codes, with the bins of related columns."""

    n_codes: tuple[int, ...]
    n_labels: int
    boxes: tuple[Box, ...]
    relations: tuple[Relation, ...]
    bins: Mapping[int, Bins]

    def broken(self, codes: Codes, label: Codes) -> Bools:
        """Return a mask (n,) of the records (n, d), (n,) that break a rule."""
        found = np.zeros(len(label), dtype=np.bool_)
        for box in self.boxes:
            found |= box.broken(codes, label)
        for group in self._groups:
            found |= ~_Intervals.of_codes(self.bins, group, codes).narrow()
        return found

    def labels_allowed(self, codes: Codes) -> Bools:
        """Return a mask (n, C) of labels allowed for records (n, d); none if one breaks a rule."""
        tried = range(self.n_labels if self.limits_labels else 1)
        found = [~self.broken(codes, np.full(len(codes), c, dtype=np.uint16)) for c in tried]
        return np.broadcast_to(np.stack(found, axis=1), (len(codes), self.n_labels))

    def numbers(self, codes: Codes, rng: np.random.Generator) -> dict[int, Integers]:
        """Draw a number (n,) inside the bin of each related column, in units of its own grid.

        Columns that relations connect are drawn by rejection, uniformly over the numbers that keep
        the relations. If sixteen redraws fail, the columns are drawn in turn, each uniform on an
        interval that leaves numbers to later ones; it is not empty, since relations with a sum have
        no cycle (Freuder 1982). Records that break a relation get numbers inside their bins.
        """
        found: dict[int, Integers] = {}
        for group in self._groups:
            intervals = _Intervals.of_codes(self.bins, group, codes)
            values = intervals.draw(rng)
            for column, own in zip(intervals.columns, values, strict=True):
                found[column] = own // self.bins[column].step
        return found

    @cached_property
    def _groups(self) -> tuple[tuple[Relation, ...], ...]:
        return tuple(
            tuple(self.relations[place] for place in group)
            for group in _connected([set(relation.columns) for relation in self.relations])
        )

    @cached_property
    def combinations(self) -> tuple[Combinations, ...]:
        """All combinations of codes of columns that rules connect, by the label as well.

        Columns with over `MAX_COMBINATIONS`, kept or not, are left out: see `all_listed`.
        """
        rules: list[Box | Relation] = [*self.boxes, *self.relations]
        found = []
        for group in _connected([set(one.columns) for one in rules]):
            own = [rules[place] for place in group]
            columns = tuple(sorted({c for one in own for c in one.columns if c != LABEL}))
            sizes = [self.n_codes[column] for column in columns]
            if not columns or prod(sizes) > MAX_COMBINATIONS:
                continue
            codes = np.indices(sizes, dtype=np.uint16).reshape(len(sizes), -1).T
            placed = np.zeros((len(codes), len(self.n_codes)), dtype=np.uint16)
            placed[:, columns] = codes
            alone = replace(
                self,
                boxes=tuple(one for one in own if isinstance(one, Box)),
                relations=tuple(one for one in own if isinstance(one, Relation)),
            )
            labels = alone.labels_allowed(placed)
            kept = labels.any(axis=1)
            found.append(Combinations(columns, codes[kept], labels[kept]))
        return tuple(found)

    @property
    def named_columns(self) -> set[int]:
        """Columns that a rule names."""
        rules: list[Box | Relation] = [*self.boxes, *self.relations]
        return {column for one in rules for column in one.columns}

    @property
    def limits_labels(self) -> bool:
        """True if a rule names the label."""
        return any(LABEL in box.masks for box in self.boxes)

    @property
    def all_listed(self) -> bool:
        """True if every record with a listed combination of each group keeps the rules."""
        listed = {column for group in self.combinations for column in group.columns}
        rules: list[Box | Relation] = [*self.boxes, *self.relations]
        listed_all = all(
            listed.intersection(one.columns) or {*one.columns} == {LABEL} for one in rules
        )
        return listed_all and bool(self.possible_labels.any())

    @property
    def possible_labels(self) -> Bools:
        """Mask (C,) of the labels that no rule of the label alone forbids."""
        found = np.ones(self.n_labels, dtype=np.bool_)
        for box in self.boxes:
            if {*box.masks} == {LABEL}:
                found &= ~box.masks[LABEL]
        return found

    def together(self, first: int, second: int) -> Bools:
        """Return a mask (k, l) of allowed pairs of codes of a column and another, or the label.

        All pairs are allowed if no listed rule connects the two.
        """
        size = self.n_labels if second == LABEL else self.n_codes[second]
        for group in self.combinations:
            if first in group.columns and second in (*group.columns, LABEL):
                found = np.zeros((self.n_codes[first], size), dtype=np.bool_)
                own = group.codes[:, group.columns.index(first)]
                if second == LABEL:
                    np.logical_or.at(found, own, group.labels)
                else:
                    found[own, group.codes[:, group.columns.index(second)]] = True
                return found
        every = np.ones((self.n_codes[first], size), dtype=np.bool_)
        return every & self.possible_labels if second == LABEL else every


def _connected(columns: Sequence[set[int]]) -> list[list[int]]:
    """Return the indices of rules of these columns, in groups without common columns."""
    groups: list[tuple[set[int], list[int]]] = []
    for place, own in enumerate(columns):
        met = [group for group in groups if group[0] & own]
        groups = [group for group in groups if not group[0] & own]
        places = [other for group in met for other in group[1]]
        groups.append((own.union(*(group[0] for group in met)), [*places, place]))
    return [places for _, places in groups]


@dataclass(slots=True)
class _Intervals:
    """Least and largest number (m, n) of related columns of records, with a mask of known ones."""

    columns: list[int]
    relations: tuple[Relation, ...]
    low: Integers
    high: Integers
    present: Bools
    first: Integers
    last: Integers
    steps: Integers

    @classmethod
    def of_codes(
        cls, all_bins: Mapping[int, Bins], relations: tuple[Relation, ...], codes: Codes
    ) -> _Intervals:
        """Return the bins of the codes (n, d), in units of the common grid."""
        columns = sorted({column for relation in relations for column in relation.columns})
        low = np.empty((len(columns), len(codes)), dtype=np.int64)
        high, present = np.empty_like(low), np.empty(low.shape, dtype=np.bool_)
        for place, column in enumerate(columns):
            bins, own = all_bins[column], codes[:, column]
            present[place] = own < len(bins.first)
            own = np.where(present[place], own, 0)
            low[place], high[place] = bins.first[own], bins.last[own]
        steps = np.array([[all_bins[column].step] for column in columns], dtype=np.int64)
        first, last = low.copy(), high.copy()
        for one in relations:  # a base comes before what is counted from it
            if one.counted:
                total, base = columns.index(one.total), columns.index(one.parts[0])
                low[total], high[total] = low[total] + low[base], high[total] + high[base]
        return cls(columns, relations, low, high, present, first, last, steps)

    def _only(self, records: Indices) -> _Intervals:
        arrays = ("low", "high", "present", "first", "last")
        return replace(self, **{name: getattr(self, name)[:, records] for name in arrays})

    def _bounded(self) -> Iterator[Relation]:
        """Yield the relations, those of counted columns with the bounds of each record."""
        for one in self.relations:
            own = self.columns.index(one.total)
            limits = {"least": self.first[own], "most": self.last[own]} if one.counted else {}
            yield replace(one, **limits)

    def draw(self, rng: np.random.Generator) -> Integers:
        """Draw a number (m, n) of each interval, so that relations hold where they can."""
        low, high = self.low.copy(), self.high.copy()
        kept = self.narrow()
        self.low, self.high = np.where(kept, self.low, low), np.where(kept, self.high, high)
        values = self._uniform(rng)
        again = np.flatnonzero(kept)
        for left in range(_REDRAWS, -1, -1):
            again = again[self._only(again)._unrelated(values[:, again])]
            if left:
                values[:, again] = self._only(again)._uniform(rng)
        rest = self._only(again)
        for place in range(len(rest.columns)):
            one = rest._uniform(rng)[place].clip(rest.low[place], rest.high[place])
            rest.low[place] = rest.high[place] = one
            rest.narrow()
        values[:, again] = rest.low
        return values

    def _uniform(self, rng: np.random.Generator) -> Integers:
        """Draw each number independently, or relative to the number from which it is counted."""
        values = rng.integers(self.low // self.steps, self.high // self.steps, endpoint=True)
        for one in self.relations:
            if one.counted:
                own, base = self.columns.index(one.total), self.columns.index(one.parts[0])
                least, most = (end[own] // self.steps[own] for end in (self.first, self.last))
                values[own] = values[base] + rng.integers(least, most, endpoint=True)
        return values * self.steps

    def _unrelated(self, values: Integers) -> Bools:
        numbers = dict(zip(self.columns, values, strict=True))
        there = dict(zip(self.columns, self.present, strict=True))
        found = np.zeros(values.shape[1], dtype=np.bool_)
        for relation in self._bounded():
            found |= relation.broken(numbers, there)
        return found

    def narrow(self) -> Bools:
        """Narrow the intervals by propagation of bounds; return a mask (n,) of feasible records.

        With orders it ends after as many passes as there are columns, or never (Bellman 1958); with
        relations without cycles, after as many passes as there are relations.
        """
        changed = np.ones(self.low.shape[1], dtype=np.bool_)
        for _ in range(len(self.columns) + len(self.relations) + 1):
            before = self.low.copy(), self.high.copy()
            for relation in self._bounded():
                self._narrow_by(relation)
            self.low = -(-self.low // self.steps) * self.steps
            self.high = self.high // self.steps * self.steps
            changed = ((self.low != before[0]) | (self.high != before[1])).any(axis=0)
            if not changed.any():
                break
        return np.asarray((self.low <= self.high).all(axis=0) & ~changed)

    def _narrow_by(self, relation: Relation) -> None:
        low, high = self.low, self.high
        parts = [self.columns.index(part) for part in relation.parts]
        total = self.columns.index(relation.total)
        active = self.present[[*parts, total]].all(axis=0)

        def at_least(row: int, bound: Integers) -> None:
            np.maximum(low[row], bound, out=low[row], where=active)

        def at_most(row: int, bound: Integers) -> None:
            np.minimum(high[row], bound, out=high[row], where=active)

        at_least(total, low[parts].sum(axis=0) + relation.least)
        for part in parts:
            others = low[parts].sum(axis=0) - low[part]
            at_most(part, high[total] - relation.least - others)
        if relation.most is not None:
            at_most(total, high[parts].sum(axis=0) + relation.most)
            for part in parts:
                others = high[parts].sum(axis=0) - high[part]
                at_least(part, low[total] - relation.most - others)
