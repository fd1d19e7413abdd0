import json
import sqlite3
import time
from datetime import datetime, timedelta

import omop_database as omop
import pandas as pd
import postgres_server
import psycopg
import pytest
from pydantic import ValidationError

from privacy.errors import InputError
from storage.sources import formats
from storage.sources.cohorts import CohortReader
from storage.sources.declared import OmopSource, check_source_unit, query_of

FEATURES = [
    {"column": "age", "person": "age"},
    {"column": "sex", "person": "gender"},
    {"column": "sodium", "measurement": omop.SODIUM, "take": "last", "unit": omop.MMOL}
    | {"window": [0, "48h"]},
    {"column": "lowest", "measurement": [omop.SODIUM, omop.WEIGHT], "take": "min"},
    {"column": "earliest", "measurement": omop.SODIUM, "take": "first", "window": [None, "2d"]},
    {"column": "smoking", "observation": omop.SMOKING, "take": "last", "value": "concept"},
    {"column": "diabetes", "condition": omop.DIABETES, "take": "any", "descendants": True}
    | {"window": ["-3650d", 0]},
    {"column": "drugs", "drug": omop.STATIN, "take": "count", "window": ["0d", None]},
    {"column": "again", "visit": omop.INPATIENT, "take": "any", "window": ["1d", "30d"]},
    {"column": "died", "death": True, "take": "any", "window": ["0d", "12d"]},
]
POPULATIONS = [
    {"visit": omop.INPATIENT, "descendants": True, "age": [20, 80]},
    {"visit": [omop.INPATIENT, omop.OUTPATIENT], "take": "last", "index": "end"},
    {"visit": omop.INPATIENT, "take": "each", "since": "2019-12-30", "until": "2020-01-03"},
    {"condition": omop.FEVER, "take": "first"},
]


def source(population=None, *, features=FEATURES, **place):
    declared = {"kind": "omop", "window": ["-5d", "5d"], "features": features}
    declared["population"] = POPULATIONS[0] if population is None else population
    return OmopSource.model_validate_json(json.dumps(declared | place))


# --- what is declared, computed the slow way ---------------------------------------------------


def concepts(events):
    kind = next(k for k in ("visit", "condition", "drug", "measurement", "observation", "death")
                if k in events)  # fmt: skip
    named = events[kind]
    named = {*named} if isinstance(named, list) else {named}
    if events.get("descendants"):
        named = {below for one in named for below in omop.PARENTS.get(one, ())}
    return kind, named


def of_person(rows, person, events):
    kind, named = concepts(events)
    if kind == "death":
        return [(row[1], row[2], ()) for row in rows["death"] if row[0] == person]
    table = {"visit": "visit_occurrence", "condition": "condition_occurrence"}.get(kind, kind)
    table = "drug_exposure" if kind == "drug" else table
    return [(*row[2:4], row[4:]) for row in rows[table] if row[0] == person and row[1] in named]


def moment(event):
    return event[1] or datetime.combine(event[0], datetime.min.time())


def cell(rows, person, birth, index, feature, window):
    day, clock, _ = index
    if "person" in feature:
        sex = {one[0]: one[1] for one in rows["person"]}[person]
        return day.year - birth if feature["person"] == "age" else omop.NAMES.get(sex)
    first, last = feature.get("window", window)
    in_hours = any(str(end).endswith("h") for end in (first, last))
    found = []
    for event in of_person(rows, person, feature):
        distance = None
        if not in_hours:
            distance = event[0] - day
        elif clock is not None and event[1] is not None:
            distance = event[1] - clock
        step = timedelta(hours=1) if in_hours else timedelta(days=1)
        if distance is None or (
            first is not None and distance < int(str(first).strip("dh")) * step
        ):
            continue
        if last is None or distance <= int(str(last).strip("dh")) * step:
            found.append(event)
    take = feature["take"]
    if take in ("any", "count"):
        return int(bool(found)) if take == "any" else len(found)
    if feature.get("value") == "concept":
        valued = [(moment(e), omop.NAMES[e[2][1]]) for e in found if e[2][1] in omop.NAMES]
    else:
        unit = feature.get("unit")
        of_unit = [e for e in found if unit is None or e[2][1] in (unit, None)]
        valued = [(moment(e), e[2][0]) for e in of_unit if e[2][0] is not None]
    if not valued:
        return None
    if take == "min":
        return min(value for _, value in valued)
    at = (min if take == "first" else max)(when for when, _ in valued)
    return max(value for when, value in valued if when == at)


def expected(rows, population, features=FEATURES, window=("-5d", "5d")):
    table = []
    for person, _, birth in rows["person"]:
        found = of_person(rows, person, population)
        if population.get("index") == "end":
            found = [(*event[2], ()) for event in found]
        since, until = population.get("since", "0"), population.get("until", "9")
        found = sorted((e for e in found if since <= str(e[0]) <= until), key=moment)
        moments = sorted({moment(event) for event in found})
        take = population.get("take", "first")
        moments = {"first": moments[:1], "last": moments[-1:], "each": moments}[take]
        for at in moments:
            same = [event for event in found if moment(event) == at]
            clocks = [event[1] for event in same if event[1] is not None]
            index = (min(e[0] for e in same), min(clocks, default=None), ())
            least, most = population.get("age", (0, 200))
            if least <= index[0].year - birth <= most:
                cells = [cell(rows, person, birth, index, f, window) for f in features]
                table.append(tuple(None if c is None else str(c) for c in (person, *cells)))
    return sorted(table, key=str)


