"""A database in the OMOP common data model: a short declaration, compiled to one query.

The query passes the same check as any other that it acts on one person at a time
(`storage.sources.patient_local`). Tables and columns are those of OMOP CDM version 5.3 and 5.4
(ohdsi.github.io/CommonDataModel); concepts are those of its vocabulary, which is public.
"""

import re
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    model_validator,
)

from storage.files.documents import KEPT, listed
from storage.schema.columns import Declaration
from storage.sources.places import DatabasePlace

PERSON = "person_id"
"""Column that names the patient, in every table of persons."""

MODEL = listed(__package__, "omop.toml")
"""Lists about the model: kinds of events, fields, concepts of persons."""
EVENTS: dict[str, tuple[str, str, str]] = MODEL["events"]
"""Kind of event: its table, the column of its concept, and the stem of its date and time."""

_DAY = 86_400  # seconds
_OFFSET = re.compile(r"-?[0-9]{1,6}[dh]")
_VALUED = ("measurement", "observation")


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


def _in_order(window: tuple[str | None, str | None]) -> tuple[str | None, str | None]:
    units = {end[-1] for end in window if end is not None and end != "0"}
    ends = [int(end.rstrip("dh")) for end in window if end is not None]
    if len(units) != 1 or ends != sorted(ends):
        raise ValueError("expected window as [first, last], in days (2d) or in hours (48h)")
    return window


_Concept = Annotated[StrictInt, Field(gt=0)]
_Concepts = Annotated[
    tuple[_Concept, ...], Field(min_length=1, max_length=1000), BeforeValidator(_one_or_more)
]
# 0 is no distance, in the unit of the other end.
_Zero = BeforeValidator(lambda value: "0" if value == 0 and isinstance(value, int) else value)
_Offset = Annotated[str, Field(pattern=rf"^(0|{_OFFSET.pattern})$"), _Zero]

Window = Annotated[tuple[_Offset | None, _Offset | None], AfterValidator(_in_order)]
"""First and last day (``d``) or hour (``h``) after the index, both included; None has no end."""
_SchemaName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")]


class _Events(Declaration):
    """Rows of one table by their concepts."""

    condition: _Concepts | None = None
    """Concept of ``condition_occurrence``, or a list of them."""
    drug: _Concepts | None = None
    """Concepts of ``drug_exposure``."""
    procedure: _Concepts | None = None
    """Concepts of ``procedure_occurrence``."""
    measurement: _Concepts | None = None
    """Concepts of ``measurement``."""
    observation: _Concepts | None = None
    """Concepts of ``observation``."""
    visit: _Concepts | None = None
    """Concepts of ``visit_occurrence``."""
    descendants: StrictBool = False
    """Count the concepts below these (``concept_ancestor``) as well."""

    @property
    def event(self) -> str:
        """Kind of the events by the given key; empty unless exactly one is given."""
        given = [kind for kind in EVENTS if getattr(self, kind, None)]
        return given[0] if len(given) == 1 else ""

    @property
    def concepts(self) -> tuple[int, ...]:
        """Concepts of the events."""
        found = getattr(self, self.event)
        return found if isinstance(found, tuple) else ()


