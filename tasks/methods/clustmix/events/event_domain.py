"""The public shape of a table of events, and private events by it, each patient by itself.

An event has a kind (a laboratory test, a diagnosis), a value whose bins belong to the kind, and
further columns. A code of kind and value together is a joint code.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Indices, Integers
from privacy.errors import ConfigurationError
from tasks.measurement.encoded import mixed_bits

LEVELS = 6
"""Number of groups of places; a place is the rank of a value within its kind, from 0 to 1."""

MOST_EVENTS, MOST_CODES = 1_000, 400
"""Most kept events of a patient, so that their weights sum to one in double precision
(`privacy.mechanisms.FLOAT_MARGIN`), and most joint codes, so that a fit takes minutes.
"""

_MOST_LEVELS, _COUNT_BINS, _FEW = 12, 8, (2, 4)


class CodedColumn(NamedTuple):
    """A column of codes; where it has a missing value, that is the last code."""

    n_codes: int
    numeric: bool = False
    has_missing: bool = False


class Events(NamedTuple):
    """Coded events: patients' indices (E,), moments in days (E,), codes (E, x), the joint first."""

    patient: Indices
    moment: Floats
    codes: Integers

    def only(self, chosen: Indices | NDArray[np.bool_]) -> "Events":
        """Return some of the events, in the order of the index."""
        return Events(self.patient[chosen], self.moment[chosen], self.codes[chosen])

    @property
    def rank(self) -> Integers:
        """Place of each event among those of its patient, of events sorted by patient."""
        return np.arange(len(self.patient)) - np.searchsorted(self.patient, self.patient)


@dataclass(kw_only=True)
class EventDomain:
    """Public shape of a table of events.

    `n_values` is the number of codes of the value of each of the T kinds, 1 for a kind without
    values; the last code may be a missing value. A table without kinds has one kind. `gaps` are the
    lower edges, in days and from 0, of the bins of the gap to the event before; `offsets` are all
    edges of the bins of a patient's first moment. The first `most` events of a patient are kept.
    `label` is the place, among the codes, of the label column.

    Derived are `starts`, the first joint code of each kind, with their number C at the end;
    `kind_of` each joint code, T for the code of no event; `places` (C,) of values, NaN if unknown,
    and the same `on_grid` of the largest kind, one code more if unknown; `later`, a mask of gaps to
    a later day; the `fewest` and `most_of` events of each bin of numbers: none, then bins in equal
    ratios; and `level_of` each kind (T,); further kinds share the last.
    """

    n_values: tuple[int, ...]
    value_missing: bool = False
    others: tuple[CodedColumn, ...] = ()
    gaps: tuple[float, ...]
    offsets: tuple[float, ...]
    most: int
    label: int | None = None

    def __post_init__(self) -> None:
        if not (1 <= self.most <= MOST_EVENTS and 1 <= sum(self.n_values) <= MOST_CODES):
            raise ConfigurationError(
                "EVENTS_INVALID",
                f"expected 1 to {MOST_EVENTS} events of a patient and 1 to {MOST_CODES} codes of "
                "kinds with their values, found others",
            )
        sizes = np.repeat(self.n_values, self.n_values)
        self.starts = np.cumsum([0, *self.n_values])
        self.kind_of = np.repeat(np.arange(len(self.n_values) + 1), [*self.n_values, 1])
        value, last = np.arange(len(sizes)) - self.starts[self.kind_of[:-1]], max(self.n_values) - 1
        bins = sizes - (self.value_missing & (sizes > 1))
        known = (value < bins) & (sizes > 1)
        self.places: Floats = np.where(known, value / np.maximum(bins - 1, 1), np.nan)
        self.on_grid = np.nan_to_num(np.rint(self.places * last), nan=last + 1).astype(np.int64)
        self.later = np.append(self.gaps[1:], np.inf) > 1.0
        low = np.unique(np.rint(np.geomspace(1, self.most, _COUNT_BINS))).astype(np.int64)
        self.fewest, self.most_of = np.append(0, low), np.array([0, *(low[1:] - 1), self.most])
        self.level_of = np.minimum(np.arange(len(self.n_values)), _MOST_LEVELS - 1)

    @cached_property
    def hidden(self) -> tuple[CodedColumn, ...]:
        """Hidden columns of a patient: number of events, bin of the first moment, level of a kind.

        The last code of all but the number means "no event"; a kind without values has one level.
        """
        valued = np.bincount(self.level_of, weights=np.asarray(self.n_values) > 1) > 0
        levels = [CodedColumn(1 + (LEVELS if one else 1), bool(one), True) for one in valued]
        first = CodedColumn(len(self.offsets), True, True)
        return (CodedColumn(len(self.fewest), True), first, *levels)

    @property
    def no_event(self) -> Integers:
        """Hidden codes of a patient without events."""
        return np.array([0, *(one.n_codes - 1 for one in self.hidden[1:])])

    @property
    def n_levels(self) -> int:
        """Codes of a level in a record."""
        several = len(_FEW) + 1 if len(self.n_values) == 1 else 1
        return LEVELS * several if max(self.n_values) > 1 else 1

    def level_codes(self, level: Integers, number: Integers) -> Integers:
        """Return codes of levels in a record; of a single kind also by the bin of its number.

        The level of a patient with one event is its value; with many events it is a mean.
        """
        least = self.fewest[np.searchsorted(self.fewest, number, side="right") - 1]
        few = np.searchsorted(_FEW, least, side="right") * (len(self.n_values) == 1)
        return (level + LEVELS * few) % self.n_levels


