"""The journal of the ledger in PostgreSQL, for installations that share a ledger.

The rows, the hash chain and the rules of the triggers are those of the SQLite journal. The table is
``clustmix_ledger.journal`` in a database of its own; its owner is whoever connects first. Pipelines
connect as a role that may only read and append::

    GRANT USAGE ON SCHEMA clustmix_ledger TO pipeline;
    GRANT SELECT, INSERT ON clustmix_ledger.journal TO pipeline;

UPDATE, DELETE, TRUNCATE and an INSERT that does not continue the chain are refused for every role,
the owner and superusers included, as long as the triggers are in force; every write and every
verification checks that they are. The password of the URL is a secret: no message, representation
or exception holds anything that the driver says about the connection.
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, NoReturn

import psycopg
from psycopg import conninfo

from privacy.errors import ConfigurationError, LedgerError
from storage.ledger.journal_rows import COLUMNS, JournalTransaction, T, schema_damaged

TIMEOUT_SECONDS = 30
"""How long an operation waits for another one that writes, and for a server that went silent."""

URL_SCHEMES = ("postgresql://", "postgres://")

# One lock for one ledger: whoever writes holds it until the commit, and the next one, whose
# statements each see what was committed before them (READ COMMITTED), then reads all of it. LOCK
# TABLE would do the same but asks for the right to UPDATE.
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

_COLUMNS = ",\n    ".join(
    f"{name} text{' NOT NULL' if required else ''}"
    for name, required in COLUMNS.items()
    if name != "sequence"
)

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
_CREATE = (
    f"CREATE TABLE clustmix_ledger.journal (\n    sequence bigint PRIMARY KEY,\n    {_COLUMNS}\n)",
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

# What the catalogue must say about the journal, question by question. A permanent table without
# row security, which could hide rows, and without rules or heirs; bits of tgtype: row 1, before 2,
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

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM clustmix_ledger.journal ORDER BY sequence"  # noqa: S608
_INSERT = (
    f"INSERT INTO clustmix_ledger.journal ({', '.join(COLUMNS)}) "  # noqa: S608
    f"VALUES ({', '.join(['%s'] * len(COLUMNS))})"
)


class SecretUrl:
    """The ``postgresql://`` address of a database, whose password no representation shows."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def __repr__(self) -> str:
        return "SecretUrl('**********')"

    def __reduce__(self) -> NoReturn:
        """Refuse to be written into a pickle."""
        raise LedgerError(
            "SECRET_NOT_COPIED",
            "expected the address of the ledger to stay in its process; read CLUSTMIX_LEDGER_URL "
            "where it is needed",
        )

    def reveal(self) -> str:
        """Return the address."""
        return self._url


class PostgresJournal:
    """A journal in a PostgreSQL database.

    Every transaction opens its own connection, so an instance may be used by several threads and
    by forked processes. A commit is on the server's disk when the call returns
    (``synchronous_commit``; a server with ``fsync`` off is refused).

    Over a network the server must prove who it is: ``sslmode=verify-full``. An address that is
    malformed or asks for an unprotected connection is a ConfigurationError, a server that cannot be
    used, or a journal that is not there and may not be created, a LedgerError, and one that is not
    as it was created an IntegrityError.
    """

    def __init__(self, url: SecretUrl) -> None:
        problem = _problem_with(url)
        if problem is not None:
            raise ConfigurationError("LEDGER_URL_INVALID", problem)
        self._url = url
        if not self._transact(_is_created, write=False):
            self._transact(_create, write=True)
        self.transact(lambda transaction: transaction.check_schema(), write=False)

    def transact(self, work: Callable[[JournalTransaction], T], *, write: bool) -> T:
        """Return the result of `work`, as `storage.ledger.journal.SqliteJournal.transact` does.

        It is a LedgerError if the server cannot be used. If the connection was lost in a commit
        nobody knows whether it took place: what was asked for must be taken as charged, and the
        ledger read again.
        """
        return self._transact(lambda connection: work(_Transaction(connection)), write=write)

    def _transact(self, work: Callable[[psycopg.Connection[Any]], T], *, write: bool) -> T:
        try:
            connection = psycopg.connect(
                self._url.reveal(),
                autocommit=True,
                connect_timeout=TIMEOUT_SECONDS,
                application_name="clustmix-ledger",
                client_encoding="utf8",
                # A standby may lag behind, and what it does not know yet would be spent again.
                target_session_attrs="read-write",
                tcp_user_timeout=TIMEOUT_SECONDS * 1000,
            )
            try:
                _begin(connection, write=write)
                result = work(connection)
                connection.execute("COMMIT")
                return result
            finally:
                # Closing undoes a transaction that was not committed.
                connection.close()
        except psycopg.Error as error:
            found = f"{type(error).__name__} {error.sqlstate or 'without SQLSTATE'}"
        # Raised here and not above: the driver's exception is no context of this one.
        raise LedgerError(
            "LEDGER_UNAVAILABLE",
            f"expected the PostgreSQL ledger to answer within {TIMEOUT_SECONDS} seconds, found "
            f"{found}; see the log of the server. Whether a step that was under way is recorded is "
            "not known: take it as charged and read the ledger again",
        )