class _OmopPopulation(_Events):
    """Persons of the cohort, and the index: the moment from which windows are counted.

    Exactly one of the six kinds of event is given.
    """

    take: Literal["first", "last", "each"] = "first"
    """First or last such event, or a row for each; after ``since`` and ``until``."""
    index: Literal["start", "end"] = "start"
    """``end`` with ``visit`` only."""
    since: date | None = None
    """First day of an index."""
    until: date | None = None
    """Last day of an index."""
    age: tuple[StrictInt, StrictInt] | None = None
    """Least and greatest age, computed as the feature ``age``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.event:
            raise ValueError("expected exactly one kind of event, such as visit: 9201")
        if self.index == "end" and self.visit is None:
            raise ValueError("expected index: end with visit only")
        return self


class _OmopFeature(_Events):
    """One column: a fact about a person in a window around the index.

    Exactly one of ``person``, ``death`` and the six kinds of event is given.
    """

    column: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
    """Name of the column."""
    person: Literal["age", "gender", "race", "ethnicity"] | None = None
    """``age``: year of the index less year of birth; else the name of the concept in the
    vocabulary. Without ``take`` and ``window``."""
    death: StrictBool = False
    """Death of the person; with ``take: any`` or ``value: date``."""
    take: Literal["any", "count", "first", "last", "min", "max"] | None = None
    """``any`` is 1 or 0, ``count`` a number, and the others a value of a measurement or an
    observation, the greatest of several at one moment, or empty."""
    value: Literal["number", "concept", "date"] = "number"
    """``number`` takes ``value_as_number``, ``concept`` the name of ``value_as_concept_id`` in the
    vocabulary, ``date`` the first or last day of any event."""
    unit: _Concepts | None = None
    """Concepts of the units that count; all if left out."""
    window: Window | None = None
    """Window of this column; that of the source if left out."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.event) == (self.person is not None):
            raise ValueError(f"expected exactly one of person, {', '.join(EVENTS)}")
        if self.person is not None:
            fields = {name: field.default for name, field in type(self).model_fields.items()}
            given = {name for name in fields if getattr(self, name) != fields[name]}
            extra = given - {"column", "person"}
            if extra:
                raise ValueError(f"expected no {', '.join(sorted(extra))} beside person")
        elif self.value == "date" and self.take in ("first", "last"):
            pass  # of any event
        elif self.take is None or (self.death and self.take != "any"):
            raise ValueError(
                f"expected take: any{'' if self.death else ', count, first, last, min or max'}"
            )
        elif self.event not in _VALUED and self.take not in ("any", "count"):
            raise ValueError("expected take: any or count, as only measurements have values")
        if self.unit is not None and self.event != "measurement":
            raise ValueError("expected unit with measurement only")
        if self.value != "number" and self.take not in ("first", "last"):
            raise ValueError(f"expected take: first or last with value: {self.value}")
        return self


