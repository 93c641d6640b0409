"""The caller's own connection, as `bind` uses it: run a statement, and tell whether the transaction is open.

Each kind is recognised by the module of its class, so that none of those packages is imported here.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onceward.errors import InvalidOption

Rows: TypeAlias = Sequence[Sequence[Any]]

SQLITE = "sqlite"
POSTGRES = "postgresql"

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


@dataclass(frozen=True, slots=True)
class CallerConnection:
    """The operations of a caller's connection that binding needs."""

    execute: Callable[[str, Mapping[str, object]], Any]
    in_transaction: Callable[[], bool]
    is_async: bool
    driver: Callable[[], Any]  # the connection of the driver underneath
    # Mark the statements up to now. The result tells whether the open transaction still contains them. None: the
    # package does not report it when a savepoint is rolled back.
    mark: Callable[[], Callable[[], bool]] | None = None


def caller_connection(connection: object, dialect: str) -> CallerConnection:
    """Recognise a connection, or raise `InvalidOption` with the supported ones."""
    packages = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    if isinstance(connection, sqlite3.Connection) and dialect == SQLITE:
        return _of_sqlite3(connection)
    if "psycopg" in packages and dialect == POSTGRES:
        return _of_psycopg(connection)
    if "asyncpg" in packages and dialect == POSTGRES:
        return _of_asyncpg(connection)
    if "django" in packages:
        return _of_django(connection, dialect)
    if "sqlalchemy" in packages:
        return _of_sqlalchemy(connection, dialect)
    raise InvalidOption(
        f"bind() does not support a {type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"
        f" with a ledger on {dialect}; it supports {'sqlite3' if dialect == SQLITE else 'psycopg and asyncpg'}"
        " connections, SQLAlchemy's Connection, Session, AsyncConnection and AsyncSession, and Django's connection"
    )


def _of_sqlite3(connection: sqlite3.Connection) -> CallerConnection:
    def execute(sql: str, values: Mapping[str, object]) -> Rows:
        cursor = connection.cursor()
        cursor.row_factory = None  # the caller's factory may return anything
        return cursor.execute(sql, dict(values)).fetchall()

    return CallerConnection(execute, lambda: _open_sqlite(connection), is_async=False, driver=lambda: connection)


def _open_sqlite(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # the connection is closed, so the transaction has ended
        return False


def _of_psycopg(connection: Any) -> CallerConnection:
    is_async = any(kind.__name__ == "AsyncConnection" for kind in type(connection).__mro__)

    def cursor() -> Any:
        # Rows must be tuples, whatever the connection's default is. The connection exists, so the module is imported.
        return connection.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)

    def execute(sql: str, values: Mapping[str, object]) -> Rows:
        rows: Rows = cursor().execute(_PARAMETER.sub(r"%(\1)s", sql), values).fetchall()
        return rows

    async def aexecute(sql: str, values: Mapping[str, object]) -> Rows:
        found = await cursor().execute(_PARAMETER.sub(r"%(\1)s", sql), values)
        rows: Rows = await found.fetchall()
        return rows

    def in_transaction() -> bool:
        return not connection.closed and driver_in_transaction(connection)

    return CallerConnection(aexecute if is_async else execute, in_transaction, is_async, lambda: connection)


def driver_in_transaction(driver: Any) -> bool:
    """Return whether the driver's own connection is in a transaction; true if the driver does not report it."""
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is not None:  # psycopg
        idle = 0  # libpq's PQTRANS_IDLE
        return bool(status != idle)
    return bool(getattr(driver, "in_transaction", True))  # sqlite3, aiosqlite