class _Transaction:
    """The journal inside one transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def check_schema(self) -> None:
        if not _is_created(self._connection):
            raise schema_damaged()
        for question, answer in _CATALOGUE.items():
            if self._connection.execute(question).fetchall() != answer:
                raise schema_damaged()

    def rows(self) -> list[tuple[Any, ...]]:
        return self._connection.execute(_SELECT).fetchall()

    def clock(self) -> str:
        return read_clock(self._connection)

    def insert(self, row: tuple[Any, ...]) -> None:
        self._connection.execute(_INSERT, row)


def read_clock(connection: psycopg.Connection[Any]) -> str:
    """Return the time by the clock of the database, UTC, as the journal writes it."""
    now = connection.execute(
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', "
        """'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
    ).fetchone()
    return str(now[0]) if now is not None else ""


def _begin(connection: psycopg.Connection[Any], *, write: bool) -> None:
    connection.execute(_BEGIN_WRITE if write else _BEGIN_READ)
    if connection.execute("SELECT current_setting('fsync')").fetchone() != ("on",):
        raise LedgerError(
            "LEDGER_NOT_DURABLE",
            "expected a PostgreSQL server with fsync on, found it off: a power cut would forget "
            "charges; set fsync = on",
        )
    if write:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def _is_created(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute("SELECT to_regclass('clustmix_ledger.journal') IS NOT NULL")
    return found.fetchone() == (True,)


def _create(connection: psycopg.Connection[Any]) -> None:
    """Create the journal, unless another process has done so in the meantime."""
    if _is_created(connection):
        return
    if connection.execute("SELECT to_regnamespace('clustmix_ledger')").fetchone() == (None,):
        connection.execute("CREATE SCHEMA clustmix_ledger")
    for statement in _CREATE:
        connection.execute(statement)


def _problem_with(url: SecretUrl) -> str | None:
    """Return what is wrong with an address, in words that hold nothing of it."""
    if not url.reveal().startswith(URL_SCHEMES):
        return (
            "expected the address of the ledger to begin with postgresql://; a ledger in a file is "
            "given as a path"
        )
    try:
        settings = conninfo.conninfo_to_dict(url.reveal())
    except (psycopg.Error, ValueError):
        return (
            "expected an address like postgresql://role@host:5432/database, found one that cannot "
            "be read; percent-encode what a password has besides letters and digits"
        )
    hosts = [
        host
        for name in ("host", "hostaddr")
        for host in str(settings.get(name) or "").split(",")
        if host and not _is_local(host)
    ]
    if hosts and settings.get("sslmode") != "verify-full":
        return (
            "expected sslmode=verify-full for a ledger on another host; without it another server "
            "could answer in its place"
        )
    return None


def _is_local(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
