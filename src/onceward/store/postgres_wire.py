"""The connection to PostgreSQL: opened and prepared, given up when it is silent, and its errors in our own words."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TypeAlias, TypeVar, cast

from onceward.errors import InvalidStoreUrl, StoreClosed, StoreUnavailable
from onceward.store import OLDEST_SCHEMA, SCHEMA_VERSION, BatchFailed, Schema

try:
    import psycopg
    from psycopg.abc import PQGen
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import TupleRow
    from psycopg.waiting import Ready, Wait
except ImportError as missing:
    raise InvalidStoreUrl("PostgreSQL stores need psycopg: pip install 'onceward[postgres]'") from missing


# A statement that waits for others gives up first, then one that is slow, and last we give up on the server itself.
# In this order, because only the last leaves open whether the batch was applied.
LOCK_SECONDS = 2
STATEMENT_SECONDS = 4
ANSWER_SECONDS = 5
# Opening may wait for another process that creates the tables.
OPEN_SECONDS = 20
# A change of the tables waits this long for others, who wait behind it, and then lets them pass.
_TABLE_LOCK_SECONDS = 1

_CONNECT = {
    "application_name": "onceward",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    # A server that vanished without a word is noticed even where nothing is asked of it.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": str(ANSWER_SECONDS * 1000),
}

# Settings a role or database may have changed. `read committed` is what lets each statement of a batch see what others
# have just committed; `synchronous_commit` may be stronger than `on`, but not weaker. The planner's settings give one
# plan for every batch, always through the primary key, whatever the statistics say at the moment. Set by a statement,
# because connection poolers refuse them in the connection string.
_SESSION = f"""
SELECT set_config('statement_timeout', '{STATEMENT_SECONDS}s', false),
       set_config('lock_timeout', '{LOCK_SECONDS}s', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_tidscan', 'on', false),
       set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)
"""
# By way of JSON, because the tables of schema 1 do not have all of these columns.
_SCHEMA = """
SELECT m.schema_version, (to_jsonb(m)->>'readable_from')::integer, (to_jsonb(m)->>'upgraded_to')::integer,
       to_regproc('onceward_commit_v4') IS NOT NULL
FROM platform_idempotency_meta m
"""
# Our advisory locks: the letters "once", and 1 for creating the schema, 2 (inside the functions) for insert and purge.
_LOCKS = 0x6F6E6365

# Classes and codes of errors after which nothing of the batch was applied and the connection is sound.
_REFUSED_DATA = ("22", "23", "54")
_LATER = frozenset({"40001", "40P01", "55P03", "57014"})

_T = TypeVar("_T")
Row: TypeAlias = TupleRow

# Connections inherited through a fork: closing one would end the parent's session, so nothing may collect them.
_inherited: list[psycopg.Connection] = []


class Connection(psycopg.Connection):
    """A connection that does not wait for ever: a frozen server still acknowledges packets, so no socket option helps."""

    seconds: float = OPEN_SECONDS
    departs: bool = False  # what is asked next is not waited for, but left here
    left: PQGen[None] | None = None

    def wait(self, gen: PQGen[_T], *_: object, **__: object) -> _T:
        """Psycopg's generators say what they wait for and are told what has come."""
        if self.departs:
            self.departs, self.left = False, cast("PQGen[None]", gen)
            return cast("_T", None)
        try:
            waits_for = next(gen)
        except StopIteration as end:
            return cast("_T", end.value)
        return self.go_on(gen, waits_for, self.seconds)

    def go_on(self, gen: PQGen[_T], waits_for: Wait, seconds: float) -> _T:
        deadline = time.monotonic() + seconds
        try:
            with selectors.DefaultSelector() as selector:
                watched = selector.register(self.pgconn.socket, waits_for)
                while True:
                    come = selector.select(deadline - time.monotonic())
                    if not come:
                        raise TimeoutError("the server does not answer")
                    waits_for = gen.send(come[0][1])
                    if waits_for != watched.events:
                        watched = selector.modify(watched.fd, waits_for)
        except StopIteration as end:
            return cast("_T", end.value)


