"""Synthetic tables of events in a bundle: their files, and the gate that holds them.

Post-processing: all of it reads released values, public declarations and synthetic rows.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from storage.releases.manifest import GateRecord
from storage.schema.event_tables import PATIENTS, EventDeclaration
from storage.sources.cells import number_cells
from tasks.gates import agreement
from tasks.gates.agreement_gate import FALSE_ALARM, MODEL_ALLOWANCE
from tasks.gates.table_rules import column_checks
from tasks.histories.event_frames import coded_events, days_of, events_of, sampled_tables
from tasks.histories.event_pages import section
from tasks.histories.event_shards import Histories
from tasks.ingest.encoding import encode_chunk
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.method import Noisy, Released
from tasks.methods.clustmix.events.event_domain import first_events
from tasks.methods.clustmix.events.event_table import EventTable
from tasks.reporting.tables import (
    SCHEMA_FILE,
    parquet_of,
    read_rows,
    table_files,
    text_of,
    texts_agree,
)

GAP_ALLOWANCE = 0.3
"""Distance from noisy shares of gaps: events are moved into the bounds of the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTables(agreement.CodedTable):
    """Coded synthetic patients, with the frames of all tables by name."""

    frames: Mapping[str, pd.DataFrame]


@dataclass(frozen=True, kw_only=True)
class EventSampling:
    """Synthetic patients with their events, drawn under conditions from a measurement.

    The key is the column that names a patient, and `mu` the budget of the measurement.
    """

    of: Histories
    key: str
    released: Released
    mu: float
    conditions: Mapping[str, str]
    rng: np.random.Generator

    def draw(self, *, n_rows: int, all_of_them: bool = True) -> DrawnTables:
        """Draw so many patients, all of whom meet the conditions."""
        frames = sampled_tables(
            *(self.of.release, self.released, self.conditions),
            schema=self.of.schema,
            tables=self.of.tables,
            key=self.key,
            n_rows=n_rows,
            rng=self.rng,
        )
        rows = encode_chunk(frames[PATIENTS], self.of.schema)
        return DrawnTables(codes=rows.codes, label=rows.label, frames=frames)

    def files(self, drawn: DrawnTables) -> dict[str, bytes]:
        """Write all tables in both formats, and the schema with the declared tables of events."""
        files = table_files(drawn.frames[PATIENTS], self.of.schema, released=self.released)
        stated = json.loads(files[SCHEMA_FILE]) | {"events": self._stated}
        files[SCHEMA_FILE] = (json.dumps(stated, indent=2, ensure_ascii=False) + "\n").encode()
        for table in self.of.tables:
            frame = drawn.frames[table.name]
            files |= {f"{table.name}.parquet": parquet_of(frame)}
            files |= {f"{table.name}.csv": text_of(frame)}
        return files

    def sections(self, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
        """Return what report, card and catalogue say of each table."""
        frames = self._frames(files)
        n_patients = len(frames[PATIENTS])
        return [section(frames[one.name], one, n_patients) for one in self.of.tables]

    @property
    def _stated(self) -> list[dict[str, Any]]:
        own = set(EventDeclaration.model_fields)
        return [table.model_dump(mode="json", include=own) for table in self.of.tables]

    def _frames(self, files: Mapping[str, bytes]) -> dict[str, pd.DataFrame]:
        names = [table.name for table in self.of.tables]
        events = {name: pd.read_parquet(io.BytesIO(files[f"{name}.parquet"])) for name in names}
        return {PATIENTS: read_rows(files), **events}

    def checks(
        self,
        files: Mapping[str, bytes],
        reference: DrawnTables,
        noisy: Noisy | None,
        published: agreement.CodedTable,
    ) -> Iterator[GateRecord]:
        """Hold the files against declarations, a fresh sample, and the sealed statistics, if any.

        Published are the coded patients of the files. An honest release fails with a probability
        of `agreement_gate.FALSE_ALARM` at most.
        """
        frames = self._frames(files)
        keys, stated = frames[PATIENTS].get(self.key), json.loads(files[SCHEMA_FILE])["events"]
        numbered = keys is not None and keys.tolist() == list(range(1, len(keys) + 1))
        yield GateRecord(check="patient keys", passed=numbered)
        yield GateRecord(check="files: events", passed=stated == self._stated)
        found = DrawnTables(codes=published.codes, label=published.label, frames=frames)
        tables = self.of.release.tables_at(self.mu)
        for table in self.of.tables if numbered else ():
            days = days_of(frames[PATIENTS], table, self.of.schema)
            rules = [*_rules(frames[table.name], table, days)]
            rules.append(GateRecord(check="files", passed=texts_agree(files, table.name)))
            yield from rules
            if all(one.passed for one in rules):
                yield from self._agreement(found, reference, table, tables[table.name], noisy=noisy)

    def _agreement(
        self,
        published: DrawnTables,
        reference: DrawnTables,
        table: EventDeclaration,
        own: EventTable,
        *,
        noisy: Noisy | None,
    ) -> Iterator[GateRecord]:
        """Compare shares of codes of records, in which the events of a patient count as one."""
        rows = [self._records(one, table, own) for one in (published, reference)]
        n, n_fresh = (max(round(one.weight.sum()), 1) for one in rows)
        titles = [("number of events", "number"), ("gap", "gap"), ("kind", "kind")]
        titles += [("kind and value", "event_0")]
        titles += [(one.name, f"event_{j}") for j, one in enumerate(table.others, start=1)]
        at, measured, choice = dict(own.at), own.measured, own.choice
        # The part of patients with events is that of the fresh sample.
        patients = float(self.released["patients"]) * n_fresh / len(reference)
        loud = np.broadcast_to(choice.one_way, measured.n_columns)
        for title, name in titles:
            column, size = at[name], measured.n_codes[at[name]]
            found, fresh = (
                np.bincount(one.codes[:, column], one.weight, size) / max(one.weight.sum(), 1.0)
                for one in rows
            )
            alarm = 0.5 * FALSE_ALARM / (3 * len(titles) * len(self.of.tables))
            where = f"{title} of {table.name}"
            yield agreement.compared(
                f"events: {where}",
                distance=agreement.total_variation(found, fresh),
                bound=agreement.sampling_bound(fresh, n_first=n, n_second=n_fresh, alarm=alarm),
            )
            if noisy is not None and loud[column]:
                (values, stddev), unit = noisy(own.name), choice.norm / (loud[column] * patients)
                bound = agreement.sampling_bound(found, n_first=n, n_second=np.inf, alarm=alarm)
                bound += agreement.noise_bound(size, stddev * unit, alarm=alarm)
                sealed = values[measured.block(column)] * unit + 1.0 / size
                yield agreement.compared(
                    f"events, noisy counts: {where}",
                    distance=agreement.total_variation(found, sealed),
                    bound=bound + (GAP_ALLOWANCE if name == "gap" else MODEL_ALLOWANCE),
                )

    def _records(self, drawn: DrawnTables, table: EventDeclaration, own: EventTable) -> EncodedRows:
        people, frame = drawn.frames[PATIENTS], drawn.frames[table.name]
        chunk, day = coded_events(table, own.events, frame)
        names, keys = (one.astype(str).to_numpy() for one in (people[self.key], frame[table.key]))
        own_rows = keys.astype(np.str_), chunk.codes, day
        days = days_of(people, table, self.of.schema)
        events, ties, _ = events_of(own_rows, names.tolist(), days)
        return own.records(first_events(own.events, events, ties), drawn.codes)


def _rules(frame: pd.DataFrame, table: EventDeclaration, people: Any) -> Iterator[GateRecord]:
    """Hold a table against its declaration: patients and their days, order, number, cells."""
    name, declared = table.name, list(frame) == [table.key, *table.measured_columns]
    yield GateRecord(check=f"columns: {name}", passed=declared)
    if not declared:
        return
    who, days = frame[table.key], number_cells(frame[table.moment.name], table.moment)[0]
    steps, later = np.diff(who), np.diff(days) >= 0
    few = who.groupby(who).size().max() <= table.max_rows_per_patient or frame.empty
    known = who.between(1, len(people)).all()
    _, first, last = people[who - 1].T if known else np.zeros((3, 1))
    holds = {
        "events of patients": known,
        "days of patients": known and ((first <= days) & (days <= last)).all(),
        "events in order": ((steps > 0) | ((steps == 0) & later)).all(),
        "number of events": few,
    }
    cells = [(frame, one, name) for one in table.columns if one.name != table.value]
    for kind, numbers in zip(table.kinds, table.values_by_kind, strict=True):
        rows = frame if table.kind is None else frame[frame[table.kind] == kind]
        if numbers is not None:
            cells.append((rows, numbers, ", ".join(filter(None, (kind, name)))))
        elif table.value is not None:
            holds[f"no value: {kind}"] = rows[table.value].isna().all()
    for rule, passed in holds.items():
        yield GateRecord(check=f"{rule}: {name}", passed=bool(passed))
    yield from column_checks(cells)