def groups_of(places: Floats) -> Integers:
    """Return the group of each place, below `LEVELS`, and `LEVELS` for an unknown place."""
    groups = np.minimum(np.floor(places * LEVELS + 1e-9), LEVELS - 1)
    return np.nan_to_num(groups, nan=LEVELS).astype(np.int64)


def first_events(domain: EventDomain, events: Events, ties: NDArray[np.uint64]) -> Events:
    """Keep the first events of each patient, by moment, then kind, then a keyed hash (E,).

    Events of one moment stand in the declared order of the kinds, so that a battery of tests reads
    alike wherever it is. Events that are equal in all of this are equal.

    Privacy
    -------
    The kept events of a patient, and their order, depend on that patient's events alone.
    """
    kind = domain.kind_of[events.codes[:, 0]]
    events = events.only(np.lexsort((mixed_bits(ties), kind, events.moment, events.patient)))
    return events.only(events.rank < domain.most)


def levels(domain: EventDomain, events: Events) -> Integers:
    """Return the patient's level of each event's kind (E,), from all of the patient's events.

    A level is the group of the mean place of values of a kind, or of kinds that share a hidden
    column; the middle one where none is known.
    """
    joint = events.codes[:, 0]
    own = events.patient * len(domain.hidden) + domain.level_of[domain.kind_of[joint]]
    n_known = np.bincount(own, weights=np.isfinite(domain.places[joint]))
    sums = np.bincount(own, weights=np.nan_to_num(domain.places[joint]))
    return np.where(n_known > 0, groups_of(sums / np.maximum(n_known, 1)), LEVELS // 2)[own]


def last_values(domain: EventDomain, events: Events) -> Integers:
    """Return the patient's last value of each event's kind (E,): on the grid, unknown or none."""
    joint = events.codes[:, 0]
    found = np.full(len(joint), max(domain.n_values) + 1, dtype=np.int64)
    own = events.patient * len(domain.n_values) + domain.kind_of[joint]
    order = np.argsort(own, kind="stable")
    same = np.flatnonzero(np.diff(own[order]) == 0)
    found[order[same + 1]] = domain.on_grid[joint[order[same]]]
    return found


def hidden_codes(domain: EventDomain, events: Events, *, n_patients: int) -> Codes:
    """Return the columns `EventDomain.hidden` of patients (n, 2 + L).

    Privacy
    -------
    A function of the kept events of each patient.
    """
    none = domain.no_event
    codes, first = np.tile(none, (n_patients, 1)), events.only(events.rank == 0)
    number = np.bincount(events.patient, minlength=n_patients)
    codes[:, 0] = np.searchsorted(domain.fewest, number, side="right") - 1
    codes[first.patient, 1] = np.searchsorted(domain.offsets[1:-1], first.moment, side="right")
    column = 2 + domain.level_of[domain.kind_of[events.codes[:, 0]]]
    codes[events.patient, column] = np.where(none[column] > 1, levels(domain, events), 0)
    return codes.astype(np.uint16)
