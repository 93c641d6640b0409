"""SQL statements that bypass SQLAlchemy on SQLite, for the hot paths of uploads and events.

For a small statement, SQLAlchemy needs ten times as long as SQLite itself. On PostgreSQL the round trip takes longer than
both, so there the statement is an ordinary `text()`. Errors are always SQLAlchemy's.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import sqlalchemy
from sqlalchemy import text

Values: TypeAlias = Mapping[str, object] | Sequence[object]

_NONE: Mapping[str, object] = {}


class RawStatement:
    """Statement with named parameters such as `:id`, run by the driver itself on SQLite.

    A statement for SQLite only may have positional parameters (`?`) instead.
    """

    __slots__ = ("_text", "sql")

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._text = text(sql)

    def rows(self, tx: sqlalchemy.Connection, values: Values = _NONE) -> Sequence[Sequence[Any]]:
        if tx.dialect.name != "sqlite":
            return tx.execute(self._text, cast("Mapping[str, object]", values)).all()
        return self.rows_on(_driver(tx), values)

    def rows_on(self, driver: sqlite3.Connection, values: Values) -> Sequence[Sequence[Any]]:
        """Return the rows on a SQLite connection outside a transaction, where one statement is its own transaction."""
        try:
            return driver.execute(self.sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._as_dbapi_error(error) from error

    def count(self, tx: sqlalchemy.Connection, values: Values) -> int:
        """Run the statement and return how many rows it wrote."""
        if tx.dialect.name != "sqlite":
            return tx.execute(self._text, cast("Mapping[str, object]", values)).rowcount
        try:
            return _driver(tx).execute(self.sql, values).rowcount
        except sqlite3.Error as error:
            raise self._as_dbapi_error(error) from error

    def new_id(self, tx: sqlalchemy.Connection, row: Sequence[object]) -> int:
        """Insert a row and return its id; SQLite only, with positional values (`?`)."""
        try:
            return _driver(tx).execute(self.sql, row).lastrowid or 0
        except sqlite3.Error as error:
            raise self._as_dbapi_error(error) from error

    def each(self, tx: sqlalchemy.Connection, rows: Sequence[Sequence[object]]) -> None:
        """Run the statement once for each row; SQLite only, with positional values (`?`)."""
        try:
            _driver(tx).executemany(self.sql, rows)
        except sqlite3.Error as error:
            raise self._as_dbapi_error(error) from error

    def _as_dbapi_error(self, error: sqlite3.Error) -> BaseException:
        return sqlalchemy.exc.DBAPIError.instance(self.sql, None, error, sqlite3.Error)


class MultiRowStatement:
    """Statement for SQLite that writes many rows at once; `{rows}` stands for them, behind `VALUES`.

    The driver releases Python's lock for each run of a statement, and may have to wait for a busy thread to get it back.
    """

    # Each number of rows is a statement of its own in the driver's cache.
    ROWS_MAX = 32

    def __init__(self, sql: str, columns: int) -> None:
        self._sql = sql
        self._row = f"({', '.join('?' * columns)})"
        self._statements: dict[int, RawStatement] = {}

    def count(self, tx: sqlalchemy.Connection, rows: Sequence[Sequence[object]]) -> int:
        """Run the statement for these rows and return how many it wrote."""
        count = 0
        for begin in range(0, len(rows), self.ROWS_MAX):
            some = rows[begin : begin + self.ROWS_MAX]
            statement = self._statements.get(len(some))
            if statement is None:
                statement = RawStatement(self._sql.replace("{rows}", ", ".join([self._row] * len(some))))
                self._statements[len(some)] = statement
            count += statement.count(tx, list(itertools.chain.from_iterable(some)))
        return count


def _driver(tx: sqlalchemy.Connection) -> sqlite3.Connection:
    return sqlite_connection(tx.connection)


def sqlite_connection(connection: sqlalchemy.PoolProxiedConnection) -> sqlite3.Connection:
    """Return the driver's SQLite connection behind a pooled connection."""
    # Not `driver_connection`, which is empty for a connection that was detached from its pool.
    driver: object = connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        raise TypeError("not a SQLite connection")
    return driver
