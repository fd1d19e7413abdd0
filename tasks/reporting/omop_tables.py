"""Rows of a bundle as tables of the OMOP common data model 5.4: post-processing."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from sqlglot import exp

from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.table import TableSchema
from storage.sources.cells import number_cells
from storage.sources.omop import EVENTS, MODEL, PERSON, OmopSource
from storage.sources.sql_queries import parse_query
from tasks.reporting.tables import parquet_of, read_rows, text_of

_ALGORITHM = 32880  # "Standard algorithm" among the concepts of types


def omop_files(
    files: Mapping[str, bytes], schema: TableSchema, source: OmopSource, events: Sequence[Any]
) -> dict[str, bytes]:
    """Write the rows of a bundle as tables of the model, in both formats; none without ages.

    Columns with a concept of the tables of events (`tasks.histories.event_sources`) yield no
    records. Records before the year of birth or after the death are left out.
    """
    rows, written = read_rows(files), dict[str, bytes]()
    columns = {one.name: one for one in (*schema.columns, *schema.all_labels)}
    cells = {name: _values(rows[name], columns[name]) for name in rows if name in columns}
    features, population = [f for f in source.features if f.column in cells], source.population
    people = pd.DataFrame({PERSON: np.arange(1, len(rows) + 1)})
    people["day"] = np.datetime64(population.since or "2000-01-01", "D").astype(float)
    dates = [f for f in features if (f.event, f.value) == (population.event, "date")]
    for one in [f for f in dates if f.concepts == population.concepts][:1]:
        people["day"] = cells.pop(one.column).fillna(people["day"])
    for one in features:
        if one.person == "age":
            people["year_of_birth"] = _years(people["day"]) - cells[one.column]
        elif one.person is not None:
            people[f"{one.person}_concept_id"] = cells[one.column]
    if "year_of_birth" in people:
        records = [one for table in events for one in _recorded(table, files)]
        known = {concept for one in records for concept in one.get("concept", ())}
        records += _facts(source, people, cells, known)
        people = people[people["year_of_birth"].notna()]
        for name, table in _tables(people, pd.concat(records, ignore_index=True)):
            found = _finished(name, table)
            written[f"omop_{name}.parquet"] = parquet_of(found)
            written[f"omop_{name}.csv"] = text_of(found)
    return written


def _values(cells: pd.Series, column: Any) -> pd.Series:
    """Return numbers, days since 1970, or for levels numbers or concepts of their raw values."""
    if isinstance(column, NumericColumn):
        values, _, missing, _ = number_cells(cells, column)
        return pd.Series(np.where(missing, np.nan, values))
    raw = column.groups if isinstance(column, CategoricalColumn) else column.levels or {}
    texts = cells.astype(object).replace({level: own[0] for level, own in raw.items() if own})
    concepts = texts.astype(str).str.casefold().replace(MODEL["concepts"])
    return pd.to_numeric(concepts, errors="coerce").replace([np.inf, -np.inf], np.nan)


def _years(days: pd.Series) -> pd.Series:
    return pd.to_datetime(days, unit="D").dt.year


def _recorded(table: Any, files: Mapping[str, bytes]) -> Iterator[pd.DataFrame]:
    """Yield the rows of a table whose columns, or those of its query, are named as the model's."""
    names, query = {one.name: one.name for one in table.columns}, getattr(table.source, "query", "")
    fixed = dict[str, int]()
    if isinstance(table.source, OmopSource):  # an event of the population is a row
        event, concepts = table.source.population.event, table.source.population.concepts
        fixed, day = {EVENTS[event][1]: concepts[0]}, f"{EVENTS[event][2]}_date"
        for one in table.source.features:
            if one.event == event and one.concepts == concepts and one.take not in ("any", "count"):
                names[one.column] = day if one.value == "date" else "value_as_number"
    with suppress(ValueError):  # a paid release is written even if its query cannot be parsed
        for cell in parse_query(query, table.source.language).selects if query else ():
            column = cell.unalias()
            names |= {cell.alias_or_name: column.name} if isinstance(column, exp.Column) else {}
    for event, (name, concept, stem) in EVENTS.items():
        fields = {concept: "concept", f"{stem}_date": "day", MODEL["ends"].get(event, ""): "end"}
        is_day = table.moment.is_date and fields.get(names[table.at.column]) == "day"
        if is_day and concept in ("", *fixed, *names.values()):
            rows = pd.read_parquet(io.BytesIO(files[f"{table.name}.parquet"]))
            known = " ".join([*fields, MODEL["optional"].get(name, "")]).split()
            own = {**fixed, **{names[c.name]: _values(rows[c.name], c) for c in table.columns}}
            found = pd.DataFrame({f: own[f] for f in known if f in own}).rename(columns=fields)
            yield found.assign(event=event, person_id=rows[table.key])


