import pytest
from pydantic import ValidationError

from storage.sources.declared import SqlSource

READING = "SELECT age, sex FROM stays WHERE ward = :ward"


def sql(query, parameters=None, **place):
    place = place or {"url_env": "COHORT_URL"}
    return SqlSource(kind="sql", query=query, parameters=parameters or {}, **place)


@pytest.mark.parametrize(
    "query",
    [
        READING,
        f"  {READING} ;",
        "with w as (select * from stays) select * from w where ward = :ward",
        "SELECT \"update\", 'it''s; -- not a comment', replace(a, 'x', 'y') FROM t WHERE w = :ward",
        "SELECT age::int FROM stays WHERE ward = :ward AND note = 'DROP TABLE x'",
        "SELECT 'a:b' FROM stays WHERE ward = :ward",
    ],
)
def test_reading_queries_are_accepted(query):
    assert sql(query, {"ward": "a"}).query == query


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("DELETE FROM stays", "must begin with SELECT or WITH"),
        ("SELECT 1;;", "must be one statement without ';'"),
        ("SELECT 'a\\' ; DROP TABLE x'", "unclosed quote"),
        ("SELECT 'a\\' || '; DROP TABLE x'", "must be one statement without"),
        ("SELECT * FROM stays WHERE ward = 'open", "unclosed quote"),
        ("SELECT q'[']' FROM a WHERE b = ' OR 1 = 1", "could not be parsed"),  # quotes of Oracle
        ("SELECT * INTO copy_of FROM stays", "found SELECT WITH INTO"),
        (
            "WITH d AS (DELETE FROM stays RETURNING *) SELECT * FROM d",
            "nothing but SELECTs in WITH",
        ),
        ("SELECT * FROM stays FOR UPDATE", "found SELECT WITH LOCKS"),
    ],
)
def test_other_statements_are_refused(query, message):
    with pytest.raises(ValidationError, match=message):
        sql(query)


def test_parameters_are_exactly_the_bound_ones():
    for parameters in ({}, {"ward": 1, "age": 2}, {"warp": 1}):
        with pytest.raises(ValidationError, match="exactly the bound parameters of the query: war"):
            sql(READING, parameters)
    with pytest.raises(ValidationError, match="parameters"):
        sql(READING, {"ward": ["a", "b"]})


def test_only_sqlite_files_stand_in_clear():
    addresses = ["postgresql://user:SECRET@host/db", "sqlite://", "sqlite:///"]
    for url in (*addresses, "sqlite:///x.db?mode=rwc", "mysql:///sqlite:///x"):
        for field, message in (
            ("url", "'url' in clear is for SQLite files only"),
            ("url_env", "is the name of an environment variable"),
        ):
            with pytest.raises(ValidationError, match=message) as caught:
                sql("SELECT 1", **{field: url})
            assert "SECRET" not in str(caught.value)


def test_a_file_of_sqlite_is_queried_in_its_dialect():
    assert sql("SELECT 1", url="sqlite:///x.sqlite").language == "sqlite"
    assert sql("SELECT 1").language == "postgresql"
    with pytest.raises(ValidationError, match="'url' is a SQLite file; leave 'dialect' out"):
        sql("SELECT 1", url="sqlite:///x.sqlite", dialect="postgresql")
