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

from privacy.errors import ClustMixError
from storage.files.documents import refusals
from storage.files.refs import is_loopback
from storage.ledger.journal import JOURNAL, Journal
from storage.ledger.journal_rows import COLUMNS

refusal = refusals(__package__)

TIMEOUT_SECONDS = 30
"""Time limit for another transaction that writes, and for a server that went silent."""

URL_SCHEMES = ("postgresql://", "postgres://")

# Each transaction that writes holds this lock until its commit. The next one reads that commit,
# since each of its statements sees what was committed before it (READ COMMITTED). LOCK TABLE would
# do the same but needs the right to UPDATE.
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

_REFUSE = """
BEGIN
    RAISE EXCEPTION 'the journal is append-only: % refused', TG_OP
        USING ERRCODE = 'restrict_violation';
END
"""

# The row of zeros is `privacy.ledger.GENESIS_HASH`.
_CONTINUES = """
DECLARE
    last_sequence bigint;
    last_hash text;
BEGIN
    SELECT sequence, hash INTO last_sequence, last_hash
        FROM clustmix_ledger.journal ORDER BY sequence DESC LIMIT 1;
    IF NEW.sequence IS DISTINCT FROM coalesce(last_sequence, 0) + 1
        OR NEW.previous_hash IS DISTINCT FROM coalesce(last_hash, repeat('0', 64))
    THEN
        RAISE EXCEPTION 'the journal is append-only: INSERT must continue it'
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
"""

# ALWAYS: also where session_replication_role switches ordinary triggers off.
_PROTECT = (
    f"""CREATE FUNCTION clustmix_ledger.refuse() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $body${_REFUSE}$body$""",
    f"""CREATE FUNCTION clustmix_ledger.continues() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $body${_CONTINUES}$body$""",
    """CREATE TRIGGER journal_append_only BEFORE UPDATE OR DELETE OR TRUNCATE
ON clustmix_ledger.journal FOR EACH STATEMENT EXECUTE FUNCTION clustmix_ledger.refuse()""",
    """CREATE TRIGGER journal_continues BEFORE INSERT
ON clustmix_ledger.journal FOR EACH ROW EXECUTE FUNCTION clustmix_ledger.continues()""",
    "ALTER TABLE clustmix_ledger.journal ENABLE ALWAYS TRIGGER journal_append_only",
    "ALTER TABLE clustmix_ledger.journal ENABLE ALWAYS TRIGGER journal_continues",
)

# The catalogue of an intact journal: questions and answers. A permanent table without row security,
# which could hide rows, and without rules or heirs; bits of tgtype: row 1, before 2,
# insert 4, delete 8, update 16, truncate 32; PostgreSQL 18 lists NOT NULL among the constraints.
_CATALOGUE: dict[str, list[tuple[Any, ...]]] = {
    """SELECT relkind::text, relpersistence::text, relrowsecurity,
    (SELECT count(*) FROM pg_rewrite WHERE ev_class = pg_class.oid),
    (SELECT count(*) FROM pg_inherits WHERE pg_class.oid IN (inhparent, inhrelid))
    FROM pg_class WHERE oid = 'clustmix_ledger.journal'::regclass""": [("r", "p", False, 0, 0)],
    """SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, atthasdef
    FROM pg_attribute WHERE attrelid = 'clustmix_ledger.journal'::regclass
    AND attnum > 0 AND NOT attisdropped ORDER BY attnum""": [
        (name, "bigint" if name == "sequence" else "text", required, False)
        for name, required in COLUMNS.items()
    ],
    """SELECT contype::text, conkey FROM pg_constraint
    WHERE conrelid = 'clustmix_ledger.journal'::regclass AND contype <> 'n'""": [("p", [1])],
    """SELECT tgname::text, tgtype, tgenabled::text, tgfoid::regproc::text, tgqual IS NULL,
    tgnargs, tgattr::text FROM pg_trigger
    WHERE tgrelid = 'clustmix_ledger.journal'::regclass AND NOT tgisinternal ORDER BY tgname""": [
        ("journal_append_only", 58, "A", "clustmix_ledger.refuse", True, 0, ""),
        ("journal_continues", 7, "A", "clustmix_ledger.continues", True, 0, ""),
    ],
    """SELECT proname::text, prosrc, lanname::text, prosecdef, proconfig
    FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
    WHERE pronamespace = 'clustmix_ledger'::regnamespace ORDER BY proname""": [
        ("continues", _CONTINUES, "plpgsql", False, ["search_path=pg_catalog"]),
        ("refuse", _REFUSE, "plpgsql", False, ["search_path=pg_catalog"]),
    ],
    """SELECT relname::text FROM pg_class
    WHERE relnamespace = 'clustmix_ledger'::regnamespace ORDER BY relname""": [
        ("journal",),
        ("journal_pkey",),
    ],
}


class PostgresJournal(Journal):
    """A journal on a server that is durable and proves its identity.

    Over a network that is ``sslmode=verify-full``. A malformed address, or one that asks for an
    unprotected connection, is a ConfigurationError. A server with ``fsync`` off, or a role without
    rights, is a LedgerError.

    If the connection is lost in a commit, nobody knows whether the commit took place: take the step
    as charged, and read the ledger again.
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