class Asked:
    """A statement that the server works on."""

    __slots__ = ("_connection", "_cursor", "_deadline", "_gen", "_over", "_waits_for")

    def __init__(
        self, connection: Connection, cursor: psycopg.Cursor[Row], statement: str, arguments: tuple[object, ...]
    ) -> None:
        self._connection = connection
        self._cursor = cursor
        self._over = False
        self._deadline = time.monotonic() + connection.seconds
        connection.departs = True
        try:
            self._cursor.execute(statement, arguments, prepare=True)
            gen, connection.left = connection.left, None
        finally:
            connection.departs = False
        if gen is None:
            raise AssertionError("the driver asks for nothing to be waited for")
        self._gen = gen
        self._waits_for = next(gen)

    @property
    def stuck(self) -> bool:
        """More was to be sent than the network takes at once: one who can wait has to send the rest."""
        return bool(self._waits_for & Wait.W)

    def fileno(self) -> int:
        return self._connection.pgconn.socket

    def poll(self) -> bool:
        """Take in what has come; true when that is all."""
        try:
            self._waits_for = self._gen.send(Ready.R)
        except StopIteration:
            self._over = True
        return self._over

    def rows(self) -> list[Row]:
        """Waits for what has not come."""
        if not self._over:
            self._over = True
            self._connection.go_on(self._gen, self._waits_for, self._deadline - time.monotonic())
        return self._cursor.fetchall()


class Wire:
    """One connection, opened on first use and again after it was lost."""

    def __init__(self, url: str, lost: Callable[[], None]) -> None:
        self._parameters = _parameters(url)
        self._lost = lost  # called with a connection that ends: the answer to a write may be lost with it
        self._closed = False
        self.connection: Connection | None = None
        self._cursor: psycopg.Cursor[Row] | None = None

    def ask(self, statement: str, arguments: tuple[object, ...]) -> list[Row]:
        with self._speaking() as connection:
            return self._fetched(self._cursor_of(connection).execute(statement, arguments, prepare=True).fetchall())

    def depart(self, statement: str, arguments: tuple[object, ...]) -> Asked:
        """As `ask`, up to the wait."""
        with self._speaking() as connection:
            return Asked(connection, self._cursor_of(connection), statement, arguments)

    def poll(self, asked: Asked) -> bool:
        with self._speaking():
            return asked.poll()

    def rows(self, asked: Asked) -> list[Row]:
        with self._speaking():
            return self._fetched(asked.rows())

    def _cursor_of(self, connection: Connection) -> psycopg.Cursor[Row]:
        """The one before: of a statement that it had last it knows how to read what comes."""
        if self._cursor is None:
            self._cursor = connection.cursor(binary=True)
        return self._cursor

    def _fetched(self, rows: list[Row]) -> list[Row]:
        """A cursor keeps what it has read until it reads something else, which may be much."""
        if len(rows) > 1:
            self._cursor = None
        return rows

    @contextmanager
    def _speaking(self) -> Iterator[Connection]:
        """The open connection; whatever goes wrong leaves as one of our own exceptions."""
        try:
            if self.connection is None:
                self.connection = self._open()
            yield self.connection
        except UnicodeEncodeError as error:
            raise BatchFailed(f"PostgreSQL cannot store this text: {error.reason}") from error
        except TimeoutError as error:
            self.drop()
            raise StoreUnavailable("PostgreSQL does not answer") from error
        except psycopg.Error as error:
            state, reason = error.sqlstate or "", error.diag.message_primary or str(error)
            if state in _LATER:
                raise BatchFailed(f"PostgreSQL gave up on the batch: {reason}", transient=True) from error
            if state.startswith(_REFUSED_DATA) or (isinstance(error, psycopg.DataError) and not state):
                raise BatchFailed(f"PostgreSQL refused the data: {reason}") from error
            self.drop()
            # Not chained: whatever libpq says of a connection, the password stays out of logs.
            raise StoreUnavailable(f"PostgreSQL: {self._without_password(reason)}") from None
        except BaseException:
            # Interrupted in the middle, the connection may still carry the answer to this call.
            self.drop()
            raise

    def _without_password(self, reason: str) -> str:
        password = self._parameters.get("password")
        return reason.replace(password, "***") if password else reason

    def _open(self) -> Connection:
        if self._closed:
            raise StoreClosed("the PostgreSQL store is closed")
        connection = Connection.connect(**self._parameters, autocommit=True)  # type: ignore[arg-type]
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        connection.seconds = ANSWER_SECONDS
        return connection

    def drop(self) -> None:
        self._lost()
        connection, self.connection, self._cursor = self.connection, None, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        self._lost()
        if self.connection is not None:
            _inherited.append(self.connection)
            self.connection = self._cursor = None

    def close(self) -> None:
        self._closed = True
        self.drop()


