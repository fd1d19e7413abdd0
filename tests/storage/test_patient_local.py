"""Queries that act on one patient at a time, and those that do not; each is run in SQLite."""

import sqlite3
from collections import Counter
from contextlib import closing

import duckdb
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from storage.sources.cohorts import CohortReader
from storage.sources.declared import Source

PATIENTS = ("a", "b", "c", "d")
STAYS, LABS = "stays (pid, ward, age, day)", "labs (pid, code, value)"
WARDS = [(1, "icu", "a"), (2, "surgery", "z"), (2, "theatre", "b")]


def tables(seed):
    """Return rows of stays and labs: few values, so that ties, nulls and absent rows occur."""
    rng = np.random.default_rng(seed)
    stays = [
        (PATIENTS[rng.integers(4)], *(int(n) for n in rng.integers(0, 3, 3)))
        for _ in range(rng.integers(1, 12))
    ]
    labs = [
        (PATIENTS[rng.integers(4)], int(rng.integers(3)), None if rng.random() < 0.2 else 0.1 * n)
        for n in range(rng.integers(0, 10))
    ]
    return stays, labs


@pytest.fixture(scope="module")
def database():
    with closing(sqlite3.connect(":memory:")) as connection:
        for table in (STAYS, LABS, "wards (id, name, pid)"):
            connection.execute(f"CREATE TABLE {table}")
        connection.executemany("INSERT INTO wards VALUES (?, ?, ?)", WARDS)
        yield connection


