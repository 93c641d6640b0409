"""The connection to PostgreSQL: opening and setup, timeouts, and the translation of errors."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TypeAlias, TypeVar, cast

from onceward.errors import InvalidStoreUrl, StoreClosed, StoreMisconfigured, StoreUnavailable, install_command
from onceward.store import OLDEST_SCHEMA, SCHEMA_VERSION, BatchFailed, Schema
from onceward.store.postgres.errors import misconfiguration, one_line
from onceward.store.postgres.roles import MISSING

try:
    import psycopg
    from psycopg.abc import PQGen
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import TupleRow
    from psycopg.waiting import Ready, Wait
except ImportError as missing:
    raise InvalidStoreUrl(f"PostgreSQL stores need psycopg: {install_command('postgres')}") from missing


# Timeouts of a statement that waits for a lock, of a slow statement, and of a server that does not reply. They increase
# in this order, because only after the last one it is unknown whether the batch was applied.
LOCK_SECONDS = 2
STATEMENT_SECONDS = 4
REPLY_SECONDS = 5
# Opening may wait for another process that creates the tables.
OPEN_SECONDS = 20
# A change of the tables waits this long for its lock. Other sessions queue behind it, so it then gives up and retries.
_TABLE_LOCK_SECONDS = 1

_CONNECT = {
    "application_name": "onceward",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    # Detect a server that disappeared, even while the connection is idle.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": str(REPLY_SECONDS * 1000),
}

# Settings that a role or database may have changed. With `read committed`, each statement of a batch sees what others
# have just committed. `synchronous_commit` may be stronger than `on`, but not weaker. They are set by a statement,
# because connection poolers refuse them in the connection string. Settings of the planner belong to the functions.
_SESSION = f"""
SELECT set_config('statement_timeout', '{STATEMENT_SECONDS}s', false),
       set_config('lock_timeout', '{LOCK_SECONDS}s', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('jit', 'off', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)
"""
# Through JSON, because the tables of schema 1 do not have all of these columns.
_SCHEMA = """
SELECT m.schema_version, (to_jsonb(m)->>'readable_from')::integer, (to_jsonb(m)->>'upgraded_to')::integer,
       to_regproc('onceward_commit_v7') IS NOT NULL
FROM platform_idempotency_meta m
"""
# The advisory locks: the letters "once", with 1 for schema changes and 2 (inside the functions) for insert and purge.
_LOCKS = 0x6F6E6365

# SQLSTATE classes and codes after which nothing of the batch was applied and the connection is still usable.
_REFUSED_DATA = ("22", "23", "54")
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "57014"})

_T = TypeVar("_T")
ResultRow: TypeAlias = TupleRow

# Connections inherited through a fork. Closing one would end the parent's session, so they must not be collected.
_inherited: list[psycopg.Connection] = []


class TimeoutConnection(psycopg.Connection):
    """A connection with a timeout. Socket options do not help, because a frozen server still acknowledges packets."""

    seconds: float = OPEN_SECONDS
    defer_next: bool = False  # do not wait for the next statement, but leave its generator in `deferred`
    deferred: PQGen[None] | None = None

    def wait(self, gen: PQGen[_T], *_: object, **__: object) -> _T:
        """Run a generator of psycopg, which yields what it waits for and is sent what is ready."""
        if self.defer_next:
            self.defer_next, self.deferred = False, cast("PQGen[None]", gen)
            return cast("_T", None)
        try:
            waits_for = next(gen)
        except StopIteration as end:
            return cast("_T", end.value)
        return self.resume(gen, waits_for, self.seconds)

    def resume(self, gen: PQGen[_T], waits_for: Wait, seconds: float) -> _T:
        deadline = time.monotonic() + seconds
        try:
            with selectors.DefaultSelector() as selector:
                watched = selector.register(self.pgconn.socket, waits_for)
                while True:
                    ready = selector.select(deadline - time.monotonic())
                    if not ready:
                        raise TimeoutError("the server does not respond")
                    waits_for = gen.send(ready[0][1])
                    if waits_for != watched.events:
                        watched = selector.modify(watched.fd, waits_for)
        except StopIteration as end:
            return cast("_T", end.value)


class RunningStatement:
    """A statement that was sent to the server and is not finished."""

    __slots__ = ("_cursor", "_deadline", "_driver", "_gen", "_over", "_waits_for")

    def __init__(
        self, driver: TimeoutConnection, cursor: psycopg.Cursor[ResultRow], sql: str, arguments: tuple[object, ...]
    ) -> None:
        self._driver = driver
        self._cursor = cursor
        self._over = False
        self._deadline = time.monotonic() + driver.seconds
        driver.defer_next = True
        try:
            self._cursor.execute(sql, arguments, prepare=True)
            gen, driver.deferred = driver.deferred, None
        finally:
            driver.defer_next = False
        if gen is None:
            raise AssertionError("the driver returned without waiting for the statement")
        self._gen = gen
        self._waits_for = next(gen)

    @property
    def must_block(self) -> bool:
        """True if the statement was only partly sent, so that a thread that can wait has to send the rest."""
        return bool(self._waits_for & Wait.W)

    def fileno(self) -> int:
        return self._driver.pgconn.socket

    def poll(self) -> bool:
        """Read what has arrived; return whether that is all."""
        try:
            self._waits_for = self._gen.send(Ready.R)
        except StopIteration:
            self._over = True
        return self._over

    def rows(self) -> list[ResultRow]:
        """Return the rows, waiting for those that have not arrived."""
        if not self._over:
            self._over = True
            self._driver.resume(self._gen, self._waits_for, self._deadline - time.monotonic())
        return self._cursor.fetchall()


class PostgresConnection:
    """One connection, opened on first use and again after it was lost."""

    def __init__(self, url: str, lost: Callable[[], None]) -> None:
        self._parameters = _parameters(url)
        self._lost = lost  # called when a connection ends, because the result of a write may be lost with it
        self._closed = False
        self._dropped = False  # whether the connection, not the statement, caused the last failure
        self.driver: TimeoutConnection | None = None
        self._cursor: psycopg.Cursor[ResultRow] | None = None

    def query(self, statement: str, arguments: tuple[object, ...], *, repeats: bool = False) -> list[ResultRow]:
        """Run a statement. With `repeats`, it is harmless to run twice and is retried after a lost connection."""
        repeats = repeats and self.driver is not None
        try:
            return self._query(statement, arguments)
        except StoreUnavailable:
            if not repeats or not self._dropped:
                raise
        return self._query(statement, arguments)

    def _query(self, statement: str, arguments: tuple[object, ...]) -> list[ResultRow]:
        with self._opened() as connection:
            # Not prepared: a plan from when the tables were nearly empty would read them whole when they have grown.
            return self._fetched(self._cursor_of(connection).execute(statement, arguments, prepare=False).fetchall())

    def send_nowait(self, statement: str, arguments: tuple[object, ...]) -> RunningStatement:
        """Send a statement without waiting for its rows."""
        with self._opened() as connection:
            return RunningStatement(connection, self._cursor_of(connection), statement, arguments)

    def poll(self, running: RunningStatement) -> bool:
        with self._opened():
            return running.poll()

    def rows(self, running: RunningStatement) -> list[ResultRow]:
        with self._opened():
            return self._fetched(running.rows())

    def _cursor_of(self, connection: TimeoutConnection) -> psycopg.Cursor[ResultRow]:
        """Return the previous cursor, which still knows how to decode the rows of the same statement, or a new one."""
        if self._cursor is None:
            self._cursor = connection.cursor(binary=True)
        return self._cursor

    def _fetched(self, rows: list[ResultRow]) -> list[ResultRow]:
        """Drop a cursor that has fetched several rows: it would keep them in memory until its next statement."""
        if len(rows) > 1:
            self._cursor = None
        return rows

    def check(self) -> None:
        """Raise `StoreMisconfigured` if this role lacks a privilege that the store needs."""
        ((missing,),) = self.query(MISSING, (), repeats=True)
        if missing is not None:
            wrong = misconfiguration("42501", f"this role lacks {missing}", "--ledger")
            raise StoreMisconfigured(str(wrong))

    def run(self, script: str) -> None:
        """Run a script of statements that return no rows."""
        with self._opened() as connection:
            connection.execute(script.encode())

    @contextmanager
    def _opened(self) -> Iterator[TimeoutConnection]:
        """Yield the open connection, and translate errors into exceptions of the store contract."""
        self._dropped = False
        try:
            if self.driver is None:
                self.driver = self._open()
            yield self.driver
        except UnicodeEncodeError as error:
            raise BatchFailed(f"PostgreSQL cannot store this text: {error.reason}") from error
        except TimeoutError as error:
            self.drop()
            raise StoreUnavailable("PostgreSQL does not respond") from error
        except psycopg.Error as error:
            state, reason = error.sqlstate or "", error.diag.message_primary or str(error)
            if state in _TRANSIENT:
                raise BatchFailed(f"PostgreSQL cancelled the batch: {reason}", transient=True) from error
            if state.startswith(_REFUSED_DATA) or (isinstance(error, psycopg.DataError) and not state):
                raise BatchFailed(f"PostgreSQL refused the data: {reason}") from error
            self.drop()
            self._dropped = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            # Not chained: a message of libpq about a connection could put the password into logs.
            reason = self._without_password(reason)
            wrong = misconfiguration(state, reason, "--ledger")
            if wrong is not None:
                raise StoreMisconfigured(wrong) from None
            raise StoreUnavailable(f"PostgreSQL: {type(error).__name__}: {one_line(reason)}") from None
        except BaseException:
            # After an interrupt, the result of this call may still arrive on the connection.
            self.drop()
            raise

    def _without_password(self, reason: str) -> str:
        password = self._parameters.get("password")
        return reason.replace(password, "***") if password else reason

    def _open(self) -> TimeoutConnection:
        if self._closed:
            raise StoreClosed("the PostgreSQL store is closed")
        try:
            connection = TimeoutConnection.connect(**self._parameters, autocommit=True)  # type: ignore[arg-type]
        except UnicodeError:
            raise StoreMisconfigured("the host in the PostgreSQL URL is not a valid host name; correct it") from None
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        connection.seconds = REPLY_SECONDS
        return connection

    def drop(self) -> None:
        self._lost()
        connection, self.driver, self._cursor = self.driver, None, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        self._lost()
        if self.driver is not None:
            _inherited.append(self.driver)
            self.driver = self._cursor = None

    def close(self) -> None:
        self._closed = True
        self.drop()


def _parameters(url: str) -> dict[str, str]:
    """Parse a URL into parameters of libpq. Messages never quote the URL, which may contain a password."""
    malformed = InvalidStoreUrl(
        "the PostgreSQL URL is malformed or has an unknown option; write postgresql://user:password@host:5432/name"
    )
    # SQLAlchemy's form names the driver, which is the one used here.
    url = url.replace("postgresql+psycopg://", "postgresql://", 1)
    if not url.startswith(("postgresql://", "postgres://")):
        raise malformed
    try:
        found = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except (psycopg.Error, UnicodeError):
        raise malformed from None
    if not all(number.isdecimal() and int(number) <= _NUMBER_MAX for number in _numbers(found)):
        raise malformed
    return _CONNECT | found


# The largest port, and more seconds than any sensible timeout.
_NUMBER_MAX = 65_535


def _numbers(found: dict[str, str]) -> list[str]:
    """Return the numbers that libpq would check only when it connects. Each of several hosts may have a port."""
    ports = [port for port in found.get("port", "").split(",") if port]
    return [*ports, found.get("connect_timeout", "0")]


def _prepare(connection: TimeoutConnection) -> None:
    """Create or upgrade the tables if needed, then change the session settings."""
    schema, complete = _schema(connection)
    schema.check()
    if not complete or not schema.is_current:
        _create(connection)
    connection.execute(_SESSION)


def _create(connection: TimeoutConnection) -> None:
    """Create or upgrade the tables under an advisory lock of the session.

    A lock of the transaction would not be enough: a transaction that began before it got the lock would still use its
    catalog cache, in which the tables are missing. If anything fails, closing the connection releases the lock.
    """
    connection.execute(f"SET lock_timeout = '{OPEN_SECONDS}s'")
    connection.execute("SELECT pg_advisory_lock(%s, 1)", (_LOCKS,))
    schema, complete = _schema(connection)
    schema.check()
    if not complete or not schema.is_current:
        _retry_while_locked(lambda: _upgrade(connection, schema, complete=complete))
    connection.execute("SELECT pg_advisory_unlock(%s, 1)", (_LOCKS,))


def _upgrade(connection: TimeoutConnection, schema: Schema, *, complete: bool) -> None:
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_TABLE_LOCK_SECONDS}s'")
        if schema.upgraded_to == 0:
            connection.execute(_script("schema.sql"))
            connection.execute("INSERT INTO platform_idempotency_meta VALUES (1, %s)", (OLDEST_SCHEMA,))
        if not schema.is_current:
            connection.execute(_script("schema_2.sql"))
            connection.execute(
                "UPDATE platform_idempotency_meta SET readable_from = %s, upgraded_to = %s",
                (max(schema.readable_from, OLDEST_SCHEMA), SCHEMA_VERSION),
            )
        if not complete:
            connection.execute(_script("commit.sql"))


def create_tables(connection: TimeoutConnection) -> None:
    """Create the tables in an empty database. `connection` may be one that only records the statements."""
    _upgrade(connection, Schema(), complete=False)


def _retry_while_locked(step: Callable[[], None]) -> None:
    """Repeat a step that did not get a table lock. Each try is short, because other sessions queue behind it."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return step()
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > deadline:
                raise


def _script(name: str) -> bytes:
    return resources.files("onceward.store.postgres").joinpath(name).read_bytes()


def _schema(connection: TimeoutConnection) -> tuple[Schema, bool]:
    """Return the schema numbers, and whether the commit function exists."""
    if not _only(connection.execute("SELECT to_regclass('platform_idempotency_meta') IS NOT NULL").fetchone()):
        return Schema(), False
    row = connection.execute(_SCHEMA).fetchone()
    if row is None:
        raise AssertionError("the table platform_idempotency_meta is empty")
    return Schema.stored(*row[:3]), row[3]


def _only(row: TupleRow | None) -> int:
    if row is None:
        raise AssertionError("a query for one value returned no row")
    value: int = row[0]
    return value
