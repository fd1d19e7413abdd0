"""Parser of queries: one reading statement of listed constructs; nothing is run.

Only the constructs of ``queries.toml`` are allowed: none writes, reaches files, hosts, clocks or
random numbers, or depends on the order of rows.
"""

import logging
from functools import lru_cache

from sqlglot import exp, parse, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

from storage.files.documents import listed

# The parser would print a statement that it cannot parse; such a statement is refused here.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_LISTED = listed(__package__, "queries.toml")
_PARTS = {name: frozenset(parts.split()) for name, parts in _LISTED["parts"].items()}
_PLAIN, _PLACES_OF_ROWS, _CLOCKS = (
    frozenset(_LISTED["words"][kind].split()) for kind in ("constructs", "places_of_rows", "clocks")
)
_SAID = _LISTED["refused"]
DUCKDB_TYPES = frozenset(_LISTED["words"]["duckdb_types"])
"""Types of DuckDB whose cells can be read, without lengths and levels."""

_TYPES = (
    exp.DataType.NUMERIC_TYPES
    | exp.DataType.TEXT_TYPES
    | exp.DataType.TEMPORAL_TYPES
    | {exp.DataType.Type.BOOLEAN}
)
AGGREGATES = (exp.Count, exp.Min, exp.Max, exp.Sum, exp.Avg)


@lru_cache(maxsize=8)
def parse_query(text: str, dialect: str) -> exp.Query:
    """Parse one reading statement, made of the listed constructs.

    The text has no comments; the dialect is ``postgresql``, ``sqlite`` or ``duckdb``. Names are
    returned as the database reads them. The result is cached: do not change it. It is a ValueError
    if the text is not exactly one statement of the dialect, or holds anything else.
    """
    dialect = "postgres" if dialect == "postgresql" else dialect
    try:
        statements = parse(text, read=dialect)
        for name in statements[0].find_all(exp.Identifier) if statements[0] else ():
            _check_name(name, dialect)
        query = normalize_identifiers(statements[0], dialect=dialect) if statements[0] else None
    except (SqlglotError, RecursionError):
        statements, query = [], None
    if len(statements) != 1 or not isinstance(query, exp.Query):
        raise ValueError(_SAID["statement"])
    for node in query.walk():
        _check_node(node, dialect)
        if isinstance(node, exp.With) and node.parent is not query:
            raise ValueError(_SAID["with"])
    return query


def _check_name(name: exp.Identifier, dialect: str) -> None:
    if "." in name.name and isinstance(name.parent, exp.Table | exp.TableAlias):
        raise ValueError(_SAID["dot"])
    folded = dialect != "postgres" or not name.quoted
    if folded and any(not c.isascii() and c != c.lower() for c in name.name):
        raise ValueError(_SAID["capitals"])


def _check_node(node: exp.Expr, dialect: str) -> None:
    name = type(node).__name__
    if _is_time(node, dialect):
        return
    if name not in _PLAIN and name not in _PARTS:
        if isinstance(node, exp.Func):
            spelt = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
            raise ValueError(_SAID["function"].format(spelt))
        raise ValueError(_SAID["construct"].format(name.upper()))
    for part, value in node.args.items():
        if name in _PARTS and value and part not in _PARTS[name]:
            found = f"{name} with {part.rstrip('_')}"
            raise ValueError(_SAID["construct"].format(found.upper()))
    if isinstance(node, exp.Cast) and node.to.this not in _TYPES:
        raise ValueError(_SAID["type"])
    if isinstance(node, exp.Literal) and node.name.strip().lower() in _CLOCKS:
        raise ValueError(_SAID["clock"])
    if dialect == "duckdb" and isinstance(node, exp.Column) and node.name.lower() in _CLOCKS:
        # DuckDB reads such a name as a clock where no column has it, even in quotes.
        raise ValueError(_SAID["clock_column"].format(node.name))
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
        raise ValueError(_SAID["from"])
    if isinstance(node, exp.CTE | exp.Subquery) and not isinstance(node.this, exp.Query):
        raise ValueError(_SAID["select"])
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Subquery):
        # SQLite reads IN ((SELECT ...)) as the one value of its first row.
        raise ValueError(_SAID["parentheses"])
    if isinstance(node, exp.Column) and node.name.lower() in _PLACES_OF_ROWS:
        raise ValueError(_SAID["place"].format(node.name))
    if isinstance(node, exp.Sum | exp.Avg) and not _is_exact(node.this, dialect):
        raise ValueError(_SAID["sum"].format(node.key.upper()))


def _is_time(node: exp.Expr, dialect: str) -> bool:
    """Return true for UNIXEPOCH of a column, as SQLite has no type for times.

    Only a column is allowed: given a composed text, the function may read the clock.
    """
    return (
        dialect == "sqlite"
        and isinstance(node, exp.Anonymous)
        and node.name.lower() == "unixepoch"
        and [type(part) for part in node.expressions] == [exp.Column]
    )


def _is_exact(node: exp.Expr, dialect: str) -> bool:
    types = exp.DataType.Type
    # DuckDB adds the widest integers without a sign as floating-point numbers.
    exact = exp.DataType.INTEGER_TYPES - {types.UINT128, types.UINT256}
    exact |= {types.DECIMAL} if dialect != "sqlite" else set()
    return isinstance(node, exp.Cast) and node.to.this in exact


def printed(text: str, dialect: str) -> str:
    """Return a statement as the parser read it, with all names in quotes."""
    return parse_one(text, read=dialect).sql(dialect, identify=True)


def equated_of(query: exp.Query) -> frozenset[str]:
    """Return the columns of a parsed query that may join tables: left of = or IN, or in USING."""
    left = (node.this for node in query.find_all(exp.EQ, exp.In))
    using = (one for join in query.find_all(exp.Join) for one in join.args.get("using") or ())
    return frozenset(
        one.name for one in (*left, *using) if isinstance(one, exp.Column | exp.Identifier)
    )


def tables_of(query: exp.Query) -> frozenset[str]:
    """Return the tables and views that a parsed query names, as ``table`` or ``schema.table``."""
    named = {cte.alias for cte in query.find_all(exp.CTE)}
    found = {name_of(table) for table in query.find_all(exp.Table)}
    return frozenset(found - named)


def name_of(table: exp.Table) -> str:
    """Return ``table`` or ``schema.table``."""
    return f"{table.db}.{table.name}" if table.db else str(table.name)


def times_of(query: exp.Query) -> frozenset[tuple[str, str]]:
    """Return the stored columns that UNIXEPOCH reads, each with its table as `name_of` has it."""
    of_query = {cte.alias for cte in query.find_all(exp.CTE)}
    columns = (
        node.expressions[0]
        for node in query.find_all(exp.Anonymous)
        if node.name.lower() == "unixepoch"
    )
    tables = ((_table_of(column), column.name) for column in columns)
    return frozenset(
        (name_of(table), name)
        for table, name in tables
        if table is not None and table.name not in of_query
    )


def _table_of(column: exp.Column) -> exp.Table | None:
    """Return the table that a column is read from: of its SELECT, or of one around it."""
    select = column.parent_select
    while select is not None:
        own = [table for table in select.find_all(exp.Table) if table.parent_select is select]
        for table in own:
            if column.table in ("", table.alias_or_name):
                return table
        select = select.parent_select
    return None
