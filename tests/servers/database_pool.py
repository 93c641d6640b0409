"""Databases from one template, lent to one test after the other. Creating one takes ten times as long as most tests.

A database is reused only if the test left nothing but rows: no connection, no change of the catalogs, and few enough
rows that their statistics cannot influence a query plan. Otherwise it is not lent again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from tests.servers.postgres import PostgresServer

# A client learns that its session has ended before the server has removed it.
_CHECKS, _CHECK_SECONDS = 40, 0.005
_ROWS_MAX = 1_000

# Any change of a definition rewrites its catalog row under a new transaction id.
_SHAPE = " UNION ALL ".join(
    f"SELECT '{catalog}', count(*), max(xmin::text::bigint) FROM {catalog}"  # noqa: S608  # constants
    for catalog in (
        "pg_attribute", "pg_class", "pg_constraint", "pg_index", "pg_namespace", "pg_proc", "pg_trigger", "pg_type",
    )
)  # fmt: skip
_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_TABLES = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
_SEQUENCES = "SELECT schemaname || '.' || sequencename, start_value, last_value FROM pg_sequences ORDER BY 1"


class DatabasePool:
    """A pool of copies of `template`, a database without connections."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[str] = []
        with psycopg.connect(server.url(template)) as connection:
            self._shape = connection.execute(_SHAPE).fetchall()
            self._statements = _restoring(connection).as_bytes(connection)

    @contextmanager
    def borrow(self) -> Iterator[str]:
        """Lend a database that equals the template, and yield its URL."""
        url = self._free.pop() if self._free else self._server.create_database(self._template)
        yield url
        if self._restored(url):
            self._free.append(url)

    def _restored(self, url: str) -> bool:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("SET lock_timeout = '1s'; SET synchronous_commit = off")
                if _is_in_use(connection) or connection.execute(_SHAPE).fetchall() != self._shape:
                    return False
                return self._restore(connection) <= _ROWS_MAX
        except psycopg.Error:
            # Its test has dropped, stopped or locked it.
            return False

    def _restore(self, connection: psycopg.Connection) -> int:
        """Restore the initial rows, and return the number of deleted ones."""
        results = connection.execute(self._statements)
        deleted = 0
        while True:
            if (results.statusmessage or "").startswith("DELETE"):
                deleted += results.rowcount
            if not results.nextset():
                return deleted


def _restoring(connection: psycopg.Connection) -> sql.Composed:
    """Return all statements that restore the initial rows, to be sent together as one transaction."""
    # Without their triggers: the event log refuses deletes.
    statements: list[sql.Composable] = [sql.SQL("SET session_replication_role = replica")]
    for table in connection.execute(_TABLES).fetchall():
        statements.append(_named("DELETE FROM {}", table))
        if rows := _rows(connection, table):
            refill = "INSERT INTO {0} OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::{0}, "
            statements.append(_named(refill, table) + sql.Literal(json.dumps(rows)) + sql.SQL(")"))
    for name, start, last in connection.execute(_SEQUENCES).fetchall():
        values = map(sql.Literal, (name, last or start, last is not None))
        statements.append(sql.SQL("SELECT setval({}, {}, {})").format(*values))
    return sql.SQL("; ").join(statements)


def _rows(connection: psycopg.Connection, table: tuple[str, str]) -> list[Any]:
    return [row for (row,) in connection.execute(_named("SELECT to_json(t) FROM {} AS t", table)).fetchall()]


def _named(text: LiteralString, table: tuple[str, str]) -> sql.Composed:
    return sql.SQL(text).format(sql.Identifier(*table))


def _is_in_use(connection: psycopg.Connection) -> bool:
    for _ in range(_CHECKS):
        if connection.execute(_OTHERS).fetchone() == (0,):
            return False
        connection.execute("SELECT pg_sleep(%s)", [_CHECK_SECONDS])
    return True
