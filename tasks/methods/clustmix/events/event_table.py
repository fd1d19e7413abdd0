"""A table of events beside patients: its transition records, the chosen pairs, and one draw.

A record is one event with the number of its patient's events, some of the patient's columns, the
event before, the gap between the two, and of its kind the last value and the patient's level.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.methods.clustmix.events import event_domain
from tasks.methods.clustmix.events.event_domain import LEVELS, CodedColumn
from tasks.methods.clustmix.records.table_layout import Layout, pair_cells
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables.table_draws import pair_tables

_FEW_COLUMNS, _FEW_CODES = 2, 16
_ONE_WAYS, _MOST_NOISE = 0.3, 2.0
_PAIRS = {
    "kind": ("kind_before", "last_place", "number", "gap"),
    "place": ("last_place", "level", "level_alone"),
    "level_alone": ("event_0", "last"),
    "last": ("event_0",),
    "gap": ("number", "final", "kind_before"),
    "final": ("number", "kind", "last_place"),
}
"""Pairs that are measured beside those of the columns of an event; see `EventTable.choice`."""


@dataclass(kw_only=True)
class EventTable:
    """A table of events: its domain, that of patients, its part ``mu`` of the budget, its draw.

    The hidden columns of this table begin at the patients' column `start`. Records have the `given`
    columns of the patient: the first two of at most 16 codes. The label is not among them, as noise
    in its relation to single events would add up over a history.

    The `columns` of records have names. `number` is that of the patient's events, and `final` says
    if this is the last. The columns of an event begin with the joint code; those of the event
    before have one more, for a first event, and so has the gap. `last` is the last value of this
    kind on the grid, unknown, or none, and `level` the patient's. `coarse` columns are measured as
    well; each is a column of records with the groups (k,) of its codes: the kinds of both events,
    the groups of the places of the last value and of this one, and the level alone. Tables of few
    cells have less noise. `label_plan` has the draws of a label of events, by their names in the
    table of the `labelled` columns; `own_mu` is the rest of the budget.
    """

    events: event_domain.EventDomain
    patients: EncodingDomain
    start: int
    mu: float
    name: str = "transitions"

    def __post_init__(self) -> None:
        own, domain = self.patients, self.events
        self.hidden = slice(self.start, self.start + len(domain.hidden))
        self.given = [j for j, k in enumerate(own.n_codes) if k <= _FEW_CODES][:_FEW_COLUMNS]
        given = [*zip(own.n_codes, own.numeric, own.has_missing, strict=True)]
        event = (CodedColumn(len(domain.places)), *domain.others)
        self.columns = {
            **{f"given_{j}": CodedColumn(*given[j]) for j in self.given},
            "number": CodedColumn(len(domain.fewest) - 1, True),
            "final": CodedColumn(2),
            **{f"before_{j}": CodedColumn(one.n_codes + 1) for j, one in enumerate(event)},
            "gap": CodedColumn(len(domain.gaps) + 1),
            **{f"event_{j}": one for j, one in enumerate(event)},
            "last": CodedColumn(max(domain.n_values) + 2),
            "level": CodedColumn(domain.n_levels),
        }
        grid = event_domain.groups_of(np.linspace(0.0, 1.0, max(domain.n_values)))
        self.coarse = {
            "kind_before": ("before_0", domain.kind_of),
            "kind": ("event_0", domain.kind_of[:-1]),
            "last_place": ("last", np.append(grid, [LEVELS, LEVELS + 1])),
            "place": ("event_0", event_domain.groups_of(domain.places)),
            "level_alone": ("level", np.arange(domain.n_levels) % LEVELS),
        }
        self.at = {name: place for place, name in enumerate([*self.columns, *self.coarse])}
        self.event = [self.at[f"event_{j}"] for j in range(len(event))]
        coarse = [CodedColumn(int(groups.max()) + 1) for _, groups in self.coarse.values()]
        self.layout = _layout([*self.columns.values()])
        self.measured = _layout([*self.columns.values(), *coarse])
        labelled, none = self.labelled, MeasurementPlan(mu=self.mu, statistics=())
        self.label_plan = none if labelled is None else labelled[1].plan(mu=self.mu)
        spent = sum(one.mu**2 for one in self.label_plan.statistics)
        self.own_mu = float(np.sqrt(self.mu**2 - spent))

    def known(self, codes: Codes) -> Integers:
        """Return the record columns that codes (n, d') of patients with events determine."""
        return np.column_stack([codes[:, self.given], np.maximum(codes[:, self.start], 1) - 1])

    @cached_property
    def choice(self) -> rule.PairChoice:
        """Contents of the draw, by a public rule.

        Pairs of the patient's own columns are known from the patients' table, and pairs within the
        event before repeat those of the event. A further column is paired with its own value before
        only. The table of joint codes of two events is measured if its noise is at most twice the
        largest total variation distance, since the mixture pools all tables.
        """
        at, sizes = self.at, self.measured.n_codes
        own = [*range(at["final"] + 1), at["gap"], *self.event]
        followed = [(at[f"before_{j}"], column) for j, column in enumerate(self.event)]
        pairs = [*product(self.event, own), *followed]
        pairs += [(at[one], at[other]) for one, others in _PAIRS.items() for other in others]
        used = np.zeros((len(sizes), len(sizes)), dtype=np.bool_)
        used[tuple(np.transpose(pairs))] = True
        used = (used | used.T) & ~np.eye(len(used), dtype=np.bool_)
        inner, place = 1.0 - 1.0 / np.asarray(sizes), np.arange(len(sizes))

        def norm() -> float:
            of_pairs = (np.triu(used) * np.outer(inner, inner)).sum()
            return float(np.sqrt(of_pairs / (1.0 - _ONE_WAYS)))

        stddev = norm() / (self.own_mu * rule.declared_patients(self.patients.patients))
        noise = rule.DEVIATION * float(self.events.starts[-1]) ** 2 * stddev
        used[followed[0]] = used[followed[0][::-1]] = noise <= _MOST_NOISE
        # One-ways leave out known columns of the patient, and coarse columns except the kind.
        loud = ((place > at["number"]) & (place <= at["level"])) | (place == at["kind"])
        return rule.PairChoice(
            groups=np.concatenate([np.arange(k) for k in sizes]),
            n_groups=sizes,
            used=used,
            one_way=loud * norm() * np.sqrt(_ONE_WAYS / inner[loud].sum()),
            norm=norm(),
        )

    @cached_property
    def plan(self) -> MeasurementPlan:
        """The draw of `table_draws.pair_tables`, with its sensitivity: see `records`; labels."""
        cells = int(pair_cells(self.choice.n_groups, self.choice.used).sum())
        request = SumRequest(self.name, (self.measured.width + cells,), share=1.0)
        own = plan_measurement([request], mu=self.own_mu).statistics
        more = (replace(one, name=f"{self.name}.{one.name}") for one in self.label_plan.statistics)
        return MeasurementPlan(mu=self.mu, statistics=(*own, *more))

    @cached_property
    def labelled(self) -> tuple[list[int], TableClustMix] | None:
        """Columns of records as a table whose label is the last one, and its method; if any.

        They are the patient's, the kind, the group of the value and the further columns. The
        transitions have the share of the budget that such a table has for pairs.
        """
        if self.events.label is None:
            return None
        own = [*range(len(self.given)), self.at["kind"], self.at["place"], *self.event[1:]]
        own.remove(label := self.event[self.events.label])
        shape: dict[str, Any] = {
            one: tuple(getattr(self.measured, one)[column] for column in own)
            for one in ("n_codes", "has_missing", "numeric")
        }
        levels, none = range(self.measured.n_codes[label]), np.empty((0, len(own)), np.uint16)
        names, of = (tuple(map(str, one)) for one in (own, levels))
        table = replace(self.patients, column_names=names, label_levels=of, rules=None, **shape)
        return [*own, label], TableClustMix(table, given=none)

    def measure(self, curator: Curator) -> Floats:
        """Draw the sums of the records that the curator has."""
        return curator.release(
            self.name,
            pair_tables,
            n_codes=self.measured.n_codes,
            n_visits=0,
            choice=self.choice,
            length=self.plan[self.name].shape[0],
        )

    def records(self, events: event_domain.Events, codes: Codes) -> EncodedRows:
        """Return the transition record of each kept event, with its coarse columns.

        The events are sorted by patient and time; codes (n, d) are those of the patients.

        Privacy
        -------
        Adjacency: add or remove one patient. A patient with m kept events adds m records of the
        weight 1 / m, each a function of that patient's events and own row alone; one without events
        adds none. So the weights of a patient sum to at most one, up to rounding that the margin of
        `privacy.mechanisms` covers, and a weighted sum of vectors of norm at most R changes by at
        most R when a patient comes or goes (`weighted_sum_l2_sensitivity`).
        """
        domain, first = self.events, events.rank == 0
        counts = np.bincount(events.patient)[events.patient]
        none = [self.layout.n_codes[column] for column in self.event]
        gaps = np.searchsorted(domain.gaps, np.diff(events.moment, prepend=0.0), side="right") - 1
        parts = [
            codes[:, self.given][events.patient].astype(np.int64),
            np.searchsorted(domain.fewest, counts, side="right") - 2,
            events.rank == counts - 1,
            np.where(first[:, None], none, np.roll(events.codes, 1, axis=0)),
            np.where(first, len(domain.gaps), np.maximum(gaps, 0)),
            events.codes,
            event_domain.last_values(domain, events),
            domain.level_codes(event_domain.levels(domain, events), counts),
        ]
        own = np.column_stack(parts)
        coarse = [groups[own[:, self.at[source]]] for source, groups in self.coarse.values()]
        return EncodedRows(
            codes=np.column_stack([own, *coarse]).astype(np.uint16),
            label=np.zeros(len(own), dtype=np.uint16),
            weight=1.0 / counts,
            fold=np.zeros(len(own), dtype=np.uint8),
        )


def labelled_rows(rows: EncodedRows, *, columns: Sequence[int]) -> EncodedRows:
    """Return columns of records, the last of them as a label: each row by itself."""
    codes = rows.codes[:, columns]
    return replace(rows, codes=codes[:, :-1], label=codes[:, -1])


def _layout(columns: Sequence[CodedColumn]) -> Layout:
    n_codes, numeric, has_missing = zip(*columns, strict=True)
    return Layout(n_codes=n_codes, numeric=numeric, has_missing=has_missing, n_labels=1, n_visits=0)
