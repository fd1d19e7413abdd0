"""Patients and their tables of events as one method: one plan, one guarantee.

Proof. All tables hold rows of the same patients. A patient who comes or goes changes one row of the
patients' table, of weight one and with hidden columns by that patient's own events, and the
transition records of that patient alone, whose weights sum to at most one in each table. So every
statistic keeps its sensitivity (`tables.table_draws`, `EventTable.records`), each is a Gaussian
draw of its own noise, and by adaptive composition (Dong, Roth and Su 2019, Corollary 3.3) all of
them are mu-GDP, where ``mu**2`` is the sum of the parts. All later steps are post-processing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from privacy.arrays import Codes, Floats, Records
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import PUBLIC_SEED, Released, Stage
from tasks.methods.clustmix.events.event_domain import EventDomain, Events, hidden_codes
from tasks.methods.clustmix.events.event_table import EventTable, labelled_rows
from tasks.methods.clustmix.events.histories import draw_histories, fitted
from tasks.methods.clustmix.table_clustmix import TableClustMix

_FIT_PATIENTS = 25_000


@dataclass(frozen=True, kw_only=True)
class EventRelease:
    """ClustMix of patients and of tables of events by name, each with a share of ``mu**2``.

    The patients' table and tables of share None divide equally what declared shares leave.
    """

    patients: EncodingDomain
    tables: Mapping[str, EventDomain]
    shares: Sequence[float | None]

    @property
    def of_patients(self) -> TableClustMix:
        """The method of the patients' table, with the hidden columns of each table behind it."""
        own, tables = self.patients, self.tables.values()
        columns = [one for table in tables for one in table.hidden]
        domain = replace(
            own,
            column_names=own.column_names + tuple(f"events {i}" for i in range(len(columns))),
            n_codes=own.n_codes + tuple(one.n_codes for one in columns),
            has_missing=own.has_missing + tuple(one.has_missing for one in columns),
            numeric=own.numeric + tuple(one.numeric for one in columns),
        )
        return TableClustMix(domain)

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Plan every draw: those of the patients' table, then one of each table of events."""
        parts = [self._own(mu), *(table.plan for table in self.tables_at(mu).values())]
        return MeasurementPlan(
            mu=mu, statistics=tuple(one for part in parts for one in part.statistics)
        )

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of the patients' table, then one of each table of events."""
        own = self.of_patients.stages()
        return (
            *(replace(stage, run=partial(self._patients, stage)) for stage in own),
            *(Stage(name=f"events-{one}", run=partial(self._events, one)) for one in self.tables),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample patients alone; see `histories` for their events."""
        codes, label = self.of_patients.sample(released, n_rows=n_rows, rng=rng)
        return codes[:, : self.patients.n_columns], label

    def histories(
        self,
        released: Released,
        rows: Records,
        bounds: Mapping[str, Floats],
        rng: np.random.Generator,
    ) -> tuple[dict[str, Events], Codes]:
        """Draw the events of sampled rows of `of_patients`, inside bounds, and labels again.

        Labels are redrawn given the hidden codes of the drawn events, labels of events given the
        event's own columns; the shares of labels stay the same.
        """
        found, codes = {}, rows[0].copy()
        for name, table in self.tables_at(1.0).items():
            own = [key for key in released if key.startswith(f"{name}.")]
            model = {key.removeprefix(f"{name}."): released[key] for key in own}
            events = draw_histories(table, model, codes, bounds=bounds[name], rng=rng)
            if table.labelled is not None and len(events.patient):
                columns, method = table.labelled
                made = labelled_rows(table.records(events, codes), columns=columns)
                label = method.relabelled(model, made.codes, made.label, rng)
                events.codes[:, table.events.label] = label
            codes[:, table.hidden] = hidden_codes(table.events, events, n_patients=len(codes))
            found[name] = events
        return found, self.of_patients.relabelled(released, codes, rows[1], rng)

    def tables_at(self, mu: float) -> dict[str, EventTable]:
        """Return the tables with their parts of a budget."""
        start, found = self.patients.n_columns, {}
        for (name, domain), share in zip(self.tables.items(), self.shares, strict=True):
            found[name] = EventTable(
                events=domain,
                patients=self.patients,
                start=start,
                mu=mu * (self._rest if share is None else share) ** 0.5,
                name=f"{name}.transitions",
            )
            start += len(domain.hidden)
        return found

    @property
    def _rest(self) -> float:
        declared = [share for share in self.shares if share is not None]
        return (1.0 - sum(declared)) / (1 + len(self.shares) - len(declared))

    def _own(self, mu: float) -> MeasurementPlan:
        return self.of_patients.plan(mu=mu * self._rest**0.5)

    def _patients(self, stage: Stage, curator: Curator, released: Released) -> Released:
        return stage.run(curator.of(self._own(curator.plan.mu)), released)

    def _events(self, name: str, curator: Curator, released: Released) -> Released:
        """Draw the transitions of a table, and fit its model to them."""
        table, rng = self.tables_at(curator.plan.mu)[name], np.random.default_rng(PUBLIC_SEED)
        values = table.measure(curator.of(table.plan, name))
        codes, _ = self.of_patients.sample(released, n_rows=_FIT_PATIENTS, rng=rng)
        model = fitted(table, values, codes, n_patients=float(released["patients"]))
        if table.labelled is not None:
            columns, method = table.labelled
            made = table.records(draw_histories(table, model, codes, rng=rng), codes)
            # Records drawn by their weights have the shares of patients.
            chance, given = made.weight / made.weight.sum(), np.zeros((_FIT_PATIENTS, len(columns)))
            if len(made):
                given = rng.choice(made.codes[:, columns], _FIT_PATIENTS, p=chance)
            method = replace(method, given=given[:, :-1].astype(np.uint16))
            part = curator.of(table.label_plan, name, f"{table.name}.")
            part.recode(labelled_rows, columns=columns)
            for stage in method.stages():
                model |= stage.run(part, model)
        return {f"{name}.{key}": array for key, array in model.items()}
