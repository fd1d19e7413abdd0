"""Hostile text around a query: nothing is pasted into it, nothing written, nothing else read."""

# ruff: noqa: PT017 -- whether a case is refused is up to the case

import hashlib
import os
import re
import sqlite3
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from privacy.errors import ClustMixError, ConfigurationError, InputError
from storage.schema.columns import raw_text
from storage.sources.cohorts import CohortReader
from storage.sources.declared import Source, SqlSource

IN_THE_VAULT = "zebra-secret-4711"
CANARY = "zebra-canary-0815"
WARDS = ["icu", "O'Brien", 'a"b', ":ward", "%s", "x; DROP TABLE cohort", "--", "é\N{SNOWMAN}", ""]

INJECTIONS = [
    "' OR '1'='1", "'; DROP TABLE cohort; --", "icu' UNION SELECT secret, secret FROM vault --",
    '" OR ""="', "icu\0' OR 1=1", ":ward", ":other", "{ward}", "%(ward)s", "?", "$1",
    "\\' OR 1=1 --", "icu/**/OR/**/1", "(SELECT secret FROM vault)", "x'697563'",
]  # fmt: skip
hostile_text = st.one_of(
    st.sampled_from(INJECTIONS),
    st.text(max_size=30),
    st.builds("".join, st.lists(st.sampled_from([*INJECTIONS, "icu", "'", '"', ";"]), max_size=4)),
)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("sql") / "hospital.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cohort (ward TEXT, age INTEGER)")
        connection.executemany(
            "INSERT INTO cohort VALUES (?, ?)", list(zip(WARDS, range(9), strict=True))
        )
        connection.execute("CREATE TABLE vault (secret TEXT)")
        connection.execute("INSERT INTO vault VALUES (?)", (IN_THE_VAULT,))
    connection.close()
    return path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_of(path, query, **fields):
    return SqlSource.model_validate(
        {"kind": "sql", "url": f"sqlite:///{path}", "query": query, **fields}
    )


def rows_of(source, columns):
    frames = list(CohortReader(source).chunks(columns))
    return [row for frame in frames for row in frame.itertuples(index=False, name=None)]


@settings(max_examples=500)
@given(value=hostile_text)
def test_parameter_is_a_value_and_nothing_else(database, value):
    before = digest(database)
    source = source_of(
        database, "SELECT ward, age FROM cohort WHERE ward = :ward", parameters={"ward": value}
    )
    try:
        found = rows_of(source, ["ward", "age"])
    except InputError as error:
        # Half of a character cannot be sent to any database.
        assert any("\ud800" <= c <= "\udfff" for c in value)
        assert error.code == "SOURCE_UNREADABLE"
        found = []
    assert found == [(ward, str(age)) for age, ward in enumerate(WARDS) if ward == value]
    assert digest(database) == before


@settings(max_examples=200)
@given(value=st.one_of(hostile_text, st.integers()), column=st.sampled_from(["ward", "age"]))
def test_selected_value_is_compared_and_never_part_of_the_query(database, value, column):
    source = source_of(database, "SELECT ward, age FROM cohort", select={column: value})
    if any("\ud800" <= c <= "\udfff" for c in str(value)):
        return
    found = rows_of(source, ["ward", "age"])
    assert found == [
        (ward, str(age))
        for age, ward in enumerate(WARDS)
        if raw_text({"ward": ward, "age": age}[column]) == raw_text(value)
    ]


@settings(max_examples=300)
@given(name=hostile_text)
def test_column_name_is_looked_up_and_never_run(database, name):
    before = digest(database)
    reader = CohortReader(source_of(database, "SELECT ward, age FROM cohort"))
    with pytest.raises(InputError, match="COLUMN_MISSING: column") as caught:
        next(iter(reader.chunks(["ward", name])))
    assert IN_THE_VAULT not in str(caught.value)
    assert str(caught.value).isprintable()
    assert digest(database) == before


PIECES = [
    "SELECT", "WITH x AS (", "ward", "age", "FROM cohort", "FROM vault", "WHERE", "1=1", ")", "(",
    "UNION", "INSERT INTO cohort VALUES ('x', 1)", "DELETE FROM cohort", "DROP TABLE vault", ";",
    "UPDATE cohort SET age = 1", "ATTACH 'other.sqlite' AS o", "DETACH o", "VACUUM", "COPY t TO",
    "PRAGMA query_only = OFF", "PRAGMA writable_schema=1", "--", "/*", "*/", "'", '"', "`", "[",
    "]", "[a']", "CREATE TABLE t (a)", "load_extension('x')", "pg_read_file('/etc/passwd')", "$$",
    ":ward", "\\", "\0", "q'[", "]'", "BEGIN", "COMMIT", "REPLACE INTO cohort VALUES ('x', 1)",
    "pragma_table_info('vault')", '"pg_read_file"(1)', "*", ",", "\n", "E'a'", "'a''b'", '"a""b"',
]  # fmt: skip


