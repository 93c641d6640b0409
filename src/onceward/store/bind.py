"""Bound claims: the ledger's SQL statements inside a caller's own transaction.

The caller passes its connection: of `sqlite3` or psycopg (sync or async), or an SQLAlchemy Connection or Session and
their async forms. They are recognised by the module of their class, so that none of those packages is imported here.
The steps are generators that yield statements and receive rows, so that sync and async callers share the same code.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from onceward.core.claim import EVER, Entry
from onceward.core.key import shown
from onceward.core.outcome import Outcome
from onceward.core.timestamp import to_text
from onceward.errors import ClaimLost, InvalidOption, StoreUnavailable, TransactionConflict
from onceward.store import Clock

Rows: TypeAlias = Sequence[Sequence[Any]]
Steps: TypeAlias = Generator[tuple[str, Mapping[str, object]], Rows, object]

SQLITE = "sqlite"
POSTGRES = "postgresql"

# An update that changes nothing takes the write lock of the file.
_LOCK_SQLITE = (
    "UPDATE platform_idempotency_keys SET write_id = write_id"
    " WHERE scope = :scope AND key = :key AND version = :version AND status IN ('in_progress', 'in_doubt') RETURNING 1"
)
_LOCK_POSTGRES = (
    "SELECT CAST(pg_current_xact_id() AS text) FROM platform_idempotency_keys"
    " WHERE scope = :scope AND key = :key AND version = :version AND status IN ('in_progress', 'in_doubt')"
    " FOR NO KEY UPDATE"
)
_SETTLE_SQLITE = (
    "UPDATE platform_idempotency_keys SET status = 'completed', write_id = :write_id, completed_at = :now,"
    " expires_at = :expires_at, refuse_until = :refuse_until, note = '', response_status = :code, response_headers = :headers,"
    " response_body = :body, response_chunks = :chunks"
    " WHERE scope = :scope AND key = :key AND version = :version AND status IN ('in_progress', 'in_doubt') RETURNING 1"
)
# A pinned clock passes its own time. Otherwise the server's clock is used.
_NOW_POSTGRES = "coalesce(timestamptz 'epoch' + CAST(:now AS bigint) * interval '1 microsecond', clock_timestamp())"
_SETTLE_POSTGRES = (
    "UPDATE platform_idempotency_keys SET status = 'completed', write_id = CAST(:write_id AS text),"  # noqa: S608
    f" completed_at = {_NOW_POSTGRES},"
    f" expires_at = {_NOW_POSTGRES} + CAST(:expires AS bigint) * interval '1 microsecond',"
    f" refuse_until = {_NOW_POSTGRES} + CAST(:refuse AS bigint) * interval '1 microsecond',"
    " note = '', response_status = CAST(:code AS integer), response_headers = CAST(:headers AS text),"
    " response_body = CAST(:body AS bytea), response_chunks = CAST(:chunks AS integer)"
    " WHERE scope = CAST(:scope AS text) AND key = CAST(:key AS text) AND version = CAST(:version AS bigint)"
    " AND status IN ('in_progress', 'in_doubt') RETURNING CAST(pg_current_xact_id() AS text)"
)
_CHUNK = (
    "INSERT INTO platform_idempotency_chunks (scope, key, seq, data) VALUES (:scope, :key, :seq, :data) RETURNING 1"
)
_ISOLATION = "SELECT current_setting('transaction_isolation')"
ENDED = "the transaction that the claim was bound to has ended; settle before the commit, so that both commit together"
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


@dataclass(frozen=True, slots=True)
class CallerConnection:
    """The operations of a caller's connection that binding needs."""

    execute: Callable[[str, Mapping[str, object]], Any]
    in_transaction: Callable[[], bool]
    is_async: bool
    driver: Callable[[], Any]  # the connection of the driver underneath