def result(database, query, stays, labs):
    database.executescript("DELETE FROM stays; DELETE FROM labs")
    database.executemany("INSERT INTO stays VALUES (?, ?, ?, ?)", stays)
    database.executemany("INSERT INTO labs VALUES (?, ?, ?)", labs)
    cursor = database.execute(query)
    names = [column[0].lower() for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def of(rows, patient):
    return Counter(tuple(row.items()) for row in rows if row.get("pid") == patient)


def moves_others(database, query):
    """Whether a patient's rows are other ones where the tables hold that patient alone."""
    for seed in range(40):
        stays, labs = tables(seed)
        among = result(database, query, stays, labs)
        for patient in PATIENTS:
            own = [[row for row in rows if row[0] == patient] for rows in (stays, labs)]
            if of(among, patient) != of(result(database, query, *own), patient):
                return True
    return False


def checked(query, unit="pid", dialect="sqlite", **fields):
    named = {"public_tables": ["wards"]} if "wards" in query else {}
    place = {"kind": "sql", "url_env": "COHORT_URL", "dialect": dialect}
    if dialect == "duckdb":
        place = {"kind": "duckdb", "database": "a.duckdb"}
    source = TypeAdapter(Source).validate_python(place | {"query": query} | named | fields)
    source.check_patient_local(unit)


ACCEPTED = [
    "SELECT * FROM stays",
    "select PID, ward + 1 AS w, CASE WHEN age > 1 THEN 'old' END AS g FROM stays WHERE day < 2 "
    "ORDER BY pid",
    "SELECT s.*, l.value FROM stays s JOIN labs l ON l.pid = s.pid AND l.code = s.ward",
    "SELECT s.pid, l.code FROM stays s LEFT JOIN labs l USING (pid) WHERE s.age > 0",
    "SELECT s.pid, w.name FROM stays s LEFT JOIN wards w ON w.id = s.ward",
    "SELECT pid, ward, COUNT(*) AS n, MAX(age) AS oldest FROM stays GROUP BY pid, ward "
    "HAVING COUNT(DISTINCT day) > 1",
    "SELECT pid, SUM(CAST(age AS INTEGER)) AS total FROM stays GROUP BY pid",
    "SELECT DISTINCT pid, ward FROM stays",
    "SELECT r.pid, r.ward FROM (SELECT s.*, RANK() OVER (PARTITION BY pid ORDER BY day) AS place "
    "FROM stays s) r WHERE r.place = 1",
    "SELECT pid, age, MAX(age) OVER (PARTITION BY pid) AS oldest FROM stays",
    "WITH old AS (SELECT pid, MAX(age) AS m FROM stays GROUP BY pid) "
    "SELECT s.pid, s.ward, old.m FROM stays s JOIN old ON old.pid = s.pid",
    "SELECT pid, ward AS x FROM stays UNION SELECT pid, code FROM labs",
    "SELECT pid FROM stays EXCEPT SELECT pid FROM labs",
    "SELECT s.pid, (SELECT MAX(l.value) FROM labs l WHERE l.pid = s.pid) AS peak FROM stays s",
    "SELECT s.pid FROM stays s WHERE NOT EXISTS (SELECT 1 FROM labs l WHERE l.pid = s.pid)",
    "SELECT s.pid FROM stays s WHERE s.pid IN (SELECT l.pid FROM labs l WHERE l.code = 1)",
    "SELECT s.pid FROM stays s WHERE s.ward NOT IN (SELECT l.code FROM labs l WHERE l.pid = s.pid)",
    "SELECT s.pid FROM stays s WHERE s.ward IN (SELECT w.id FROM wards w GROUP BY w.id)",
]


@pytest.mark.parametrize("query", ACCEPTED)
def test_accepted_query_acts_on_one_patient_at_a_time(database, query):
    checked(query)
    checked(query.lower(), dialect="postgresql")
    checked(query, dialect="duckdb")
    assert not moves_others(database, query)


@pytest.mark.parametrize("query", ACCEPTED)
def test_an_accepted_query_of_duckdb_acts_on_one_patient_at_a_time(query, tmp_path):
    types = {"pid": "VARCHAR COLLATE NOCASE", "name": "VARCHAR", "value": "DOUBLE"}
    declared = {"kind": "duckdb", "database": str(tmp_path / "a.duckdb"), "query": query}
    declared["public_tables"] = ["wards"] if "wards" in query else []

    def rows(stays, labs):
        with duckdb.connect(declared["database"]) as connection:
            for table, held in ((STAYS, stays), (LABS, labs), ("wards (id, name, pid)", WARDS)):
                name, _, columns = table.rstrip(")").partition(" (")
                typed = ", ".join(f"{c} {types.get(c, 'INTEGER')}" for c in columns.split(", "))
                connection.execute(f"CREATE OR REPLACE TABLE {name} ({typed})")
                if held:
                    marks = ", ".join("?" * len(held[0]))
                    connection.executemany(
                        f"INSERT INTO {name} VALUES ({marks})",  # noqa: S608
                        held,
                    )
        reader = CohortReader(TypeAdapter(Source).validate_python(declared))
        frames = [frame.rename(columns=str.lower) for frame in reader.chunks(reader.header(), 2)]
        return [
            row for frame in frames for row in frame.astype(object).fillna("-").to_dict("records")
        ]

    for seed in range(2):
        # Two patients whose names differ in their case alone.
        stays, labs = (
            [("A" if row[0] == "b" else row[0], *row[1:]) for row in held] for held in tables(seed)
        )
        among = rows(stays, labs)
        for patient in ("A", *PATIENTS):
            own = ([row for row in held if row[0] == patient] for held in (stays, labs))
            assert of(among, patient) == of(rows(*own), patient), patient


REFUSED = """
[LIMIT] moves others
SELECT * FROM stays LIMIT 5
SELECT * FROM stays ORDER BY age LIMIT 3 OFFSET 1
[function RAND] moves others
SELECT pid, ward FROM stays WHERE random() > 0
[window over several] moves others
SELECT pid, COUNT(*) OVER () AS n FROM stays
SELECT pid, RANK() OVER (ORDER BY age) AS k FROM stays
[window] moves others
SELECT pid, RANK() OVER (PARTITION BY ward ORDER BY age) AS k FROM stays
[ROW]
SELECT pid, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY day) AS k FROM stays
[WINDOW]
SELECT pid, SUM(CAST(age AS INTEGER)) OVER (PARTITION BY pid ORDER BY day ROWS 1 PRECEDING) AS k
  FROM stays
[aggregate over several] moves others
SELECT pid, COUNT(*) AS n FROM stays
[GROUP BY] moves others
SELECT pid, MAX(age) AS m FROM stays GROUP BY ward
[a column of one row]
SELECT pid, ward FROM stays GROUP BY pid
[without their column pid]
SELECT ward FROM stays
[DISTINCT over several|without their column]
SELECT DISTINCT ward, age FROM stays
[pid as the name of something else]
SELECT ward AS pid FROM stays
[depends on the order]
SELECT pid, SUM(age) AS s FROM stays GROUP BY pid
[joined] moves others
SELECT s.pid, l.pid AS other FROM stays s JOIN labs l ON l.code = s.ward
[joined otherwise] moves others
SELECT s.pid FROM stays s, labs l
[RIGHT]
SELECT s.pid, l.value FROM labs l RIGHT JOIN stays s ON s.pid = l.pid
[public table]
SELECT s.pid FROM wards w LEFT JOIN stays s ON s.ward = w.id
[METHOD]
SELECT s.pid FROM stays s NATURAL JOIN labs
[aggregate over] moves others
SELECT pid FROM stays WHERE age > (SELECT MAX(l.value) FROM labs l)
SELECT pid, (SELECT COUNT(*) FROM labs) AS n FROM stays
[without their column] moves others
SELECT pid FROM stays WHERE EXISTS (SELECT 1 FROM labs)
-- Without a table, pid may be that of the row around.
[without its table]
SELECT s.pid FROM stays s WHERE EXISTS (SELECT pid FROM labs WHERE pid = s.pid)
[pid as the name of something else] moves others
SELECT s.pid FROM stays s WHERE s.pid NOT IN (SELECT b.pid FROM stays a LEFT JOIN labs b ON b.pid
  = a.pid WHERE a.age = 0)
SELECT s.pid, s.pid IN (SELECT b.pid FROM stays a LEFT JOIN labs b ON b.pid = a.pid WHERE a.age =
  0) IS NULL AS x FROM stays s
[one value that may have several]
SELECT s.pid, (SELECT l.code FROM labs l WHERE l.pid = s.pid) AS c FROM stays s
[different pl]
SELECT pid, ward AS x FROM stays UNION SELECT ward, pid FROM stays
[public]
SELECT pid, ward AS x FROM stays UNION SELECT id, name FROM wards
[RECURSIVE] moves others
WITH RECURSIVE r AS (SELECT pid, ward FROM stays UNION SELECT s.pid, r.ward FROM r JOIN stays s ON
  s.age = r.ward) SELECT * FROM r
-- SQLite needs no RECURSIVE.
[reads itself] moves others
WITH r AS (SELECT pid, ward FROM stays UNION SELECT s.pid, r.ward FROM r JOIN stays s ON s.age =
  r.ward) SELECT * FROM r
[subquery over several]
SELECT pid FROM stays WHERE pid NOT IN (SELECT l.pid FROM labs l)
-- Rows without a match have NULL as their patient.
[window over several] moves others
SELECT s.pid, COUNT(*) OVER (PARTITION BY l.pid) AS n FROM stays s LEFT JOIN labs l ON l.pid =
  s.pid AND l.code = 1
[GROUP BY or an aggregate over several] moves others
SELECT s.pid, q.n FROM stays s JOIN (SELECT l.pid, COUNT(*) AS n FROM stays s LEFT JOIN labs l ON
  l.pid = s.pid GROUP BY l.pid) q ON q.pid = s.pid OR q.pid IS NULL
[window over several] moves others
SELECT s.pid, COUNT(*) OVER (PARTITION BY c.pid) AS n FROM stays s LEFT JOIN labs l ON l.pid =
  s.pid LEFT JOIN labs c ON c.pid = l.pid AND c.code = 1
[may hold another pid]
SELECT s.pid, COUNT(*) AS n FROM stays s JOIN (SELECT l.* FROM stays s LEFT JOIN labs l ON l.pid =
  s.pid) q ON q.pid = s.pid GROUP BY s.pid
-- An aggregate of columns around belongs to the SELECT around, and takes all of its rows.
[aggregate of columns of another] moves others
SELECT s.pid, (SELECT MAX(s.age) FROM labs l WHERE l.pid = s.pid) AS m FROM stays s
SELECT s.pid, (SELECT COUNT(s.age) FROM labs l WHERE l.pid = s.pid) AS m FROM stays s
SELECT s.pid, (SELECT MAX(s.age) FROM wards) AS m FROM stays s
SELECT s.pid, CASE WHEN EXISTS (SELECT COUNT(*) FROM labs l WHERE l.pid = s.pid HAVING
  COUNT(s.age) > 2) THEN 1 END AS m FROM stays s
[without its table] moves others
SELECT s.pid, (SELECT MAX(age) FROM wards) AS m FROM stays s
[without its table]
SELECT s.pid, (SELECT MAX(q.m) FROM (SELECT l.pid, age AS m FROM labs l) q WHERE q.pid = s.pid) AS
  m FROM stays s
[of another]
SELECT s.pid FROM stays s ORDER BY (SELECT MAX(s.age) FROM wards w)
-- The column pid of a public table names nobody.
[subquery over several] moves others
WITH q AS (SELECT w.name FROM wards w WHERE pid IN (SELECT s.pid FROM stays s)) SELECT s.pid,
  (SELECT COUNT(*) FROM q) AS n FROM stays s
[aggregate over several] moves others
SELECT s.pid, (SELECT COUNT(*) FROM labs AS s WHERE s.pid = s.pid) AS n FROM stays s
-- SQLite reads double parentheses as the one value of the first row.
[single parentheses] moves others
SELECT pid, age FROM stays s WHERE pid IN ((SELECT l.pid FROM labs l))
-- Names that could mean two tables.
[without a dot] moves others
WITH "main.labs" AS (SELECT w.id AS value FROM wards w) SELECT s.pid, (SELECT MAX(l.value) FROM
  main.labs l) AS m FROM stays s
[WITH at its beginning only]
SELECT s.pid FROM stays s WHERE EXISTS (WITH labs AS (SELECT w.id FROM wards w) SELECT 1 FROM
  labs)
[capit]
WITH "\N{LATIN CAPITAL LETTER E WITH ACUTE}" AS (SELECT 1 AS a) SELECT 1
-- Two columns that are both called pid.
[may hold another pid] moves others
SELECT q.pid, COUNT(*) AS n FROM (SELECT w.*, s.pid FROM stays s CROSS JOIN wards w) q GROUP BY
  q.pid
[two columns of one name] moves others
SELECT q.pid, COUNT(*) AS n FROM (SELECT w.pid, s.pid FROM stays s CROSS JOIN wards w) q GROUP BY
  q.pid
[a column without a name] moves others
SELECT q.pid, COUNT(*) AS n FROM (SELECT (w.pid), s.pid FROM stays s CROSS JOIN wards w) q GROUP
  BY q.pid
[may hold another pid]
SELECT q.pid FROM (SELECT * FROM stays s, wards w) q
[or with two]
SELECT s.*, s.pid FROM stays s
[where a row is stored] moves others
SELECT pid, ward FROM stays WHERE rowid < 4
[function]
SELECT pid, datetime() AS t FROM stays
[clock]
SELECT pid, CAST('now' AS date) AS t FROM stays
[found the function my_rank]
SELECT pid, my_rank(ward) AS k FROM stays
[no table of patients]
SELECT id AS pid FROM wards
"""


def refused(text):
    """Return queries, what the message says, and whether SQLite shows that other patients matter.

    A query goes on in lines that are indented; a line of its own names the message of those below.
    """
    found, message, shown = [], "", False
    for line in text.strip().splitlines():
        if line.startswith("["):
            message, _, more = line[1:].partition("]")
            shown = more == " moves others"
        elif line.startswith("  "):
            found[-1] = (f"{found[-1][0]} {line.strip()}", message, shown)
        elif not line.startswith("--"):
            found.append((line, message, shown))
    return found


@pytest.mark.parametrize(("query", "message", "shown"), refused(REFUSED))
def test_other_query_is_refused(database, query, message, shown):
    for dialect in ("sqlite", "duckdb"):
        with pytest.raises(ValueError, match=message):
            checked(query, dialect=dialect)
    if shown:
        assert moves_others(database, query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT ward, age FROM stays WHERE age > 1", None),
        (
            "SELECT ward FROM (SELECT * FROM stays) s WHERE s.ward IN (SELECT w.id FROM wards w)",
            None,
        ),
        ("SELECT DISTINCT ward FROM stays", "DISTINCT"),
        ("SELECT ward, MAX(age) AS m FROM stays GROUP BY ward", "GROUP BY"),
        ("SELECT COUNT(*) AS n FROM stays", "an aggregate"),
        ("SELECT COUNT(*) OVER (PARTITION BY ward) AS n FROM stays", "a window"),
        ("SELECT s.age, w.name FROM stays s JOIN wards w ON w.id = s.ward", "repeat a row"),
        ("SELECT ward, (SELECT MAX(s.age) FROM wards) AS m FROM stays s", "of another SELECT"),
        ("SELECT ward FROM stays UNION ALL SELECT ward FROM stays", "repeat a row"),
        ("SELECT ward FROM stays WHERE pid IN (SELECT l.pid FROM labs l)", "read single rows"),
    ],
)
def test_without_a_patient_column_a_query_reads_single_rows(database, query, message):
    if message is not None:
        with pytest.raises(ValueError, match=message):
            checked(query, unit=None)
        return
    checked(query, unit=None)
    for seed in range(30):
        stays, labs = tables(seed)
        single = [row for stay in stays for row in result(database, query, [stay], [])]
        assert Counter(map(str, result(database, query, stays, labs))) == Counter(map(str, single))


def test_declarations_are_about_the_query():
    for fields in ({"public_tables": ["ward"]}, {"patient_local": ["ward"]}):
        with pytest.raises(ValidationError, match="must name tables of the query, found ward"):
            checked("SELECT * FROM stays", **fields)


def test_a_time_is_that_of_a_column_alone():
    checked("SELECT pid, UNIXEPOCH(day) - UNIXEPOCH(ward) AS d FROM stays")
    for cells in ("'n' || 'ow'", "day, 'auto'", ""):
        with pytest.raises(ValueError, match="found the function UNIXEPOCH"):
            checked("SELECT pid, UNIXEPOCH(?) AS d FROM stays".replace("?", cells))
    with pytest.raises(ValueError, match="found the function"):
        checked("SELECT pid, UNIXEPOCH(day) AS d FROM stays", dialect="postgresql")