def _parameters(url: str) -> dict[str, str]:
    """What libpq understands, checked before anything is opened. Messages never quote the URL: it has a password."""
    malformed = InvalidStoreUrl(
        "malformed PostgreSQL URL, or an unknown option in it; it looks like postgresql://user:password@host:5432/name"
    )
    if not url.startswith(("postgresql://", "postgres://")):
        raise malformed
    try:
        found = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except (psycopg.Error, UnicodeError):
        raise malformed from None
    if not all(number.isdecimal() and int(number) <= _NUMBER_MAX for number in _numbers(found)):
        raise malformed
    return _CONNECT | found


# The largest port; nobody waits longer than that for a connection, either.
_NUMBER_MAX = 65_535


def _numbers(found: dict[str, str]) -> list[str]:
    """What libpq would only find out when it connects. Several hosts may have a port each."""
    ports = [port for port in found.get("port", "").split(",") if port]
    return [*ports, found.get("connect_timeout", "0")]


def _prepare(connection: Connection) -> None:
    """Look first; create or upgrade what is missing, under a lock."""
    schema, complete = _schema(connection)
    schema.check()
    if not complete or not schema.is_current:
        _create(connection)
    connection.execute(_SESSION)


def _create(connection: Connection) -> None:
    """The lock outlives the transaction on purpose: one begun before the lock was ours would still believe what its
    catalogue cache says, that there is no such table. Should anything fail, closing the connection gives it back.
    """
    connection.execute(f"SET lock_timeout = '{OPEN_SECONDS}s'")
    connection.execute("SELECT pg_advisory_lock(%s, 1)", (_LOCKS,))
    schema, complete = _schema(connection)
    schema.check()
    if not complete or not schema.is_current:
        _patiently(lambda: _upgrade(connection, schema, complete=complete))
    connection.execute("SELECT pg_advisory_unlock(%s, 1)", (_LOCKS,))


def _upgrade(connection: Connection, schema: Schema, *, complete: bool) -> None:
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_TABLE_LOCK_SECONDS}s'")
        if schema.upgraded_to == 0:
            connection.execute(_script("postgres.sql"))
            connection.execute("INSERT INTO platform_idempotency_meta VALUES (1, %s)", (OLDEST_SCHEMA,))
        if not schema.is_current:
            connection.execute(_script("postgres_schema2.sql"))
            connection.execute(
                "UPDATE platform_idempotency_meta SET readable_from = %s, upgraded_to = %s",
                (max(schema.readable_from, OLDEST_SCHEMA), SCHEMA_VERSION),
            )
        if not complete:
            connection.execute(_script("postgres_commit.sql"))


def _patiently(step: Callable[[], None]) -> None:
    """Repeat a step that did not get its lock on a table in use. Everyone else queues behind a lock that is waited for."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return step()
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > deadline:
                raise


def _script(name: str) -> bytes:
    return resources.files("onceward.store").joinpath(name).read_bytes()


def _schema(connection: Connection) -> tuple[Schema, bool]:
    """The numbers of the tables; and whether the function is there that we call."""
    if not _only(connection.execute("SELECT to_regclass('platform_idempotency_meta') IS NOT NULL").fetchone()):
        return Schema(), False
    row = connection.execute(_SCHEMA).fetchone()
    if row is None:
        raise AssertionError("the ledger's table of numbers is empty")
    return Schema.stored(*row[:3]), row[3]


def _only(row: TupleRow | None) -> int:
    if row is None:
        raise AssertionError("a query for one value gave no row")
    value: int = row[0]
    return value