def _of_sqlalchemy(connection: Any, dialect: str) -> CallerConnection:
    text = sys.modules["sqlalchemy"].text
    is_async = any(kind.__name__ in {"AsyncConnection", "AsyncSession"} for kind in type(connection).__mro__)
    engine = connection.get_bind() if hasattr(connection, "get_bind") else connection
    if engine.dialect.name != dialect:
        raise InvalidOption(f"bind() got a connection to {engine.dialect.name}; this ledger is on {dialect}")

    def execute(sql: str, values: Mapping[str, object]) -> Rows:
        found = connection.execute(text(sql), dict(values))
        rows: Rows = found.all() if found.returns_rows else ()
        return rows

    async def aexecute(sql: str, values: Mapping[str, object]) -> Rows:
        found = await connection.execute(text(sql), dict(values))
        rows: Rows = found.all() if found.returns_rows else ()
        return rows

    def driver() -> Any:
        sync = getattr(connection, "sync_connection", None) or getattr(connection, "sync_session", connection)
        own = sync.connection() if hasattr(sync, "get_bind") else sync  # the connection of a session
        return own.connection.driver_connection

    return CallerConnection(aexecute if is_async else execute, connection.in_transaction, is_async, driver)


def _of_asyncpg(connection: Any) -> CallerConnection:
    async def execute(sql: str, values: Mapping[str, object]) -> Rows:
        numbered, used = _numbered(sql)
        rows: Rows = await connection.fetch(numbered, *(values[name] for name in used))
        return rows

    def in_transaction() -> bool:
        try:
            return not connection.is_closed() and bool(connection.is_in_transaction())
        except sys.modules["asyncpg"].InterfaceError:  # it was released to its pool, which ends the transaction
            return False

    return CallerConnection(execute, in_transaction, is_async=True, driver=lambda: connection)


def _numbered(sql: str) -> tuple[str, list[str]]:
    """Return the statement with `$1`, `$2` … for its named parameters, and the names in this order."""
    names = list(dict.fromkeys(_PARAMETER.findall(sql)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql), names


def _of_django(connection: Any, dialect: str) -> CallerConnection:
    # `django.db.connection` stands for another connection on each thread, so keep the one of this thread.
    is_proxy = type(connection).__name__ == "ConnectionProxy"
    own = sys.modules["django.db"].connections[connection.alias] if is_proxy else connection
    if own.vendor != dialect:
        raise InvalidOption(f"bind() got a connection to {own.vendor}; this ledger is on {dialect}")
    _check_atomic(own)
    # Django forgets the hooks of a transaction when it ends, and those of a savepoint when it is rolled back. So a hook
    # that does nothing tells one transaction from the next, which on the shared thread of async code may be that of
    # another request.
    is_bound = _mark_django(own)
    # In a nested block, only the outermost block tells whether the transaction goes on after a savepoint was rolled back.
    outermost = own.atomic_blocks[0] if own.savepoint_ids else None

    def execute(sql: str, values: Mapping[str, object]) -> Rows:
        _check_thread(own)
        with own.cursor() as cursor:
            cursor.execute(_PARAMETER.sub(r"%(\1)s", sql), dict(values))
            rows: Rows = cursor.fetchall() if cursor.description else ()
            return rows

    def in_transaction() -> bool:
        goes_on = outermost is not None and own.in_atomic_block and outermost in own.atomic_blocks
        return (is_bound() or goes_on) and _is_open(own.connection)

    return CallerConnection(
        execute, in_transaction, is_async=False, driver=lambda: own.connection, mark=lambda: _mark_django(own)
    )


def _check_atomic(own: Any) -> None:
    _check_thread(own)
    if not own.in_atomic_block:
        raise InvalidOption(
            "bind() needs an open transaction.atomic() block of Django on this thread; in async code, open the block and"
            " call bind() in one function that sync_to_async runs"
        )
    if not own.commit_on_exit:
        raise InvalidOption(
            "bind() needs an atomic block that commits when it ends, but autocommit is off for this connection of Django"
        )


def _check_thread(own: Any) -> None:
    try:
        own.validate_thread_sharing()
    except sys.modules["django.db"].DatabaseError as error:
        raise InvalidOption(f"bind() needs the connection of this thread: {error}") from error


def _mark_django(own: Any) -> Callable[[], bool]:
    def hook() -> None:
        """Do nothing: only its presence counts."""

    own.on_commit(hook)
    return lambda: any(function is hook for _, function, *_ in tuple(own.run_on_commit))


def _is_open(driver: Any) -> bool:
    if driver is None or getattr(driver, "closed", False):
        return False
    return _open_sqlite(driver) if isinstance(driver, sqlite3.Connection) else driver_in_transaction(driver)