class OmopSource(DatabasePlace):
    """A database in the OMOP common data model, version 5.3 or 5.4.

    A row is a person of the population, with ``person_id`` as ``privacy_unit.column`` and the
    features as columns. It becomes one query, which passes the checks of kind ``sql``. Windows in
    days compare dates; windows in hours compare times and leave out records without one. SQLite has
    dates as text.

    A bundle also has tables of version 5.4 (``omop_person.parquet``) if ``age`` is a number.
    Columns are records of their first concept, on the day of their window nearest to the index: a
    date of the population's event, else ``since``, or 2000-01-01. Events are records if of kind
    ``omop``, or with columns (also of a query) named as in OMOP. The rest is in the rows alone.
    """

    kind: Literal["omop"]
    population: _OmopPopulation
    """Persons, and the index."""
    features: Annotated[tuple[_OmopFeature, ...], Field(min_length=1, max_length=100)]
    """Columns beside ``person_id``, the label among them."""
    window: Window | None = None
    """Window of features that declare none, as ``[first, last]``: days (``2d``) or hours (``48h``)
    after the index, both included; ``null`` for no end."""
    cdm_schema: _SchemaName | None = None
    """Schema of the tables of persons; the database's default if left out."""
    vocabulary_schema: _SchemaName | None = None
    """Schema of ``concept`` and ``concept_ancestor``; ``cdm_schema`` if left out."""
    patient_local: tuple[str, ...] = ()
    """Views among the tables, as for kind ``sql``."""

    @model_validator(mode="after")
    def _complete(self, info: ValidationInfo) -> Self:
        if info.context == KEPT:
            return self
        names = [feature.column for feature in self.features]
        if len({*names, PERSON}) != len(names) + 1:
            raise ValueError(f"expected each column once, and none called {PERSON}")
        for feature in self.features:
            if feature.event and (feature.window or self.window) is None:
                raise ValueError(f"expected a window for column {feature.column}, or for all")
        return self

    @property
    def query(self) -> str:
        """The query: persons of the population, each with the features."""
        population, index = self.population, ""
        table, _, stem = EVENTS[population.event]
        stem = stem.replace("start", "end") if population.index == "end" else stem
        # A person whose date cannot be read is left out.
        known = f"{self._seconds(f'e.{stem}_date')} IS NOT NULL"
        conditions = [self._of_concepts("e", population), known]
        for bound, sign in ((population.since, ">="), (population.until, "<=")):
            if bound is not None:
                days = (bound - date(1970, 1, 1)).days
                conditions.append(f"{self._seconds(f'e.{stem}_date')} {sign} {days * _DAY}")
        if population.take != "each":
            order = "DESC" if population.take == "last" else "ASC"
            index = (
                f", RANK() OVER (PARTITION BY e.{PERSON} ORDER BY {self._moment('e', stem)} "
                f"{order}) AS place"
            )
        columns = [f'{self._cell(feature)} AS "{feature.column}"' for feature in self.features]
        ages = population.age
        return "\n".join(
            [
                f"WITH event AS (SELECT e.{PERSON}, e.{stem}_date AS day, "
                f"e.{stem}_datetime AS clock, {self._moment('e', stem)} AS moment{index} "
                f"FROM {self._table(table)} AS e WHERE {' AND '.join(conditions)}),",
                f"cohort AS (SELECT e.{PERSON}, MIN(e.day) AS day, MIN(e.clock) AS clock "
                f"FROM event AS e{' WHERE e.place = 1' if index else ''} "
                f"GROUP BY e.{PERSON}, e.moment)",
                ",\n".join([f"SELECT c.{PERSON}", *columns]),
                f"FROM cohort AS c JOIN {self._table('person')} AS p ON p.{PERSON} = c.{PERSON}",
                f"WHERE {self._age} BETWEEN {ages[0]} AND {ages[1]}" if ages else "",
            ]
        ).strip()

    @property
    def public_tables(self) -> tuple[str, ...]:
        """Tables of the vocabulary that the query reads."""
        wanted = {"concept_ancestor": any(e.descendants for e in (self.population, *self.features))}
        wanted["concept"] = any(
            feature.person not in (None, "age") or feature.value == "concept"
            for feature in self.features
        )
        return tuple(self._table(name) for name, is_read in wanted.items() if is_read)

    @property
    def vocabulary(self) -> tuple[tuple[str, str], ...]:
        """Queries that each find a row if the vocabulary is complete, and the name of that row.

        A concept is its own descendant. Of a column of names, some record must find its concept.
        """
        ancestor, concept = self._table("concept_ancestor"), self._table("concept")
        wanted = [
            (
                f"SELECT 1 FROM {ancestor} WHERE ancestor_concept_id = {one} LIMIT 1",
                f"concept {one} of {events.event} in concept_ancestor",
            )
            for events in (self.population, *self.features)
            for one in (events.concepts if events.descendants else ())
        ]
        named = [
            ("person", f"{one.person}_concept_id", one.column)
            if one.person
            else (EVENTS[one.event][0], "value_as_concept_id", one.column)
            for one in self.features
            if one.person not in (None, "age") or one.value == "concept"
        ]
        wanted += [
            (
                f"SELECT 1 FROM {self._table(table)} AS e JOIN {concept} AS k "
                f"ON k.concept_id = e.{column} LIMIT 1",
                f"a concept in the table concept for {table}.{column}, of column {name}",
            )
            for table, column, name in named
        ]
        return tuple(wanted)

    def _table(self, name: str) -> str:
        of_vocabulary = self.vocabulary_schema if name.startswith("concept") else None
        schema = of_vocabulary or self.cdm_schema
        return f"{schema}.{name}" if schema else name

    def _seconds(self, column: str) -> str:
        """Seconds since 1970 of a date or a time, both without a time zone."""
        if self.language == "sqlite":
            return f"UNIXEPOCH({column})"
        return f"CAST(EXTRACT(EPOCH FROM {column}) AS BIGINT)"

    def _moment(self, table: str, stem: str) -> str:
        """Order of events; an event without a time counts from the beginning of its day."""
        times = (self._seconds(f"{table}.{stem}_{part}") for part in ("datetime", "date"))
        return f"COALESCE({', '.join(times)})"

    @property
    def _age(self) -> str:
        is_text = self.language == "sqlite"
        year = "SUBSTR(c.day, 1, 4)" if is_text else "EXTRACT(YEAR FROM c.day)"
        return f"CAST({year} AS INTEGER) - p.year_of_birth"

    def _of_concepts(self, table: str, events: _Events) -> str:
        column = f"{table}.{EVENTS[events.event][1]}"
        listed = ", ".join(map(str, events.concepts))
        if not events.descendants:
            return f"{column} IN ({listed})"
        return (
            f"{column} IN (SELECT a.descendant_concept_id FROM {self._table('concept_ancestor')} "
            f"AS a WHERE a.ancestor_concept_id IN ({listed}))"
        )

    def _cell(self, feature: _OmopFeature) -> str:
        """Return the value of a column for the person of the row of ``cohort``."""
        if feature.person == "age":
            return self._age
        if feature.person is not None:
            return (
                f"(SELECT MAX(k.concept_name) FROM {self._table('concept')} AS k "
                f"WHERE k.concept_id = p.{feature.person}_concept_id)"
            )
        found = self._from_where("e", feature)
        if feature.take == "any":
            return f"CASE WHEN EXISTS (SELECT e.{PERSON} {found}) THEN 1 ELSE 0 END"
        if feature.take == "count":
            return f"(SELECT COUNT(*) {found})"
        values = {"concept": "k.concept_name", "date": f"e.{EVENTS[feature.event][2]}_date"}
        value = values.get(feature.value, "e.value_as_number")
        if feature.take in ("first", "last"):
            stem, extreme = EVENTS[feature.event][2], "MIN" if feature.take == "first" else "MAX"
            found += (
                f" AND {self._moment('e', stem)} = (SELECT {extreme}({self._moment('f', stem)}) "
                f"{self._from_where('f', feature)})"
            )
        return f"(SELECT {'MIN' if feature.take == 'min' else 'MAX'}({value}) {found})"

    def _from_where(self, table: str, feature: _OmopFeature) -> str:
        """Return the part of a SELECT that finds the events with the wanted value in the window."""
        name, _, stem = EVENTS[feature.event]
        source = f"FROM {self._table(name)} AS {table}"
        conditions = [f"{table}.{PERSON} = c.{PERSON}", *self._in_window(table, stem, feature)]
        if feature.concepts:
            conditions.append(self._of_concepts(table, feature))
        if feature.unit is not None:
            conditions.append(f"{table}.unit_concept_id IN ({', '.join(map(str, feature.unit))})")
        valued = feature.value if feature.take not in ("any", "count") else ""
        if valued == "number":
            conditions.append(f"{table}.value_as_number IS NOT NULL")
        elif valued == "concept":
            name = "k" if table == "e" else "l"
            source += (
                f" JOIN {self._table('concept')} AS {name} "
                f"ON {name}.concept_id = {table}.value_as_concept_id"
            )
        return f"{source} WHERE {' AND '.join(conditions)}"

    def _in_window(self, table: str, stem: str, feature: _OmopFeature) -> list[str]:
        window = feature.window or self.window or (None, None)
        in_hours = any(end is not None and end.endswith("h") for end in window)
        part, index, scale = ("datetime", "clock", 3600) if in_hours else ("date", "day", _DAY)
        distance = f"{self._seconds(f'{table}.{stem}_{part}')} - {self._seconds(f'c.{index}')}"
        return [
            f"{distance} {sign} {int(end.rstrip('dh')) * scale}"
            for end, sign in zip(window, (">=", "<="), strict=True)
            if end is not None
        ]
