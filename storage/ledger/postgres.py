"""The journal in PostgreSQL, for installations that share a ledger: triggers, roles, transactions.

The table is ``clustmix_ledger.journal`` in a database of its own; its owner is the role that
connects first. Pipelines connect as a role that may only read and append::

    GRANT USAGE ON SCHEMA clustmix_ledger TO pipeline;
    GRANT SELECT, INSERT ON clustmix_ledger.journal TO pipeline;

UPDATE, DELETE, TRUNCATE and an INSERT that does not continue the chain are refused for every role,
the owner and superusers included, as long as the triggers are in force; every write and every
verification checks that they are. The password of the URL is a secret: no message, representation
or exception holds anything that the driver says about the connection.
"""

from typing import Any

import psycopg
from psycopg import conninfo
from pydantic import SecretStr
from sqlalchemy import Connection

from privacy.errors import ClustMixError, refusals
from storage.files.documents import listed
from storage.files.refs import is_loopback
from storage.ledger.journal import JOURNAL, Journal
from storage.ledger.journal_rows import COLUMNS

refusal = refusals(__package__)

TIMEOUT_SECONDS = 30
"""Time limit for another transaction that writes, and for a server that went silent."""

URL_SCHEMES = ("postgresql://", "postgres://")

# A writer holds this lock until its commit, which the next one reads, as a statement sees what was
# committed before it (READ COMMITTED). LOCK TABLE would need the right to UPDATE.
_LOCK = 0x636C7573746D6978

# A policy that hides rows is an error instead of a shorter journal.
_SETTINGS = f"""SET LOCAL lock_timeout = '{TIMEOUT_SECONDS}s';
SET LOCAL statement_timeout = '{2 * TIMEOUT_SECONDS}s';
SET LOCAL idle_in_transaction_session_timeout = '{TIMEOUT_SECONDS}s';
SET LOCAL row_security = off;
SET LOCAL search_path = pg_catalog;
SET LOCAL synchronous_commit = on"""
_BEGIN_WRITE = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_SETTINGS}"
_BEGIN_READ = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_SETTINGS}"

_SQL = listed(__package__, "postgres.toml")
_FUNCTIONS = _SQL["functions"]
_PROTECT = [statement.format_map(_FUNCTIONS) for statement in _SQL["protect"]]
_SETTING = ["search_path=pg_catalog"]

_CATALOGUE: dict[str, list[tuple[Any, ...]]] = {
    _SQL["table"]: [("r", "p", False, 0, 0)],
    _SQL["columns"]: [
        (name, "bigint" if name == "sequence" else "text", required, False)
        for name, required in COLUMNS.items()
    ],
    _SQL["constraints"]: [("p", [1])],
    _SQL["triggers"]: [
        ("journal_append_only", 58, "A", "clustmix_ledger.refuse", True, 0, ""),
        ("journal_continues", 7, "A", "clustmix_ledger.continues", True, 0, ""),
    ],
    _SQL["routines"]: [
        (name, source, "plpgsql", False, _SETTING) for name, source in sorted(_FUNCTIONS.items())
    ],
    _SQL["relations"]: [("journal",), ("journal_pkey",)],
}
"""The catalogue of an intact journal: questions of ``postgres.toml``, and answers."""


class PostgresJournal(Journal):
    """A journal on a server that is durable and proves its identity.

    Over a network that is ``sslmode=verify-full``. An address that is malformed or unprotected is a
    ConfigurationError; a server with ``fsync`` off, or a role without rights, is a LedgerError.

    If the connection is lost in a commit, take the step as charged, and read the ledger again.
    """

    _CLOCK = """SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC',
    'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""

    def __init__(self, url: SecretStr) -> None:
        problem = _problem_with(url)
        if problem is not None:
            raise problem
        super().__init__("postgresql+psycopg")
        self._url = url
        self._open()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._url.get_secret_value(),
            connect_timeout=TIMEOUT_SECONDS,
            application_name="clustmix-ledger",
            client_encoding="utf8",
            # A standby may lag behind, and what it does not know yet would be spent again.
            target_session_attrs="read-write",
            tcp_user_timeout=TIMEOUT_SECONDS * 1000,
        )

    def _begin(self, connection: Connection, *, write: bool) -> None:
        connection.exec_driver_sql(_BEGIN_WRITE if write else _BEGIN_READ)
        if connection.exec_driver_sql("SELECT current_setting('fsync')").scalar_one() != "on":
            raise refusal("LEDGER_NOT_DURABLE")
        if write:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")

    def _exists(self, connection: Connection) -> bool:
        query = "SELECT to_regclass('clustmix_ledger.journal') IS NOT NULL"
        return bool(connection.exec_driver_sql(query).scalar_one())

    def _create(self, connection: Connection) -> None:
        # IF NOT EXISTS would need the right to create a schema, also where it exists.
        query = "SELECT to_regnamespace('clustmix_ledger') IS NOT NULL"
        if not connection.exec_driver_sql(query).scalar_one():
            connection.exec_driver_sql("CREATE SCHEMA clustmix_ledger")
        JOURNAL.create(connection, checkfirst=False)
        for statement in _PROTECT:
            connection.exec_driver_sql(statement)

    def _is_intact(self, connection: Connection) -> bool:
        return self._exists(connection) and all(
            list(connection.exec_driver_sql(question).tuples()) == answer
            for question, answer in _CATALOGUE.items()
        )

    def _unavailable(self, error: BaseException) -> ClustMixError:
        # Nothing that the driver says about the connection.
        found = f"{type(error).__name__} {getattr(error, 'sqlstate', None) or 'without SQLSTATE'}"
        return refusal("LEDGER_UNAVAILABLE postgres", seconds=TIMEOUT_SECONDS, found=found)


def _problem_with(url: SecretStr) -> ClustMixError | None:
    """Return the refusal of an address, in words that hold nothing of it."""
    if not url.get_secret_value().startswith(URL_SCHEMES):
        return refusal("LEDGER_URL_INVALID scheme")
    try:
        settings = conninfo.conninfo_to_dict(url.get_secret_value())
    except (psycopg.Error, ValueError):
        return refusal("LEDGER_URL_INVALID")
    hosts = [
        host
        for name in ("host", "hostaddr")
        for host in str(settings.get(name) or "").split(",")
        if host and not host.startswith(("/", "@")) and not is_loopback(host)
    ]
    if hosts and settings.get("sslmode") != "verify-full":
        return refusal("LEDGER_URL_INVALID sslmode")
    return None