def read(declared):
    columns = ["person_id", *(feature.column for feature in declared.features)]
    reader = CohortReader(declared)
    assert list(reader.header()) == columns
    frames = list(reader.chunks(columns))
    rows = [] if not frames else pd.concat(frames).astype(object).to_numpy().tolist()
    cells = [tuple(None if pd.isna(c) else c for c in row) for row in rows]
    return sorted(cells, key=str)


@pytest.mark.parametrize("population", POPULATIONS)
def test_rows_are_those_of_the_declaration_and_no_person_moves_another(population, tmp_path):
    rows = omop.made_up(80, seed=len(population))
    declared = source(population, url=f"sqlite:///{tmp_path}/cdm.sqlite")
    check_source_unit(declared, "person_id")
    omop.write_sqlite(tmp_path / "cdm.sqlite", rows)
    found = read(declared)
    assert found == expected(rows, population)
    varied = [len({row[place] for row in found}) > 1 for place in range(len(FEATURES) + 1)]
    assert all(varied) or population is not POPULATIONS[0]
    for person in (1, 2, 3):
        omop.write_sqlite(tmp_path / "cdm.sqlite", omop.without(rows, person))
        assert read(declared) == [row for row in found if row[0] != str(person)]


@pytest.mark.integration
@pytest.mark.parametrize("population", POPULATIONS)
def test_rows_of_postgresql_are_those_of_the_declaration(population, monkeypatch):
    rows, url = omop.made_up(40, seed=3), postgres_server.database_url()
    monkeypatch.setenv("CDM_URL", url.replace("postgresql:", "postgresql+psycopg:"))
    with psycopg.connect(url) as connection:
        connection.execute(
            "DROP SCHEMA IF EXISTS cdm CASCADE; CREATE SCHEMA cdm; SET search_path = cdm"
        )
        omop.write(connection, rows)
    assert read(source(population, url_env="CDM_URL", cdm_schema="cdm")) == expected(
        rows, population
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"population": {}}, "exactly one kind of event"),
        ({"population": {"drug": 1, "index": "end"}}, "index: end with visit"),
        ({"features": [{"column": "a", "drug": 1, "take": "last"}]}, "take: any or count"),
        ({"features": [FEATURES[3] | {"value": "concept"}]}, "first or last with value: concept"),
        ({"features": [FEATURES[6] | {"unit": 1}]}, "unit with measurement only"),
        ({"features": [{"column": "a", "person": "age", "take": "any"}]}, "no take beside person"),
        ({"features": [{"column": "a; DROP", "person": "age"}]}, "pattern"),
        ({"features": [{"column": "person_id", "person": "age"}]}, "none called person_id"),
        ({"features": FEATURES[3:4], "window": None}, "a window for column lowest"),
        ({"window": ["0d", "48h"]}, "in days .* or in hours"),
        ({"window": ["2d", "0d"]}, "in days .* or in hours"),
        ({"url": None}, "exactly one of 'url_env' and 'url'"),
    ],
)
def test_a_wrong_declaration_is_refused(change, line):
    with pytest.raises(ValidationError, match=line):
        source(**{"url": "sqlite:///cdm.sqlite", "features": FEATURES} | change)


def test_a_vocabulary_that_lacks_what_is_needed_is_said(tmp_path):
    rows = omop.made_up(20, seed=1)
    declared = source(url=f"sqlite:///{tmp_path}/cdm.sqlite")
    for table, kept, said in (
        ("concept_ancestor", omop.DIABETES, f"concept {omop.INPATIENT} of visit"),
        ("concept_ancestor", omop.INPATIENT, f"concept {omop.DIABETES} of condition"),
        ("concept", 45880296, "person.gender_concept_id, of column sex"),
        ("concept", 8507, "observation.value_as_concept_id, of column smoking"),
    ):
        held = {**rows, table: [row for row in rows[table] if row[0] == kept]}
        omop.write_sqlite(tmp_path / "cdm.sqlite", held)
        with pytest.raises(InputError, match=f"VOCABULARY: .*{said}"):
            read(declared)


def test_a_long_query_says_so_and_which_index_is_missing(tmp_path, monkeypatch, caplog):
    declared = source(url=f"sqlite:///{tmp_path}/cdm.sqlite")
    omop.write_sqlite(tmp_path / "cdm.sqlite", omop.made_up(20, seed=1))
    with sqlite3.connect(tmp_path / "cdm.sqlite") as database:
        name = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'measurement'"
        ).fetchone()[0]
        database.execute(f"DROP INDEX {name}")
    read(declared)
    assert not caplog.messages
    monkeypatch.setattr(formats, "_LONG_SECONDS", 0.0)
    with formats.executed(query_of(declared)):
        for _ in range(100):
            if caplog.messages:
                break
            time.sleep(0.05)
    assert "still computes" in caplog.text
    assert "measurement (" in caplog.text
    assert "person (" not in caplog.text
