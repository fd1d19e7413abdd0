"""Frames of events as codes, and codes as frames, row by row and by the public schema alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Indices, Integers
from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyUnit
from storage.schema.columns import Column, NumericColumn
from storage.schema.event_tables import PATIENTS, EventDeclaration
from storage.schema.table import TableSchema
from storage.sources.cells import distinct, number_cells
from tasks.ingest.conditional_rows import sample_rows
from tasks.ingest.contributions import hash_names, hash_records, named_patients
from tasks.ingest.encoding import cell_codes, decode, decoded_cells, encode_chunk
from tasks.ingest.encoding import written as released_cells
from tasks.ingest.patient_rows import encoded_shards, unnamed_patients
from tasks.ingest.violations import EncodedChunk, Violation, refuse_violations, rows_of
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.method import Released
from tasks.methods.clustmix.events.event_domain import (
    CodedColumn,
    EventDomain,
    Events,
    first_events,
    hidden_codes,
)
from tasks.methods.clustmix.events.event_release import EventRelease

_DAYS = {"since": 0.0, "not_before": -np.inf, "until": np.inf}
"""Days of a patient that a table of events may name, and the value of a missing one."""

ONE_ROW, KNOWN, NO_VALUE = (
    "one row of each patient, as tables of events are declared",
    "patients of the patients' table only",
    "empty cells for kinds that are declared without a value",
)


def event_release(
    schema: TableSchema, tables: Sequence[EventDeclaration], patients: EncodingDomain
) -> EventRelease:
    """Bind declared tables of events to the public domain of patients (ConfigurationError)."""
    names, shares = [table.name for table in tables], [table.share for table in tables]
    if len({*names}) < len(names) or sum(filter(None, shares)) >= 1.0:
        raise _refused("tables of different names, with shares whose sum is below one")
    domains = {table.name: _domain(table, _days_named(table, schema)[0]) for table in tables}
    return EventRelease(patients=patients, tables=domains, shares=shares)


def _domain(table: EventDeclaration, since: NumericColumn | None) -> EventDomain:
    values = [one for one in table.values_by_kind if one is not None]
    others = ((o.n_codes, isinstance(o, NumericColumn), o.has_missing) for o in table.others)
    names = [None, *(one.name for one in table.others)]
    return EventDomain(
        n_values=tuple(1 if one is None else one.n_codes for one in table.values_by_kind),
        value_missing=any(one.has_missing for one in values),
        others=tuple(CodedColumn(*one) for one in others),
        gaps=table.gap_edges,
        offsets=tuple(table.offset_edges(since)),
        most=table.max_rows_per_patient,
        label=names.index(table.label) or None,
    )


def _days_named(table: EventDeclaration, schema: TableSchema) -> list[NumericColumn | None]:
    """Return the columns of the patient that `at` names, in the order of `_DAYS`."""
    numeric = {one.name: one for one in schema.columns if isinstance(one, NumericColumn)}
    date, found = table.moment.is_date, []
    for key in _DAYS:
        own = numeric.get(name := getattr(table.at, key))
        alike = own is not None and own.is_whole and own.is_date == date
        plain = own is not None and own.base is None and not own.has_missing
        if name is not None and not (alike and (plain or key != "since")):
            raise _refused(
                f"at.{key} of {table.name}, {name}, as a column of the patient that is "
                f"{'a date' if date else 'an integer'} as {table.moment.name} is, and since one "
                "without missing values and without relative_to"
            )
        found.append(own)
    return found


def _refused(expected: str) -> ConfigurationError:
    return ConfigurationError("EVENTS_INVALID", f"expected {expected}, found another")


def days_of(frame: pd.DataFrame, table: EventDeclaration, schema: TableSchema) -> Floats:
    """Return days (n, 3) of patients: events count from one, and lie between the other two."""
    days = np.tile([*_DAYS.values()], (len(frame), 1))
    for place, column in enumerate(_days_named(table, schema)):
        if column is not None:
            own, empty, missing, _ = number_cells(frame[column.name], column)
            own = own if column.base else np.clip(own, column.lower, column.upper)
            days[:, place] = np.where(empty | missing, days[:, place], own)
    return days


def coded_tables(
    frames: Mapping[str, pd.DataFrame],
    schema: TableSchema,
    tables: Sequence[EventDeclaration],
    release: Any,
    *,
    unit: PrivacyUnit,
) -> tuple[tuple[EncodedRows, ...], dict[str, list[EncodedRows]]]:
    """Check and code patients with their events; returns shards of patients, and of each table.

    The release is `event_release`; without tables it is not used.

    Privacy
    -------
    Kept events, hidden codes and records of a patient depend on that patient's rows alone.
    """
    frame = frames[PATIENTS]
    if not tables:
        return encoded_shards(frame, schema, unit), {}
    chunk = encode_chunk(frame, schema)
    refuse_violations((*chunk.violations, *unnamed_patients(frame, unit)))
    index, names = named_patients(frame[unit.column], unit)
    if len(names) < len(frame):
        refuse_violations([Violation(rule=ONE_ROW, column=str(unit.column), rows=index)])
    hidden, records = [], {}
    for declared, table in zip(tables, release.tables_at(1.0).values(), strict=True):
        own, rows = replace(unit, column=declared.key), frames[declared.name]
        coded, day = coded_events(declared, table.events, rows)
        _refuse((*unnamed_patients(rows, own), *coded.violations), declared)
        who, keys = named_patients(rows[declared.key], own)
        days = days_of(frame, declared, schema)
        known = np.array(keys, dtype=np.str_)[who]
        events, ties, beyond = events_of((known, coded.codes, day), names, days)
        if len(lost := np.flatnonzero(events.patient < 0)):
            _refuse([Violation(rule=KNOWN, column=declared.key, rows=lost)], declared)
        valid = chunk.valid[events.patient]
        refuse_beyond(declared, valid & beyond)
        valid &= ~beyond
        kept = first_events(table.events, events.only(valid), ties[valid])
        hidden.append(hidden_codes(table.events, kept, n_patients=len(frame)))
        records[declared.name] = [table.records(kept, chunk.codes)]
    whole = replace(chunk, codes=np.concatenate([chunk.codes, *hidden], axis=1))
    return encoded_shards(frame, schema, unit, whole), records


def coded_events(
    table: EventDeclaration, domain: EventDomain, frame: pd.DataFrame
) -> tuple[EncodedChunk, Floats]:
    """Code the rows of a table of events, each by itself; returns their days as well."""
    broken: list[Violation] = []

    def codes_of(column: Column, rows: slice | Indices = slice(None)) -> Integers:
        found: list[Violation] = []
        codes, _ = cell_codes(frame.iloc[rows], column, found, None)
        places = np.arange(len(frame))[rows]
        broken.extend(replace(one, rows=places[one.rows]) for one in found)
        return np.asarray(codes, dtype=np.int64)

    kind = np.zeros(len(frame), dtype=np.int64)
    for column in table.columns:
        kind = codes_of(column) if column.name == table.kind else kind
    joint, known = domain.starts[kind], ~rows_of(broken, len(frame))
    for number, numbers in enumerate(table.values_by_kind if table.value else ()):
        rows = np.flatnonzero((kind == number) & known)
        if numbers is not None:
            joint[rows] += codes_of(numbers, rows)
            continue
        index, texts = distinct(frame[table.value].iloc[rows])
        full = rows[np.array([*map(bool, texts), False])[index]]
        if len(full):
            broken.append(Violation(rule=NO_VALUE, column=str(table.value), rows=full))
    codes = np.stack([joint, *map(codes_of, table.others)], axis=1).astype(np.uint16)
    _, day = cell_codes(frame, table.moment, broken, None)
    label, valid = np.zeros(len(frame), dtype=np.uint16), np.ones(len(frame), dtype=np.bool_)
    chunk = EncodedChunk(codes=codes, label=label, valid=valid, violations=tuple(broken))
    return chunk, np.asarray(day, dtype=np.float64)


def events_of(
    rows: tuple[NDArray[np.str_], Codes, Floats], names: Sequence[str], days: Floats
) -> tuple[Events, NDArray[np.uint64], NDArray[np.bool_]]:
    """Return coded events of named patients (n,), -1 for others, and a hash that orders ties.

    Rows are keys, codes and days; with the `days_of` patients, moments are counted from the first,
    and a mask is true of events that do not lie between the others.
    """
    keys, codes, day = rows
    own, index = np.unique(keys, return_inverse=True)
    place = {name: number for number, name in enumerate(names)}
    patient = np.array([place.get(str(key), -1) for key in own], dtype=np.intp)[index]
    ties = hash_records(codes[:, 1:], codes[:, 0]) ^ hash_names(own.tolist())[index]
    start, first, last = np.vstack([days, [*_DAYS.values()]])[patient].T
    events = Events(patient, day - start, codes.astype(np.int64))
    return events, ties, (day < first) | (day > last)


def refuse_beyond(table: EventDeclaration, beyond: NDArray[np.bool_]) -> None:
    """Refuse events that do not lie between the days of patients, unless they are left out."""
    if beyond.any() and table.at.when_broken == "refuse":
        ends = (("before", table.at.not_before), ("after", table.at.until))
        rule = " or ".join(f"{one} {name} of the patient" for one, name in ends if name)
        rows = np.flatnonzero(beyond)
        _refuse([Violation(rule=f"no event {rule}", column=table.at.column, rows=rows)], table)


def _refuse(broken: Sequence[Violation], table: EventDeclaration) -> None:
    refuse_violations([replace(one, column=f"{one.column} of {table.name}") for one in broken])


def sampled_tables(
    release: Any,
    released: Released,
    conditions: Mapping[str, str],
    *,
    schema: TableSchema,
    tables: Sequence[EventDeclaration],
    key: str,
    n_rows: int,
    rng: np.random.Generator,
) -> dict[str, pd.DataFrame]:
    """Sample patients and their events as frames with a synthetic key, from 1; post-processing.

    Conditions are those of `sample_rows`. Without tables the release is any method.
    """
    method = release.of_patients if tables else release
    rows = sample_rows(method, schema, released, conditions, rng=rng, n_rows=n_rows)
    codes = rows.codes[:, : len(schema.columns)]
    people = decode(codes, rows.label, schema, rng=rng)
    if not tables:
        return {PATIENTS: people}
    start, bounds = dict[str, Floats](), dict[str, Floats]()
    for table in tables:
        start[table.name], first, last = days_of(people, table, schema).T
        ends = np.maximum(first, table.moment.lower), np.minimum(last, table.moment.upper)
        bounds[table.name] = np.stack(ends, axis=1) - start[table.name][:, None]
    events, label = release.histories(released, (rows.codes, rows.label), bounds, rng)
    again, names = decode(codes, label, schema, rng=rng), list(schema.label_names)
    people[names] = again[names]
    people.insert(0, key, np.arange(1, n_rows + 1))
    found = {PATIENTS: people}
    for table in tables:
        mine = events[table.name]
        own = mine._replace(moment=mine.moment + start[table.name][mine.patient])
        found[table.name] = _decoded(own, table, release.tables[table.name], rng)
    return found


def _decoded(
    events: Events, table: EventDeclaration, domain: EventDomain, rng: np.random.Generator
) -> pd.DataFrame:
    """Return synthetic events in the order of patients and of time."""
    joint, day = events.codes[:, 0], np.rint(events.moment).astype(np.int64)
    kind = domain.kind_of[joint]
    own = {table.moment.name: released_cells(day, np.zeros(len(day), dtype=np.bool_), table.moment)}
    for place, column in enumerate(table.others, start=1):
        own[column.name] = decoded_cells(events.codes[:, place], column, rng)
    for column in table.columns:
        if column.name == table.kind:
            own[column.name] = decoded_cells(kind, column, rng)
    if table.value is not None:
        parts = [pd.Series(dtype="float64")]
        for number, numbers in enumerate(table.values_by_kind):
            rows = np.flatnonzero(kind == number)
            if numbers is not None:
                codes = joint[rows] - domain.starts[number]
                parts.append(decoded_cells(codes, numbers, rng).set_axis(rows))
        own[table.value] = pd.concat(parts[1:] or parts).reindex(np.arange(len(day)))
    frame = pd.DataFrame({table.key: events.patient + 1, **own})
    return frame[[table.key, *table.measured_columns]]