@dataclass(frozen=True, slots=True)
class BoundConnection:
    """The statements of one claim in one transaction of the caller."""

    connection: CallerConnection
    dialect: str
    clock: Clock | None
    file: Path | None = None
    require_schema: tuple[str, ...] = ()  # the statements before a settle that `needs_new_schema`

    def lock(self, entry: Entry) -> Steps:
        """Lock the entry for the rest of the transaction, or raise `ClaimLost`.

        Returns what identifies the transaction: its number on PostgreSQL, and a constant on SQLite, which has none.
        """
        if self.file is not None:
            rows = yield "PRAGMA database_list", {}
            _check_file(rows, self.file)
            if not self.connection.in_transaction():
                yield "BEGIN IMMEDIATE", {}
        rows = yield _LOCK_SQLITE if self.dialect == SQLITE else _LOCK_POSTGRES, _claim_values(entry)
        if rows:
            if not _in_transaction(self.connection.driver()):
                raise InvalidOption(
                    "bind() needs an open transaction, but this connection commits each statement (autocommit);"
                    " begin a transaction first, or turn autocommit off"
                )
            return rows[0][0]
        if self.dialect == POSTGRES:
            isolation = yield _ISOLATION, {}
            if isolation[0][0] != "read committed":
                raise TransactionConflict(
                    f"the {isolation[0][0]} transaction began before the claim and cannot see it;"
                    " begin the transaction inside the effect, and repeat it if it conflicts"
                )
        raise ClaimLost(f"the claim on {shown(entry.key)!r} was taken over, or this connection is to another database")

    def settle(
        self,
        entry: Entry,
        outcome: Outcome,
        chunks: Sequence[bytes],
        write_id: str,
        retain: int,
        locked_in: object,
        refuse: int = 0,
    ) -> Steps:
        """Write the outcome in the caller's transaction, whose commit publishes it. `locked_in` comes from `lock`."""
        for seq, data in enumerate(chunks, 1):
            yield _CHUNK, {"scope": entry.scope, "key": entry.key, "seq": seq, "data": data}
        values: dict[str, object] = {
            **_claim_values(entry), "write_id": write_id, "code": outcome.code, "headers": outcome.headers,
            "body": outcome.body, "chunks": outcome.chunks,
        }  # fmt: skip
        expires = None if refuse == EVER else retain
        until = None if refuse == 0 else retain if refuse == EVER else retain + refuse
        for statement in self.require_schema if refuse else ():
            yield statement, {}
        if self.dialect == SQLITE:
            now = self.clock() if self.clock else 0
            times = (None if span is None else to_text(now + span) for span in (0, expires, until))
            rows = yield _SETTLE_SQLITE, values | dict(zip(("now", "expires_at", "refuse_until"), times, strict=True))
        else:
            now_or_none = self.clock() if self.clock else None
            rows = yield _SETTLE_POSTGRES, values | {"now": now_or_none, "expires": expires, "refuse": until}
        if not rows:
            raise ClaimLost(f"the claim on {shown(entry.key)!r} was taken over; roll this transaction back")
        if rows[0][0] != locked_in:
            raise TransactionConflict(f"{ENDED}; this is another transaction: roll it back")
        return None

    def run(self, steps: Steps) -> None:
        try:
            sql, values = next(steps)
            while True:
                try:
                    rows = self.connection.execute(sql, values)
                except Exception as error:
                    raise _translate_error(error) from error
                sql, values = steps.send(rows)
        except StopIteration:
            return

    async def arun(self, steps: Steps) -> None:
        try:
            sql, values = next(steps)
            while True:
                try:
                    rows = await self.connection.execute(sql, values)
                except Exception as error:
                    raise _translate_error(error) from error
                sql, values = steps.send(rows)
        except StopIteration:
            return


def _claim_values(entry: Entry) -> dict[str, object]:
    return {"scope": entry.scope, "key": entry.key, "version": entry.version}


def _check_file(rows: Rows, file: Path) -> None:
    for _, name, path in rows:
        if name == "main" and path and Path(path).exists() and file.samefile(path):
            return
    raise InvalidOption(f"bind() needs a connection to the ledger's own file, {file}")


def _translate_error(error: Exception) -> Exception:
    """Translate a driver's error: a conflict that a new transaction solves, a wrong database, or a failing store."""
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None) or ""
    if state in {"40001", "40P01"} or "database is locked" in str(cause):
        return TransactionConflict(f"the transaction conflicts with another one ({cause}); roll it back and repeat it")
    if state == "42P01":  # no such table
        return InvalidOption(f"bind() needs a connection to the ledger's own database: {cause}")
    return StoreUnavailable(f"the bound transaction failed: {cause}")


def caller_connection(connection: object, dialect: str) -> CallerConnection:
    """Recognise a connection, or raise `InvalidOption` with the supported ones."""
    home = type(connection).__module__.partition(".")[0]
    name = type(connection).__name__
    if isinstance(connection, sqlite3.Connection) and dialect == SQLITE:
        return _of_sqlite3(connection)
    if dialect == POSTGRES and any(kind.__module__.partition(".")[0] == "psycopg" for kind in type(connection).__mro__):
        return _of_psycopg(connection)
    if home == "sqlalchemy" or _is_sqlalchemy(connection):
        return _of_sqlalchemy(connection, dialect)
    raise InvalidOption(
        f"bind() does not support a {home}.{name} with a ledger on {dialect}; it supports "
        + ("sqlite3" if dialect == SQLITE else "psycopg")
        + " connections and SQLAlchemy's Connection, Session, AsyncConnection and AsyncSession"
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
        return not connection.closed and _in_transaction(connection)

    return CallerConnection(aexecute if is_async else execute, in_transaction, is_async, lambda: connection)


def _in_transaction(driver: Any) -> bool:
    """Return whether the driver's own connection is in a transaction; true if the driver does not report it."""
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is not None:  # psycopg
        idle = 0  # libpq's PQTRANS_IDLE
        return bool(status != idle)
    return bool(getattr(driver, "in_transaction", True))  # sqlite3, aiosqlite


def _is_sqlalchemy(connection: object) -> bool:
    return any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__)


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