@settings(max_examples=1_200)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
@example(pieces=["SELECT", "1 AS", "[a']", ";", "DELETE FROM cohort", ";", "SELECT", "[a']"])
@example(
    pieces=["WITH x AS (", "SELECT", "1 AS", "[a']", ")", "DELETE FROM cohort", "WHERE", "[']"]
)
def test_no_query_changes_the_database(database, pieces):
    before, folder = digest(database), sorted(os.listdir(database.parent))
    bound = {"ward": "icu"} if ":ward" in pieces else {}
    try:
        source = source_of(database, " ".join(pieces), parameters=bound)
        reader = CohortReader(source)
        columns = reader.header()
        list(reader.chunks(columns))
    except (ValidationError, InputError, ConfigurationError) as error:
        if isinstance(error, ClustMixError):
            assert error.code in {"SOURCE_UNREADABLE", "HEADER_DUPLICATE", "HEADER_EMPTY_NAME"}
            assert IN_THE_VAULT not in str(error)
    assert digest(database) == before
    assert sorted(os.listdir(database.parent)) == folder


# Functions are allowed by their names: these stand for all others.
REACHING = ["pg_read_file", "load_extension", "query_to_xml", "writefile", "pragma_user_version"]
upper_or_lower = st.booleans().map(lambda upper: str.upper if upper else str.lower)


@settings(max_examples=200)
@given(
    name=st.sampled_from(REACHING),
    case=upper_or_lower,
    quoted=st.booleans(),
    blank=st.sampled_from(["", " ", "\n", "\t "]),
    before=st.sampled_from(
        ["SELECT ", "SELECT age, ", "WITH x AS (SELECT 1) SELECT ", "SELECT 1 + "]
    ),
)
def test_function_that_reaches_further_is_refused(name, case, quoted, blank, before):
    function = case(name)
    spelt = f'"{function}"' if quoted else function
    with pytest.raises(
        ValidationError, match="must only read tables; found the function"
    ) as caught:
        source_of(Path("x.sqlite"), f"{before}{spelt}{blank}('a') FROM cohort")
    assert name in caught.value.errors()[0]["msg"].lower()


@settings(max_examples=300)
@given(
    mark=st.sampled_from(["--", "/*", "*/", "#", "$", "{", "}", "`", "%", ";", "["]),
    head=st.sampled_from(["SELECT 1 ", "SELECT 'a' ", 'SELECT "a" ', "SELECT 'it''s' "]),
    tail=st.sampled_from(["", "x", " 'b'", ' "b"', "\n1", " 'b''c' "]),
)
def test_mark_outside_of_quotes_is_refused(mark, head, tail):
    with pytest.raises(ValidationError, match="must be one statement without"):
        source_of(Path("x.sqlite"), f"{head}{mark}{tail} FROM cohort")


@settings(max_examples=200)
@given(character=st.characters(categories=["Cc", "Cf", "Zl", "Zp"], exclude_characters="\n\t\r"))
def test_invisible_character_in_a_query_is_refused(character):
    with pytest.raises(ValidationError, match="the query must hold printable characters only"):
        source_of(Path("x.sqlite"), f"SELECT 1 AS a{character}b")


@pytest.mark.parametrize("statement", ["DELETE FROM cohort", "ATTACH 'a' AS b", "PRAGMA page_size"])
def test_sqlite_itself_refuses_what_passes_the_filter(database, monkeypatch, statement):
    """The second line: the connection would refuse it, were the filter wrong."""
    monkeypatch.setattr("storage.sources.formats._check_database", lambda engine, source: None)
    before = digest(database)
    source = source_of(database, "SELECT 1 AS a").model_copy(update={"query": statement})
    with pytest.raises(InputError, match="SOURCE_UNREADABLE: the query could not be run"):
        CohortReader(source).header()
    assert digest(database) == before
    assert not Path("a").exists()


adapter = TypeAdapter(Source)


@settings(max_examples=400)
@given(
    address=st.one_of(
        hostile_text,
        st.sampled_from(["postgresql", "sqlite", "mysql", "sqlite+pysqlite", "file", ""]).flatmap(
            lambda scheme: hostile_text.map(lambda rest: f"{scheme}://{CANARY}:{CANARY}@{rest}")
        ),
    )
)
def test_address_in_the_environment_never_shows(address):
    value = address.replace("\0", "").encode("utf-8", "ignore").decode() or " "
    source = SqlSource(kind="sql", url_env="HOSTILE_URL", query="SELECT 1 AS a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTILE_URL", value)
        # No driver of a server gets to look for a host.
        patch.setattr("sqlalchemy.pool.NullPool.connect", _no_connection)
        with pytest.raises(ClustMixError) as caught:
            CohortReader(source).header()
    assert caught.value.code in {"SOURCE_UNREADABLE", "SOURCE_MISSING", "DATABASE_KIND"}
    assert CANARY not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def _no_connection(pool):
    raise OSError(CANARY)


@settings(max_examples=400)
@given(
    field=st.sampled_from(["url", "url_env", "query", "kind", "delimiter", "encoding", "path"]),
    value=st.one_of(
        hostile_text.map(lambda text: CANARY + text),
        st.none(),
        st.integers(),
        st.floats(),
        st.lists(st.just(CANARY)),
        st.dictionaries(st.just(CANARY), st.just(CANARY)),
    ),
)
def test_declaration_is_accepted_or_refused_without_its_value(field, value):
    given_fields = {"kind": "csv" if field in {"delimiter", "encoding", "path"} else "sql"}
    try:
        adapter.validate_python({**given_fields, field: value})
    except ValidationError as error:
        # As the site file shows it: without the input.
        shown = str(error.errors(include_input=False, include_url=False, include_context=False))
        if field != "kind":  # a kind is no secret
            assert CANARY not in re.sub(r"'loc': \([^)]*\)", "", shown)