def _facts(
    source: OmopSource, people: pd.DataFrame, cells: Mapping[str, pd.Series], known: set[float]
) -> Iterator[pd.DataFrame]:
    """Yield the records of the index and of columns, but of known concepts."""
    index, population = people[[PERSON, "day"]], source.population
    yield index.assign(event="period", end=index["day"])
    if known.isdisjoint(population.concepts):
        yield index.assign(event=population.event, concept=population.concepts[0])
    for one in sorted(source.features, key=lambda one: one.value != "date"):
        if not one.event or one.value == "concept" or not known.isdisjoint(one.concepts):
            continue
        values = cells.get(one.column, pd.Series(np.nan, index.index))
        ends = one.window or source.window or (None, None)
        days = [end and int(end.rstrip("dh")) // (24 if "h" in end else 1) for end in ends]
        low, high = np.array(days, dtype=float)
        nearest = high if one.event == "death" else np.fmin(np.fmax(low, 0), high)
        found = index.assign(event=one.event, concept=next(iter(one.concepts), 0))
        found["day"], times = found["day"] + nearest, values.notna()
        if one.value == "date":
            found["day"] = values
        elif one.take in ("any", "count"):
            times = values.clip(lower=0).fillna(0)
        else:
            unit = one.unit[0] if one.unit and not one.unit[1:] else np.nan
            found = found.assign(value_as_number=values, unit_concept_id=unit)
        yield found.loc[found.index.repeat(times.astype(int))]


def _tables(people: pd.DataFrame, records: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield tables by name, without records of unknown persons, before birth or after death."""
    who, dying = records[PERSON], records["event"] == "death"
    # A death without a date gets the day of the last record.
    last = records[~dying].groupby(PERSON)["day"].max()
    day = records["day"] = records["day"].fillna(who.map(last))
    index, born = (who.map(people.set_index(PERSON)[one]) for one in ("day", "year_of_birth"))
    deaths = records[dying & (day >= index)].drop_duplicates(PERSON)
    until = who.map(deaths.set_index(PERSON)["day"]).fillna(np.inf)
    records["end"] = np.minimum(records["end"].clip(lower=day), until)
    kept = ~dying & (day <= until) & (_years(day) >= born)
    records = records[kept | records.index.isin(deaths.index)]
    period = records.assign(event="period", end=records[["day", "end"]].max(axis=1))
    period = period.groupby(["event", PERSON], as_index=False).agg({"day": "min", "end": "max"})
    yield "person", people
    for event, rows in pd.concat([records[records["event"] != "period"], period]).groupby("event"):
        name, concept, stem = EVENTS.get(str(event), MODEL["period"])
        fields = {concept: "concept", f"{stem}_date": "day", MODEL["ends"].get(event, ""): "end"}
        yield name, rows.rename(columns={own: field for field, own in fields.items()})


def _finished(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fields of a table in order and of their types, with those that it requires."""
    required, others = (MODEL[kind].get(name, "").split() for kind in ("required", "optional"))
    start = next((one for one in required if one.endswith("_date")), PERSON)
    rows = rows.sort_values([PERSON, start], kind="stable", ignore_index=True)
    found = {required[0]: pd.Series(np.arange(1, len(rows) + 1))}  # a number, if no person
    for field in (*required, *(one for one in others if one in rows and rows[one].notna().any())):
        cells = rows[field] if field in rows else found.get(field, pd.Series(np.nan, rows.index))
        is_date, is_whole = field.endswith("_date"), field not in MODEL["numbers"].split()
        if field in required:
            cells = cells.fillna(rows[start] if is_date else _ALGORITHM if "_type_" in field else 0)
        whole = cells.round().astype("Int64") if is_whole else cells
        found[field] = pd.to_datetime(cells, unit="D") if is_date else whole
    return pd.DataFrame(found)
