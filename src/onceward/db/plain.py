"""A statement that is given to the driver as it is, for paths on which every upload and every event goes.

SQLAlchemy takes ten times as long to run a small statement as SQLite needs for it. PostgreSQL's round trip is longer than
either, so there it is an ordinary `text()`. Errors are SQLAlchemy's, whoever ran it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy import text

_NONE: Mapping[str, object] = {}


class Plain:
    """Its parameters are named, as in `:id`."""

    __slots__ = ("_text", "sql")

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._text = text(sql)

    def rows(self, tx: sqlalchemy.Connection, values: Mapping[str, object] = _NONE) -> Sequence[Sequence[Any]]:
        if tx.dialect.name != "sqlite":
            return tx.execute(self._text, values).all()
        return self.rows_on(_driver(tx), values)

    def rows_on(self, driver: sqlite3.Connection, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """On a connection that may be in no transaction: to SQLite one statement is a transaction by itself."""
        try:
            return driver.execute(self.sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._told(error) from error

    def count(self, tx: sqlalchemy.Connection, values: Mapping[str, object]) -> int:
        """How many rows it wrote."""
        if tx.dialect.name != "sqlite":
            return tx.execute(self._text, values).rowcount
        try:
            return _driver(tx).execute(self.sql, values).rowcount
        except sqlite3.Error as error:
            raise self._told(error) from error

    def new_id(self, tx: sqlalchemy.Connection, row: Sequence[object]) -> int:
        """Of the row that it inserts, whose values are in their order (`?`); on SQLite alone."""
        try:
            return _driver(tx).execute(self.sql, row).lastrowid or 0
        except sqlite3.Error as error:
            raise self._told(error) from error

    def each(self, tx: sqlalchemy.Connection, rows: Sequence[Sequence[object]]) -> None:
        """Once for each of these, whose values are in their order (`?`); on SQLite alone."""
        try:
            _driver(tx).executemany(self.sql, rows)
        except sqlite3.Error as error:
            raise self._told(error) from error

    def _told(self, error: sqlite3.Error) -> BaseException:
        return sqlalchemy.exc.DBAPIError.instance(self.sql, None, error, sqlite3.Error)


def _driver(tx: sqlalchemy.Connection) -> sqlite3.Connection:
    return own(tx.connection)


def own(connection: sqlalchemy.PoolProxiedConnection) -> sqlite3.Connection:
    """SQLite's own connection of one that the pool has lent."""
    driver = connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        raise TypeError("not a connection of SQLite")
    return driver
