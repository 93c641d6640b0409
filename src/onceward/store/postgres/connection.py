"""The connection to PostgreSQL: opening and setup, timeouts, and the translation of errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onceward.errors import InvalidStoreUrl, StoreClosed, StoreMisconfigured, StoreOverloaded, StoreUnavailable
from onceward.store import BatchFailed
from onceward.store.postgres.driver import (
    OPEN_SECONDS,
    DriverCursor,
    ResultRow,
    RunningStatement,
    TimeoutConnection,
    conninfo_to_dict,
    last_rows,
    psycopg,
)
from onceward.store.postgres.errors import is_overloaded, misconfiguration, one_line
from onceward.store.postgres.pooler import is_pooled, split_pooler
from onceward.store.postgres.roles import MISSING
from onceward.store.postgres.upgrade import ensure_tables, only

# Timeouts of a statement that waits for a lock, of a slow statement, and of a server that does not reply. They increase
# in this order, because only after the last one it is unknown whether the batch was applied.
LOCK_SECONDS = 2
STATEMENT_SECONDS = 4
REPLY_SECONDS = 5

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
_SETTINGS = f"""
SELECT set_config('statement_timeout', '{STATEMENT_SECONDS}s', {{is_local}}),
       set_config('lock_timeout', '{LOCK_SECONDS}s', {{is_local}}),
       set_config('jit', 'off', {{is_local}}),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, {{is_local}})
"""
_SESSION = f"{_SETTINGS.format(is_local='false')}, set_config('default_transaction_isolation', 'read committed', false)"
# Before each statement behind a pooler, in the same message: all of it is one transaction and one round trip.
_LOCAL = f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {_SETTINGS.format(is_local='true')};"

# SQLSTATE classes and codes after which nothing of the batch was applied and the connection is still usable.
_REFUSED_DATA = ("22", "23", "54")
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "57014"})

# Connections inherited through a fork. Closing one would end the parent's session, so they must not be collected.
_inherited: list[psycopg.Connection] = []


class PostgresConnection:
    """One connection, opened on first use and again after it was lost."""

    def __init__(self, url: str, lost: Callable[[], None]) -> None:
        url, self._pooler = split_pooler(url)
        self._parameters = _parameters(url)
        self._lost = lost  # called when a connection ends, because the result of a write may be lost with it
        self._closed = False
        self._dropped = False  # whether the connection, not the statement, caused the last failure
        self.driver: TimeoutConnection | None = None
        self._opened_by = os.getpid()  # the process that opened it
        self._cursor: DriverCursor | None = None

    def query(
        self, statement: str, arguments: tuple[object, ...], *, repeats: bool = False, prepare: bool = False
    ) -> list[ResultRow]:
        """Run a statement. With `repeats`, it is harmless to run twice and is retried after a lost connection."""
        repeats = repeats and self.driver is not None
        try:
            return self._query(statement, arguments, prepare)
        except StoreUnavailable:
            if not repeats or not self._dropped:
                raise
        return self._query(statement, arguments, prepare)

    def _query(self, statement: str, arguments: tuple[object, ...], prepare: bool) -> list[ResultRow]:
        with self._opened() as connection:
            cursor = self._cursor_of(connection)
            if connection.is_pooled:
                return self._fetched(last_rows(cursor.execute(_LOCAL + statement, arguments)))
            # Only calls of functions with plans of their own are prepared: a plan from when the tables were nearly empty
            # would read them whole when they have grown.
            return self._fetched(cursor.execute(statement, arguments, prepare=prepare).fetchall())

    def send_nowait(self, statement: str, arguments: tuple[object, ...]) -> RunningStatement:
        """Send a statement without waiting for its rows."""
        with self._opened() as connection:
            sql = _LOCAL + statement if connection.is_pooled else statement
            return RunningStatement(connection, self._cursor_of(connection), sql, arguments)

    def poll(self, running: RunningStatement) -> bool:
        with self._opened():
            return running.poll()

    def rows(self, running: RunningStatement) -> list[ResultRow]:
        with self._opened():
            return self._fetched(running.rows())

    def _cursor_of(self, connection: TimeoutConnection) -> DriverCursor:
        """Return the previous cursor, which still knows how to decode the rows of the same statement, or a new one."""
        if self._cursor is None:
            self._cursor = connection.new_cursor()
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
            cause = f"PostgreSQL: {type(error).__name__}: {one_line(reason)}"
            raise (StoreOverloaded if is_overloaded(state, reason) else StoreUnavailable)(cause) from None
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
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._opened_by = os.getpid()
        return connection

    def _prepare(self, connection: TimeoutConnection) -> None:
        """Detect a pooler, create or upgrade the tables if needed, and change the settings of the session."""
        connection.seconds = REPLY_SECONDS
        server_pid = only(connection.execute("SELECT pg_backend_pid()").fetchone())
        if is_pooled(self._pooler, connection.info.backend_pid, server_pid):
            connection.is_pooled = True
            connection.prepare_threshold = None
        connection.seconds = OPEN_SECONDS
        ensure_tables(connection)
        if not connection.is_pooled:
            connection.execute(_SESSION)
        connection.seconds = REPLY_SECONDS

    def drop(self) -> None:
        self._lost()
        connection, self.driver, self._cursor = self.driver, None, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """Forget a connection of the parent process, or close one of this process."""
        if self.driver is not None and self._opened_by != os.getpid():
            _inherited.append(self.driver)
            self.driver = self._cursor = None
        self.drop()

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
