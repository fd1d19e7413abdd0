"""A small synthetic database in the OMOP common data model, and what a declaration says of it."""

import sqlite3
from contextlib import closing
from datetime import date, datetime, time, timedelta

import numpy as np

for kind in (date, datetime):
    sqlite3.register_adapter(kind, str)

SODIUM, WEIGHT, SMOKING = 3019550, 3025315, 4275495
DIABETES, TYPE_2, FEVER, STATIN = 201826, 201820, 437663, 21601855
INPATIENT, EMERGENCY, OUTPATIENT = 9201, 9203, 9202
MMOL, MG = 8753, 8840
NAMES = {8507: "MALE", 8532: "FEMALE", 45880296: "Smoker", 45883458: "Never smoked"}
PARENTS = {DIABETES: (DIABETES, TYPE_2), INPATIENT: (INPATIENT, EMERGENCY)}
"""Concepts that are counted with their descendants, and these; each is its own descendant."""

FEATURES = [
    {"column": "age", "person": "age"},
    {"column": "sex", "person": "gender"},
    {"column": "sodium", "measurement": SODIUM, "take": "last", "unit": MMOL},
    {"column": "diabetes", "condition": DIABETES, "take": "any", "descendants": True},
    {"column": "died", "death": True, "take": "any", "window": ["0d", "30d"]},
]
SCHEMA = {
    "columns": [
        {"name": "age", "kind": "integer", "lower": 0, "upper": 110, "bins": 11},
        {"name": "sex", "kind": "categorical", "levels": ["FEMALE", "MALE"], "nullable": True},
        {"name": "sodium", "kind": "integer", "lower": 100, "upper": 180, "bins": 8}
        | {"nullable": True},
        {"name": "diabetes", "kind": "categorical", "levels": ["0", "1"]},
    ],
    "label": {"name": "died", "levels": {"no": ["0"], "yes": ["1"]}, "positive": "yes"},
}
DAY = {"kind": "date", "lower": "2019-12-01", "upper": "2020-01-31", "bins": 8}
ADMITTED = {"column": "admitted", "visit": INPATIENT, "take": "first", "value": "date"}
DATED = {
    "features": [*FEATURES, ADMITTED | {"descendants": True, "window": ["0d", "0d"]}],
    "columns": [*SCHEMA["columns"], {"name": "admitted", **DAY}],
}
"""Features and columns with a day of the index."""

_WHEN = "{0}_date date, {0}_datetime timestamp"
TABLES = {
    "person": "person_id bigint, gender_concept_id bigint, year_of_birth integer",
    "visit_occurrence": "person_id bigint, visit_concept_id bigint, "
    f"{_WHEN.format('visit_start')}, {_WHEN.format('visit_end')}",
    "condition_occurrence": "person_id bigint, condition_concept_id bigint, "
    + _WHEN.format("condition_start"),
    "drug_exposure": f"person_id bigint, drug_concept_id bigint, "
    f"{_WHEN.format('drug_exposure_start')}",
    "measurement": f"person_id bigint, measurement_concept_id bigint, {_WHEN.format('measurement')}"
    ", value_as_number numeric, unit_concept_id bigint",
    "observation": f"person_id bigint, observation_concept_id bigint, {_WHEN.format('observation')}"
    ", value_as_number numeric, value_as_concept_id bigint",
    "death": f"person_id bigint, {_WHEN.format('death')}",
    "concept": "concept_id bigint, concept_name text",
    "concept_ancestor": "ancestor_concept_id bigint, descendant_concept_id bigint",
}


def made_up(n_persons, *, seed):
    """Return the rows of every table, by name; the days are few, so that events meet."""
    rng = np.random.default_rng(seed)
    rows = {name: [] for name in TABLES}
    rows["concept"] = list(NAMES.items())
    rows["concept_ancestor"] = [(a, d) for a, below in PARENTS.items() for d in below]

    def when(first, last):
        day = date(2019, 12, 28) + timedelta(days=int(rng.integers(first, last)))
        clock = time(int(rng.integers(0, 24)), int(rng.integers(0, 2)) * 30)
        return day, datetime.combine(day, clock) if rng.random() < 0.9 else None

    def events(table, most, *of):
        for _ in range(rng.integers(0, most)):
            rows[table].append(
                (person, int(rng.choice(of[0])), *when(0, 9), *(f() for f in of[1:]))
            )

    for person in range(1, n_persons + 1):
        rows["person"].append(
            (person, int(rng.choice([8507, 8532, 1])), int(rng.integers(1930, 2005)))
        )
        for _ in range(rng.integers(0, 4)):
            start, end = when(0, 9), when(9, 12)
            kind = int(rng.choice([INPATIENT, EMERGENCY, OUTPATIENT]))
            rows["visit_occurrence"].append((person, kind, *start, *end))
        events("condition_occurrence", 4, [DIABETES, TYPE_2, FEVER])
        events("drug_exposure", 4, [STATIN, 1])
        events(
            "measurement", 7, [SODIUM, WEIGHT],
            lambda: None if rng.random() < 0.1 else int(rng.integers(120, 160)),
            lambda: int(rng.choice([MMOL, MG])),
        )  # fmt: skip
        events(
            "observation", 4, [SMOKING, 1], lambda: None,
            lambda: int(rng.choice([45880296, 45883458, 1])),
        )  # fmt: skip
        if rng.random() < 0.5:
            rows["death"].append((person, *when(5, 20)))
    return rows


def without(rows, person):
    return {
        name: [row for row in of if name.startswith("concept") or row[0] != person]
        for name, of in rows.items()
    }


def write(connection, rows, mark="%s"):
    cursor = connection.cursor()
    for name, columns in TABLES.items():
        cursor.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join([mark] * len(columns.split(",")))
        cursor.executemany(f"INSERT INTO {name} VALUES ({marks})", rows[name])  # noqa: S608 - ours
        if columns.startswith("person_id"):
            cursor.execute(f"CREATE INDEX {name}_of ON {name} (person_id)")


def write_sqlite(path, rows):
    """Write a SQLite file; times are text there."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        write(connection, rows, mark="?")
